"""A tiny speech model from its safetensors to contexts that were emulated, by the real command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from pipeline.contracts import context, emulate, verify, words
from pipeline.contracts.codec import Contract
from pipeline.inputs.samples.speech import transcriber
from pipeline.qnn_release import Release
from pipeline.qnn_release.errors import ReleaseError
from pipeline.qnn_release.sound_features import log_mel, waveform
from pipeline.qnn_release.transcription import FILES, speech_setting
from pipeline.stages.words import distance, words_of
from pipeline.store.manifests import read_manifest
from pipeline.store.store import Store
from tests.support.project import Project
from tests.support.speech_project import BANDS, PLACES, reference, sound, speech_project, tiny_whisper, write_wav

Kind = TypeVar("Kind", bound=Contract)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = speech_project(tmp_path_factory.mktemp("speech"))
    (made.root / "said.txt").write_text(made.doit("build:tiny").text, "utf-8")
    return made


def facts_of(project: Project, kind: type[Kind], step: str) -> Kind:
    manifest = read_manifest(project.root / ".build" / "steps" / f"{step}.json")
    assert manifest is not None
    return kind.from_json(manifest.facts)


def test_both_parts_are_one_partition_on_the_npu_and_words_are_compared(project: Project) -> None:
    for part in ("encoder", "decoder"):
        (made,) = facts_of(project, context.Facts, f"context/tiny/{part}/all/snapdragon-x-elite").parts.values()
        assert (made.facts.partitions, [*made.facts.fallbacks]) == (1, [])
        assert facts_of(project, verify.Facts, f"verify/tiny/{part}/all").samples > 0
        assert facts_of(project, emulate.Facts, f"emulate/tiny/{part}/all/snapdragon-x-elite").samples > 0
    figures = facts_of(project, words.Facts, "words/tiny/words").figures
    assert figures is not None
    assert figures.windows == 2
    assert figures.steps.tokens > 20
    assert figures.steps.kl is not None
    told = (project.root / "said.txt").read_text("utf-8")
    assert re.search(rf"tiny +2 +{figures.words} +{figures.wrong} \(", told), told


def test_graphs_compute_what_the_formulas_do(project: Project, tmp_path: Path) -> None:
    weights = tiny_whisper(tmp_path / "tiny")
    graphs = {}
    for part in ("encoder", "decoder"):
        manifest = read_manifest(project.root / ".build" / "steps" / f"rewrite/tiny/{part}/all.json")
        assert manifest is not None
        Store(project.store).place(manifest, tmp_path / part)
        graphs[part] = tmp_path / part / "model.onnx"
    model = transcriber(tmp_path / "tiny", graphs["encoder"], graphs["decoder"])
    features = log_mel(waveform(sound(3), 16000), BANDS, 2 * PLACES)
    tokens = [model.setting.start, model.setting.plain, 65, 7, 12, 200]
    step = model.steps(model.encode_features(features))
    made = np.stack([step(token)[1] for token in tokens])

    np.testing.assert_allclose(made, reference(weights, features, tokens), atol=2e-3)


def test_features_are_those_of_the_definition() -> None:
    wave = sound(1, 0.3).astype(np.float64)
    padded = np.pad(np.pad(wave, (0, 30 * 160 * 2 - wave.size)), 200, mode="reflect")
    angles = 2 * np.pi * np.outer(np.arange(201), np.arange(400)) / 400
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    power = np.stack([np.abs(np.exp(-1j * angles) @ (padded[at : at + 400] * hann)) ** 2 for at in range(0, 9600, 160)])
    # The first triangle of 80 on Slaney's scale, whose bands are linear below 1 kHz.
    edge = (15 + 27 * np.log(8) / np.log(6.4)) / 81 * 200 / 3
    rise = np.clip(1 - np.abs(np.arange(201) * 40 - edge) / edge, 0, None) / edge
    expected = np.log10(np.maximum(power @ rise, 1e-10))

    made = log_mel(wave, 80, 60)[0]

    assert made.shape == (80, 60)
    assert made.max() - made.min() <= 2.0 + 1e-6  # 8 decades, of which 4 are 1
    np.testing.assert_allclose(made[0], np.maximum((expected + 4) / 4, made.min()), atol=1e-5)


def test_transcribe_writes_down_files_of_any_rate(project: Project) -> None:
    folder = project.root / "calibration" / "speech"
    write_wav(project.root / "silent.wav", np.zeros(4000, np.float32), 8000)
    write_wav(project.root / "long.wav", np.concatenate([sound(5, 0.6), sound(6, 0.9), sound(1, 0.7)]))

    once = project.doit("transcribe:tiny", str(folder / "1.wav")).text
    more = project.doit("transcribe:tiny", str(folder / "2.wav"), "silent.wav", "long.wav").text

    assert "[0.6 s of sound, in " in once
    silent = more[more.index("silent.wav:") : more.index("long.wav:")]
    assert silent.splitlines()[1].startswith("[0.5 s of sound")  # no words before it
    assert "2.2 s of sound" in more


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ([], "no sound is given to write down"),
        (["none.wav"], "there is no file none.wav"),
        (["--language", "de", "a.wav"], "the model does not know the language 'de'"),
        (["text.wav"], "the sound text.wav can't be read"),
    ],
)
def test_what_can_not_be_written_down_is_refused(project: Project, names: list[str], error: str) -> None:
    write_wav(project.root / "a.wav", sound(1))
    (project.root / "text.wav").write_text("no sound")

    made = project.doit("transcribe:tiny", *names, check=False)

    assert made.status != 0
    assert error in made.text
    assert "Traceback" not in made.text


def test_the_release_alone_hears_what_the_build_does(project: Project) -> None:
    project.doit("package:tiny")
    (archive,) = (project.root / "artifacts" / "releases").glob("tiny-1.0*.zip")
    wave = sound(2)
    wanted = project.doit("transcribe:tiny", "calibration/speech/5.wav").text.splitlines()[0]
    with Release.open(archive, device="cpu", cache=project.root / "cache") as release:
        rate, heard = 16000, release.transcribe(np.stack([sound(5), sound(5)], 1), 16000)
        assert heard.text.split() == wanted.split() or wanted.startswith("[")
        assert [round(each.end, 2) for each in heard.segments] == [0.6]
        assert release.transcribe((wave * 32767).astype(np.int16), rate).text == release.transcribe(wave, rate).text
        assert release.transcribe(np.zeros(0), rate).text == ""
        for given, error in (
            (np.array([np.nan]), "some are NaN"),
            (np.zeros(9, np.int32), "they are int32"),
            (np.ones((4, 99)), "99 channels"),
        ):
            with pytest.raises(ReleaseError, match="no sound") as raised:
                release.transcribe(given, rate)
            assert error in raised.value.why


@pytest.mark.parametrize(
    ("file", "key", "value", "error"),
    [
        ("config.json", "activation_function", "relu", "'activation_function' is relu"),
        ("config.json", "adapters", 3, "'adapters' is not known"),
        ("config.json", "vocab_size", 9, "has shape"),
        ("config.json", "decoder_layers", 1, "model.decoder.layers.1."),
        ("config.json", "encoder_layers", 3, "model.encoder.layers.2."),
        ("config.json", "max_target_positions", 9, "speech_model.tokens is 16"),
        ("preprocessor_config.json", "dither", 0.5, "'dither' is '0.5'"),
        ("preprocessor_config.json", "feature_size", 80, "80 mel bands"),
        ("config.json", "decoder_start_token_id", 3, "it is of another model"),
    ],
)
def test_what_the_files_say_otherwise_is_refused_by_name(
    project: Project, tmp_path: Path, file: str, key: str, value: object, error: str
) -> None:
    wrong = project.copy(tmp_path / "project")
    path = wrong.root / "models" / "tiny" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    made = wrong.doit("samples:tiny/calibration", check=False)

    assert made.status != 0
    assert error in made.text
    assert "Traceback" not in made.text


def test_init_writes_a_config_that_builds(project: Project, tmp_path: Path) -> None:
    fresh = project.copy(tmp_path / "project")

    said = fresh.doit("init", "mine", "models/tiny").text
    fresh.doit("ingest:mine/decoder", check=False)
    text = (fresh.root / "configs" / "mine.yaml").read_text()

    assert "a speech model of model.safetensors" in said
    assert "speech_model: {tokens: 224}" in text


def test_words_are_counted_as_edits() -> None:
    cases = {("a b c", "a b c"): 0, ("a b c", "a x c"): 1, ("a b c", "b c"): 1, ("", "a b"): 2, ("a b c d", "d a"): 4}
    for (one, other), edits in cases.items():
        assert distance(words_of(one), words_of(other)) == edits
    assert words_of("It's 9, Bob.") == ["it's", "9", "bob"]


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    tiny_whisper(tmp_path)
    (tmp_path / FILES[2]).unlink()
    with pytest.raises(ReleaseError, match=r"has no preprocessor_config\.json"):
        speech_setting(tmp_path)
