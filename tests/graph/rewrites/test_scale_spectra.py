from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.spectra import scale_spectra
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, sqnr_db, with_rewrites, without_rewrites

SAMPLES, FRAME, BINS, MELS = 640, 128, 65, 16
HEAD = f"g (float[1,{SAMPLES}] x) => (float[1,17,{MELS}] y) "
TRANSFORM = """
    u = Unsqueeze (x, one)
    c = Conv <strides = [32]> (u, cosines)
    s = Conv <strides = [32]> (u, sines)
    a = Transpose <perm = [0, 2, 1]> (c)
    b = Transpose <perm = [0, 2, 1]> (s)
"""
POWER = TRANSFORM + " p = Pow (a, two) q = Pow (b, two) e = Add (p, q) "
LOGS = {
    "power, Clip": POWER + " m = MatMul (e, mel) f = Clip (m, tiny) y = Log (f)",
    "power, Max": POWER + " m = MatMul (e, mel) f = Max (tiny, m) y = Log (f)",
    "power, added": POWER + " m = MatMul (e, mel) f = Add (m, tiny) y = Log (f)",
    "magnitude": POWER + " r = Sqrt (e) m = MatMul (r, mel) f = Clip (m, tiny) y = Log (f)",
    "halved": TRANSFORM + " h = Mul (a, half) p = Mul (h, h) m = MatMul (p, mel) f = Max (m, tiny) y = Log (f)",
}


def constants() -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    angles = 2 * np.pi * np.outer(np.arange(BINS), np.arange(FRAME)) / FRAME
    window = np.hanning(FRAME)
    centres = np.linspace(2, BINS - 3, MELS)
    mel = np.maximum(0, 1 - np.abs(np.arange(BINS)[:, None] - centres) / 5) * 0.02
    return {
        "one": np.array([1], np.int64),
        "cosines": (np.cos(angles) * window).astype(np.float32)[:, None],
        "sines": (np.sin(angles) * window).astype(np.float32)[:, None],
        "mel": mel.astype(np.float32),
        "two": np.float32(2) * np.ones((), np.float32),
        "half": np.float32(0.5) * np.ones((), np.float32),
        "tiny": np.float32(1e-10) * np.ones((), np.float32),
    }


def spectrum(form: str) -> ModelProto:
    text = LOGS.get(form, form)
    return graph(HEAD + "{" + text + "}", {name: value for name, value in constants().items() if name in text})


def sound(loudest: float) -> dict[str, NDArray[np.float32]]:
    """A tone that swells, with noise of a hundredth below it."""
    times = np.arange(SAMPLES)
    made = np.sin(0.3 * times) * times / SAMPLES + 0.01 * np.random.default_rng(3).standard_normal(SAMPLES)
    return {"x": (loudest * made[None]).astype(np.float32)}


@pytest.mark.parametrize("loudest", [32767.0, 1.0, 1e-3, 0.0])
@pytest.mark.parametrize("form", LOGS)
def test_a_spectrum_of_any_loudness_stays_what_it_is(form: str, loudest: float, tmp_path: Path) -> None:
    model = spectrum(form)
    before = outputs(model, sound(loudest))["y"]

    assert apply_all(model, tmp_path)["scale_spectra"] == 1

    np.testing.assert_allclose(outputs(model, sound(loudest))["y"], before, atol=2e-3)
    assert scale_spectra.apply(model, tmp_path) == 0


def test_a_few_steps_of_one_are_no_less_exact_than_speech(tmp_path: Path) -> None:
    model = spectrum("power, Clip")
    quiet = {"x": np.zeros((1, SAMPLES), np.float32)}
    quiet["x"][0, ::37] = 1
    before = outputs(model, quiet)["y"]
    apply_all(model, tmp_path)
    np.testing.assert_allclose(outputs(model, quiet)["y"], before, atol=2e-3)


@pytest.mark.parametrize(
    "text",
    [
        POWER + " m = MatMul (e, mel) y = Log (m)",
        POWER + " m = MatMul (e, mel) n = Relu (m) f = Max (n, tiny) y = Log (f)",
        TRANSFORM + " p = Mul (a, b) m = MatMul (p, mel) f = Max (m, tiny) y = Log (f)",
        TRANSFORM + " p = Mul (a, a) q = Add (p, a) m = MatMul (q, mel) f = Max (m, tiny) y = Log (f)",
        TRANSFORM + " p = Mul (a, a) q = Add (p, half) m = MatMul (q, mel) f = Max (m, tiny) y = Log (f)",
        TRANSFORM + " m = MatMul (a, mel) p = Abs (m) f = Max (p, tiny) y = Log (f)",
    ],
    ids=["no floor", "a Relu", "no square", "a square and its root", "an offset", "no square at all"],
)
def test_what_does_not_scale_with_its_input_is_left_alone(text: str, tmp_path: Path) -> None:
    assert apply_all(spectrum(text), tmp_path)["scale_spectra"] == 0


@pytest.mark.slow
def test_sound_of_sixteen_bits_is_right_on_the_chip_in_float16(tmp_path: Path) -> None:
    model, fed = spectrum("power, Clip"), sound(32767.0)
    figures = []
    for name, component in (
        ("powers", without_rewrites(tmp_path / "powers", model)),
        ("scaled", with_rewrites(tmp_path / "scaled", model)),
    ):
        chip = on_chip(component.rewrite["all"], [fed], tmp_path / name / "out")
        figures.append(sqnr_db([outputs(model, fed)], chip.outputs, "y"))

    assert figures[0] < 10, f"HTP keeps large powers now ({figures}): the rewrite is not needed any more"
    assert figures[1] > 50, figures


@pytest.mark.slow
@pytest.mark.parametrize("form", ["power, Clip", "magnitude"])
def test_a_quiet_frame_beside_loud_ones_is_right_on_the_chip_in_float16(form: str, tmp_path: Path) -> None:
    """The last frames are 66 dB below the first: squares of less than 2^-21 of the largest."""
    model, fed = spectrum(form), sound(32767.0)
    fed["x"][:, SAMPLES // 2 :] = np.random.default_rng(4).normal(0, 16, SAMPLES // 2).round()
    fed["x"][:, : SAMPLES // 2] = 32767 * np.sin(0.3 * np.arange(SAMPLES // 2))
    right = outputs(model, fed)["y"][0, 10:]

    chip = on_chip(with_rewrites(tmp_path / "scaled", model).rewrite["all"], [fed], tmp_path / "out")

    assert float(np.abs(chip.outputs[0]["y"][0, 10:] - right).max()) < 0.05
