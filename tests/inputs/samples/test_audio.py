"""The samples step with reader `audio`: waveforms, windows and states, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from pipeline.model import Json
from pipeline.qnn_release.sound_features import resampled
from tests.support.sample_sets import arrays, calls, net_step, refusal

WHOLE = "net (float[batch, samples] wave) => (float[batch, samples] y) { y = Neg (wave) }"
FIXED = "net (float[1, 100] wave) => (float[1, 100] y) { y = Neg (wave) }"
LAST = "net (float[1, 100, 1] wave) => (float[1, 100, 1] y) { y = Neg (wave) }"
LENGTH = """net (float[1, samples] wave, int64[1] wave_length, float[1, samples] wave_mask) => (float[1, samples] y) {
    count = Cast <to = 1> (wave_length)
    masked = Mul (wave, wave_mask)
    y = Div (masked, count)
}"""
STATE = """net (float[1, 100] wave, float[1, 1] state) => (float[1, 100] y, float[1, 1] stateN) {
    y = Add (wave, state)
    one = Constant <value = float[1, 1] {1.0}> ()
    stateN = Add (state, one)
}"""


def reading(**said: Json) -> dict[str, Json]:
    return {"reader": "audio", "audio": {"rate": 1000, **said}}


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    folder = tmp_path / "sounds"
    folder.mkdir()
    return folder


def ramp(count: int) -> NDArray[np.float64]:
    return np.arange(count) / 1024


def wav(path: Path, values: NDArray[Any], rate: int = 1000, subtype: str = "PCM_16") -> None:
    soundfile.write(path, values, rate, subtype)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_every_width_of_wav_gives_the_same_numbers(tmp_path: Path, sounds: Path, subtype: str) -> None:
    values = np.array([-0.5, 0.0, 0.25, 0.5])
    wav(sounds / "a.wav", values, subtype=subtype)
    (found,) = arrays(net_step(tmp_path, WHOLE, {"8": {"samples": 8}}).run(reading(), sounds), "net")
    assert found["wave"].tolist() == [values.tolist()]


@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16", "PCM_24"])
def test_flac_gives_what_was_written(tmp_path: Path, sounds: Path, subtype: str) -> None:
    soundfile.write(sounds / "a.flac", ramp(60), 1000, subtype)
    (found,) = arrays(net_step(tmp_path, WHOLE, {"64": {"samples": 64}}).run(reading(), sounds), "net")
    step_of = 1 / 128 if subtype == "PCM_S8" else 1 / 1024
    assert np.abs(found["wave"][0] - ramp(60)).max() < step_of


def test_channels_are_mixed_or_the_first_is_taken(tmp_path: Path, sounds: Path) -> None:
    wav(sounds / "a.wav", np.array([[0.5, -0.25], [0.25, 0.25]]))
    net = net_step(tmp_path, WHOLE, {"8": {"samples": 8}})
    assert arrays(net.run(reading(), sounds), "net")[0]["wave"].tolist() == [[0.125, 0.25]]
    assert arrays(net.run(reading(channels="first", scale=4.0), sounds), "net")[0]["wave"].tolist() == [[2.0, 1.0]]


def test_a_long_file_is_cut_to_the_largest_bucket(tmp_path: Path, sounds: Path) -> None:
    wav(sounds / "a.wav", ramp(300))
    (call,) = calls(
        net_step(tmp_path, WHOLE, {"8": {"samples": 8}, "200": {"samples": 200}}).run(reading(), sounds), "net"
    )
    assert call.sample.cut
    assert call.load()["wave"].shape == (1, 200)


@pytest.mark.parametrize("text", [FIXED, LAST])
def test_a_fixed_input_takes_windows(tmp_path: Path, sounds: Path, text: str) -> None:
    wav(sounds / "a.wav", ramp(350))
    wav(sounds / "short.wav", ramp(30))
    found = calls(net_step(tmp_path, text).run(reading(), sounds), "net")
    assert [call.name for call in found] == [*(f"a.wav, call {n} of 3" for n in (1, 2, 3)), "short.wav"]
    starts = [call.load()["wave"].reshape(-1)[0] for call in found]
    assert starts == [0, 100 / 1024, 200 / 1024, 0]
    assert not found[3].load()["wave"].reshape(-1)[30:].any()


def test_windows_overlap_by_hop_or_begin_with_what_was_before(tmp_path: Path, sounds: Path) -> None:
    wav(sounds / "a.wav", ramp(200))
    net = net_step(tmp_path, FIXED)
    starts = [each["wave"][0, 0] * 1024 for each in arrays(net.run(reading(hop=50), sounds), "net")]
    assert starts == [0, 50, 100]
    found = arrays(net.run(reading(context=20), sounds), "net")
    assert [each["wave"][0, 20] * 1024 for each in found] == [0, 80]
    assert [each["wave"][0, 0] * 1024 for each in found] == [0, 60]


def test_lengths_and_masks_are_of_the_samples(tmp_path: Path, sounds: Path) -> None:
    wav(sounds / "a.wav", ramp(50))
    net = net_step(tmp_path, LENGTH, {"64": {"samples": 64}})
    (found,) = arrays(net.run(reading(length="wave_length", mask="wave_mask"), sounds), "net")
    assert found["wave_length"].tolist() == [50]
    assert found["wave_mask"].tolist() == [[1.0] * 50]
    assert "can't make input 'wave_length" in refusal(net, reading(input="wave", mask="wave_mask"), sounds)


def test_states_are_handed_from_window_to_window_and_begin_anew_with_each_file(tmp_path: Path, sounds: Path) -> None:
    wav(sounds / "a.wav", ramp(500))
    wav(sounds / "b.wav", ramp(200))
    net = net_step(tmp_path, STATE)
    found = arrays(net.run(reading(states={"state": "stateN"}, max_windows=3), sounds), "net")
    assert [each["state"].item() for each in found] == [0, 1, 3, 0, 1]
    assert "names no output of net: 'state_n'" in refusal(net, reading(states={"state": "state_n"}), sounds)
    assert "names no input of net: 'stat'" in refusal(net, reading(input="wave", states={"stat": "stateN"}), sounds)


def test_another_rate_is_refused_or_resampled(tmp_path: Path, sounds: Path) -> None:
    wav(sounds / "a.wav", ramp(160), rate=1600)
    net = net_step(tmp_path, WHOLE, {"128": {"samples": 128}})
    text = refusal(net, reading(), sounds)
    assert "the sound a.wav has 1600 Hz, and the model takes 1000" in text
    assert "resample: true" in text
    (found,) = arrays(net.run(reading(resample=True), sounds), "net")
    assert found["wave"].shape == (1, 100)


@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (8000, 16000), (48000, 22050)])
def test_a_tone_is_the_same_tone_at_another_rate(rate: int, wanted: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)
    made = resampled(tone, rate, wanted)
    due = np.sin(2 * np.pi * 440 * np.arange(made.size) / wanted)
    assert made.size == wanted // 2
    assert np.abs(made - due)[500:-500].max() < 1e-4  # 80 dB


def test_what_the_lower_rate_can_not_hold_is_gone() -> None:
    tone = np.sin(2 * np.pi * 12000 * np.arange(48000) / 48000)
    assert np.abs(resampled(tone, 48000, 16000))[500:-500].max() < 1e-4


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WAVE" + b"".join(kind + struct.pack("<I", len(data)) + data for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


FORMAT = struct.pack("<HHIIHH", 1, 1, 1000, 2000, 2, 16)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is no WAV file"),
        (riff((b"fmt ", FORMAT)), "it holds no samples"),
        (riff((b"data", b"\0\0")), "before it says what they are"),
        (riff((b"fmt ", FORMAT), (b"data", bytes(200)))[:-60], "it is cut short"),
        (riff((b"fmt ", FORMAT[:7]), (b"data", bytes(200))), "unpack"),
        (
            riff((b"fmt ", struct.pack("<HHIIHH", 2, 1, 1000, 2000, 2, 4)), (b"data", bytes(200))),
            "coding 2 with 4 bits",
        ),
        (riff((b"fmt ", struct.pack("<HHIIHH", 1, 0, 1000, 2000, 2, 16)), (b"data", bytes(200))), "0 channels"),
        (
            riff((b"fmt ", struct.pack("<HHIIHH", 3, 1, 1000, 4000, 4, 32)), (b"data", struct.pack("<f", np.inf))),
            "NaN or infinity",
        ),
    ],
)
def test_a_wav_that_can_not_be_read_is_named(tmp_path: Path, sounds: Path, data: bytes, why: str) -> None:
    (sounds / "bad.wav").write_bytes(data)
    text = refusal(net_step(tmp_path, FIXED), reading(), sounds)
    assert "the sound bad.wav can't be read" in text
    assert why in text


def test_a_damaged_flac_is_refused_by_its_own_checksum(tmp_path: Path, sounds: Path) -> None:
    soundfile.write(sounds / "bad.flac", np.sin(np.arange(5000) / 9), 1000, "PCM_16")
    data = bytearray((sounds / "bad.flac").read_bytes())
    data[26] ^= 1  # of the MD5 of its samples
    (sounds / "bad.flac").write_bytes(data)
    assert "its samples are not those that were written" in refusal(net_step(tmp_path / "a", FIXED), reading(), sounds)
    (sounds / "bad.flac").write_bytes(b"fLaC" + bytes(60))
    assert "the sound bad.flac can't be read" in refusal(net_step(tmp_path / "b", FIXED), reading(), sounds)


def test_a_set_without_sounds_and_a_model_without_waveforms_are_refused(tmp_path: Path, sounds: Path) -> None:
    assert "sounds holds no sound" in refusal(net_step(tmp_path / "a", FIXED), reading(), sounds)
    wav(sounds / "a.wav", ramp(100))
    features = "net (float[1, 80, 9] mel) => (float[1, 80, 9] y) { y = Neg (mel) }"
    assert "no input takes waveforms" in refusal(net_step(tmp_path / "b", features), reading(), sounds)
    assert "calibration.window is 50" in refusal(net_step(tmp_path / "c", FIXED), reading(window=50), sounds)
    assert "calibration.context is 100" in refusal(net_step(tmp_path / "d", FIXED), reading(context=100), sounds)
