"""The reference models' stand-ins: they have the published signature and run at any length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tests.support.models import bert, supertonic

Arrays = Mapping[str, NDArray[Any]]
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supertonic")
    supertonic.write(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    bert.write(folder)
    return folder


def run(path: Path, feeds: Arrays) -> dict[str, NDArray[Any]]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def normal(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape, np.float32)


def text_feeds(length: int) -> Arrays:
    return {
        "input_ids": RANDOM.integers(0, supertonic.VOCABULARY, (1, length)),
        "attention_mask": np.ones((1, length), np.int64),
        "style": normal(1, 101, 128),
    }


def denoiser_feeds(text: int, latent: int, step: int = 0) -> Arrays:
    return {
        "noisy_latents": normal(1, 144, latent),
        "latent_mask": np.ones((1, latent), np.int64),
        "style": normal(1, 101, 128),
        "encoder_outputs": normal(1, text, 128),
        "attention_mask": np.ones((1, text), np.int64),
        "timestep": np.array([step], np.float32),
        "num_inference_steps": np.array([5], np.float32),
    }


def sane(array: NDArray[Any]) -> bool:
    return bool(np.isfinite(array).all() and 0.01 < array.std() < 10 and np.abs(array).max() < 100)


def test_the_signature_is_the_published_one(tts: Path) -> None:
    signatures = {}
    for name in supertonic.COMPONENTS:
        session = ort.InferenceSession(tts / "onnx" / f"{name}.onnx", providers=["CPUExecutionProvider"])
        signatures[name] = {v.name: (v.type, v.shape) for v in (*session.get_inputs(), *session.get_outputs())}
    b, t, length = "batch_size", "text_length", "latent_length"
    integers, floats = "tensor(int64)", "tensor(float)"
    assert signatures == {
        "text_encoder": {
            "input_ids": (integers, [b, t]),
            "attention_mask": (integers, [b, t]),
            "style": (floats, [b, 101, 128]),
            "last_hidden_state": (floats, [b, t, 128]),
            "durations": (floats, [b]),
        },
        "latent_denoiser": {
            "noisy_latents": (floats, [b, 144, length]),
            "latent_mask": (integers, [b, length]),
            "style": (floats, [b, 101, 128]),
            "encoder_outputs": (floats, [b, t, 128]),
            "attention_mask": (integers, [b, t]),
            "timestep": (floats, [b]),
            "num_inference_steps": (floats, [b]),
            "denoised_latents": (floats, [b, 144, length]),
        },
        "voice_decoder": {"latents": (floats, [b, 144, length]), "waveform": (floats, [b, "num_samples"])},
    }


def test_the_operators_are_those_of_the_real_model(tts: Path) -> None:
    found = set()
    for name in supertonic.COMPONENTS:
        model = onnx.load(tts / "onnx" / f"{name}.onnx", load_external_data=False)
        found |= {node.op_type for node in model.graph.node}
        modes = {a.s for node in model.graph.node if node.op_type == "Pad" for a in node.attribute if a.name == "mode"}
        assert b"edge" in modes
    shown = "Conv ReduceMean Sub Pow Sqrt Div Erf Equal Where Softmax Sin Cos Tanh PRelu Softplus BatchNormalization"
    assert set(shown.split()) <= found


def test_weights_are_external_and_lie_beside_the_graph(tts: Path) -> None:
    for name in supertonic.COMPONENTS:
        model = onnx.load(tts / "onnx" / f"{name}.onnx", load_external_data=False)
        large = [tensor for tensor in model.graph.initializer if np.prod(tensor.dims) * 4 >= 1024]
        assert large
        for tensor in large:
            assert {e.key: e.value for e in tensor.external_data}["location"] == f"{name}.onnx_data"
    assert sum(path.stat().st_size for path in tts.rglob("*") if path.is_file()) < 10_000_000


@pytest.mark.parametrize("length", [1, 3, 17, 64])
def test_the_text_encoder_runs_at_any_length(tts: Path, length: int) -> None:
    outputs = run(tts / "onnx" / "text_encoder.onnx", text_feeds(length))
    assert outputs["last_hidden_state"].shape == (1, length, 128)
    assert sane(outputs["last_hidden_state"])
    latents = outputs["durations"] / 1.05 * supertonic.SAMPLING_RATE / supertonic.FRAME
    assert 0.7 * length < latents < 1.4 * length


@pytest.mark.parametrize(("text", "latent"), [(1, 1), (9, 14), (40, 33)])
def test_the_denoiser_runs_at_any_pair_of_lengths(tts: Path, text: int, latent: int) -> None:
    feeds = denoiser_feeds(text, latent)
    early = run(tts / "onnx" / "latent_denoiser.onnx", feeds)["denoised_latents"]
    assert early.shape == (1, 144, latent)
    assert sane(early)
    late = run(tts / "onnx" / "latent_denoiser.onnx", {**feeds, "timestep": np.array([4], np.float32)})
    assert np.abs(early - late["denoised_latents"]).max() > 0.01


@pytest.mark.parametrize("length", [1, 12])
def test_the_decoder_makes_a_waveform_and_looks_only_back(tts: Path, length: int) -> None:
    latents = normal(1, 144, length)
    waveform = run(tts / "onnx" / "voice_decoder.onnx", {"latents": latents})["waveform"]
    assert waveform.shape == (1, length * supertonic.FRAME)
    assert sane(waveform)
    longer = np.concatenate([latents, np.zeros((1, 144, 5), np.float32)], axis=2)
    padded = run(tts / "onnx" / "voice_decoder.onnx", {"latents": longer})["waveform"]
    np.testing.assert_allclose(padded[:, : waveform.shape[1]], waveform, atol=1e-5)


def test_a_masked_tail_gives_no_nan(tts: Path) -> None:
    feeds = dict(denoiser_feeds(20, 20))
    feeds["latent_mask"][:, 12:] = 0
    feeds["attention_mask"][:, 9:] = 0
    denoised = run(tts / "onnx" / "latent_denoiser.onnx", feeds)["denoised_latents"]
    assert np.isfinite(denoised).all()
    assert not denoised[:, :, 12:].any()


def test_a_voice_and_the_tokenizer_fit_the_model(tts: Path) -> None:
    assert (tts / "voices" / "M1.bin").stat().st_size == 51_712
    tokenizer = Tokenizer.from_file(str(tts / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == supertonic.VOCABULARY
    tokens = tokenizer.encode("<pt>Não, 한!</pt>").tokens
    assert "<unk>" not in tokens
    assert len(tokens) == len("<pt>Na~o, ") + 3 + len("!</pt>")


@pytest.mark.parametrize("length", [1, 5, 128])
def test_the_encoder_runs_at_any_length(encoder: Path, length: int) -> None:
    ids = RANDOM.integers(0, len(bert.vocabulary()), (2, length))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    hidden = run(encoder / "onnx" / "model.onnx", feeds)["last_hidden_state"]
    assert hidden.shape == (2, length, bert.WIDTH)
    assert sane(hidden)


def test_the_encoder_does_not_see_what_is_masked(encoder: Path) -> None:
    ids = RANDOM.integers(0, len(bert.vocabulary()), (1, 6))
    mask = np.ones_like(ids)
    alone = run(encoder / "onnx" / "model.onnx", {"input_ids": ids, "attention_mask": mask})["last_hidden_state"]
    padded = {"input_ids": np.pad(ids, ((0, 0), (0, 4))), "attention_mask": np.pad(mask, ((0, 0), (0, 4)))}
    hidden = run(encoder / "onnx" / "model.onnx", padded)["last_hidden_state"]
    np.testing.assert_allclose(hidden[:, :6], alone, atol=1e-5)


def test_stand_ins_are_the_same_bytes_every_time(tts: Path, encoder: Path, tmp_path: Path) -> None:
    supertonic.write(tmp_path / "tts")
    bert.write(tmp_path / "encoder")
    assert _digests(tmp_path / "tts") == _digests(tts)
    assert _digests(tmp_path / "encoder") == _digests(encoder)


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
