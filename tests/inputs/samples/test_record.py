"""The samples step with reader `record`: the application's pipeline runs, and every call is a sample."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

from pipeline.model import Json
from tests.support.models import supertonic
from tests.support.sample_sets import SampleStep, arrays, calls, ingest, refusal, write_code

ROOT = Path(__file__).resolve().parents[3]
RECORD: dict[str, Json] = {"reader": "record", "run": "run"}
POINTS = {f"{size}x{size}": {"text_length": size, "latent_length": size} for size in (64, 128)}
BUCKETS = {
    "text_encoder": {str(size): {"text_length": size} for size in (64, 128)},
    "latent_denoiser": POINTS,
    "voice_decoder": {str(size): {"latent_length": size} for size in (64, 128)},
}
TWO_LINES = "<en>Good night.</en>\n<ko>안녕하세요!</ko>\n"


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory) -> SampleStep:
    folder = tmp_path_factory.mktemp("tts")
    supertonic.write(folder / "source")
    components = {name: f"onnx/{name}.onnx" for name in supertonic.COMPONENTS}
    return SampleStep(ingest(folder / "source", components, folder / "ingest"), BUCKETS, folder)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(TWO_LINES, "utf-8")
    return path


def test_every_step_of_the_loop_is_recorded(tts: SampleStep, texts: Path) -> None:
    output = tts.run(RECORD, texts, ROOT / "calibration" / "supertonic.py")
    assert output.facts["count"] == {"text_encoder": 2, "latent_denoiser": 10, "voice_decoder": 2}
    steps = arrays(output, "latent_denoiser")
    assert [float(step["timestep"][0]) for step in steps] == [0, 1, 2, 3, 4] * 2
    assert {float(step["num_inference_steps"][0]) for step in steps} == {5.0}
    names = [call.name for call in calls(output, "latent_denoiser")]
    assert (names[0], names[9]) == ("texts.txt:1, call 1 of 5", "texts.txt:2, call 5 of 5")
    tokenizer = Tokenizer.from_file(str(tts.inputs["fetch"].folder / "tokenizer.json"))
    first, second = arrays(output, "text_encoder")
    assert first["input_ids"].tolist() == [tokenizer.encode("<en>Good night.</en>").ids]
    assert not np.array_equal(first["style"], second["style"])


def test_a_recorded_input_is_what_the_component_before_it_gave(tts: SampleStep, texts: Path) -> None:
    output = tts.run(RECORD, texts, ROOT / "calibration" / "supertonic.py")
    session = ort.InferenceSession(
        tts.inputs["fetch"].folder / "onnx" / "latent_denoiser.onnx", providers=["CPUExecutionProvider"]
    )
    steps = arrays(output, "latent_denoiser")
    for step, following in itertools.pairwise(steps[:5]):
        (denoised,) = session.run(None, step)
        np.testing.assert_allclose(following["noisy_latents"], denoised, atol=1e-4)
    (denoised,) = session.run(None, steps[4])
    np.testing.assert_allclose(arrays(output, "voice_decoder")[0]["latents"], denoised, atol=1e-4)


def test_a_run_repeats_bit_for_bit(tts: SampleStep, texts: Path) -> None:
    code = ROOT / "calibration" / "supertonic.py"
    first = dict(tts.run(RECORD, texts, code).files)
    assert dict(tts.run(RECORD, texts, code).files) == first


def test_the_reference_texts_fill_both_buckets(tts: SampleStep) -> None:
    output = tts.run(RECORD, ROOT / "calibration" / "supertonic" / "texts.txt", ROOT / "calibration" / "supertonic.py")
    assert output.facts["samples"] == 16
    lengths = [call["latents"].shape[2] for call in arrays(output, "voice_decoder")]
    assert sum(length <= 64 for length in lengths) >= 4
    assert sum(length > 64 for length in lengths) >= 4


def test_a_buffer_that_is_used_again_is_recorded_as_it_was(tts: SampleStep, texts: Path, tmp_path: Path) -> None:
    code = write_code(
        tmp_path,
        """
import numpy as np

def run(sessions, sample):
    buffer = np.zeros((1, 144, 2), np.float32)
    for value in (1, 2, 3):
        buffer[:] = value
        sessions.voice_decoder(latents=buffer)
""",
    )
    found = arrays(tts.run(RECORD, texts, code), "voice_decoder")
    assert [float(call["latents"].max()) for call in found] == [1, 2, 3, 1, 2, 3]


def test_a_session_answers_like_one_of_onnxruntime(tts: SampleStep, texts: Path, tmp_path: Path) -> None:
    code = write_code(
        tmp_path,
        """
import numpy as np

def run(sessions, sample):
    decoder = sessions["voice_decoder"]
    assert list(sessions) == ["text_encoder", "latent_denoiser", "voice_decoder"] and len(sessions) == 3
    assert [value.name for value in decoder.get_inputs()] == ["latents"]
    assert [value.name for value in decoder.get_outputs()] == ["waveform"]
    latents = sample.rng.standard_normal((1, 144, 2))           # float64: converted
    (waveform,) = decoder.run(None, {"latents": latents})
    assert waveform.shape == (1, 6144)
    assert np.array_equal(decoder.run(["waveform"], {"latents": latents})[0], waveform)
    assert np.array_equal(decoder(latents=latents)["waveform"], waveform)
    assert (sample.source / "config.json").is_file() and sample.label is None
""",
    )
    output = tts.run(RECORD, texts, code)
    assert output.facts["count"] == {"text_encoder": 0, "latent_denoiser": 0, "voice_decoder": 6}
    first, *_, last = arrays(output, "voice_decoder")
    assert not np.array_equal(first["latents"], last["latents"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "sessions.voice_decoder(latents=np.zeros((1, 144, 129), np.float32))",
            [
                "the sample fits no bucket: latent_length 129",
                "code.py:5, in run, texts.txt:1, component 'voice_decoder'",
            ],
        ),
        (
            "sessions.voice_decoder(latent=np.zeros(3))",
            ["no input 'latent'; did you mean 'latents'?", "code.py:5, in run"],
        ),
        ("sessions['voice_decode']", ["no component 'voice_decode'; did you mean 'voice_decoder'?", "code.py:5"]),
        ("sessions.voice_decoder.run(['wave'], {'latents': np.zeros((1, 144, 2))})", ["run() failed on texts.txt:1"]),
        ("1 / 0", ["run() failed on texts.txt:1", "ZeroDivisionError: division by zero", "code.py:5, in run"]),
        ("pass", ["run() ran none of the model's components", "sessions['<component>']"]),
    ],
)
def test_a_mistake_is_shown_with_line_and_sample(
    tts: SampleStep, texts: Path, tmp_path: Path, body: str, said: list[str]
) -> None:
    code = write_code(tmp_path, f"\nimport numpy as np\n\ndef run(sessions, sample):\n    {body}\n")
    text = refusal(tts, RECORD, texts, code)
    assert all(part in text for part in said), text
