from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.spectra import scale_magnitudes
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, sqnr_db, with_rewrites, without_rewrites

HEAD = "g (float[1,64] a, float[1,64] b) => (float[1,64] y)"
POWERS = HEAD + " { p = Pow (a, two) q = Pow (b, two) s = Add (p, q) y = Sqrt (s) }"
SQUARES = HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Add (p, q) y = Sqrt (s) }"
SHIFTED = HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Add (p, q) t = Add (epsilon, s) y = Sqrt (t) }"


def parts(scale: float = 1.0) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    made = {name: (scale * rng.standard_normal((1, 64))).astype(np.float32) for name in "ab"}
    made["a"][0, :4], made["b"][0, :4] = (0, -0.0, 1e-6, 3), (0, 0, 0, -4)
    return made


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        (POWERS, {"two": np.float32(2)}),
        (SQUARES, {}),
        (SHIFTED, {"epsilon": np.float32(1e-9)}),
        (SHIFTED, {"epsilon": np.float32(0.5)}),
    ],
    ids=["powers", "squares", "small epsilon", "large epsilon"],
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_magnitude_is_computed_from_quotients(
    text: str, constants: dict[str, np.float32], scale: float, tmp_path: Path
) -> None:
    model = graph(text, constants)
    before = outputs(model, parts(scale))["y"]

    assert apply_all(model, tmp_path)["scale_magnitudes"] == 1

    counted = operators(model)
    assert (counted["Sqrt"], counted["Div"], counted["Max"]) == (1, 3 if constants.get("epsilon") else 2, 2)
    np.testing.assert_allclose(outputs(model, parts(scale))["y"], before, rtol=1e-6)
    assert scale_magnitudes.apply(model, tmp_path) == 0


ONE = "g (float[1,64] a) => (float[1,64] y)"
TWO = "g (float[1,64,2] a) => (float[1,64] y)"
LOGS = {
    "a square": (ONE + " { p = Mul (a, a) y = Log (p) }", {"Abs": 1, "Log": 1, "Mul": 1}),
    "a square and a floor": (ONE + " { p = Mul (a, a) q = Max (p, tiny) y = Log (q) }", {"Max": 1, "Log": 1}),
    "a square and a Clip": (ONE + " { p = Mul (a, a) q = Clip (p, tiny) y = Log (q) }", {"Max": 1, "Log": 1}),
    "a square and more": (ONE + " { p = Mul (a, a) q = Add (tiny, p) y = Log (q) }", {"Div": 2, "Log": 1}),
    "two squares and a floor": (
        HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Add (p, q) t = Max (tiny, s) y = Log (t) }",
        {"Div": 2, "Max": 3, "Log": 1},
    ),
    "the square of a magnitude": (
        HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Add (p, q) r = Sqrt (s) m = Mul (r, r) t = Max (tiny, m)"
        " y = Log (t) }",
        {"Div": 2, "Max": 3, "Sqrt": 1, "Log": 1},
    ),
    "halves of an axis": (
        TWO + " { p = Mul (a, a) s = ReduceSum <keepdims = 0> (p, last) t = Add (s, tiny) y = Log (t) }",
        {"Gather": 2, "Div": 3, "Log": 1},
    ),
}


@pytest.mark.parametrize("form", LOGS)
def test_a_logarithm_of_squares_is_twice_that_of_the_magnitude(form: str, tmp_path: Path) -> None:
    text, counts = LOGS[form]
    model = graph(text, {"tiny": np.float32(1e-10), "last": np.array([-1], np.int64)})
    fed = {"a": np.stack([*parts().values()], axis=-1)} if "halves" in form else parts()
    if form == "a square":
        fed["a"] = fed["a"] + np.where(np.abs(fed["a"]) < 1e-3, 1, 0).astype(np.float32)
    given = {value.name: fed[value.name] for value in model.graph.input}
    before = outputs(model, given)["y"]

    assert apply_all(model, tmp_path)["scale_magnitudes"] == 1 + (form == "the square of a magnitude")

    assert operators(model).items() >= counts.items()
    np.testing.assert_allclose(outputs(model, given)["y"], before, rtol=1e-6, atol=2e-6)
    assert scale_magnitudes.apply(model, tmp_path) == 0


@pytest.mark.parametrize("keep", [0, 1])
def test_the_norm_of_halves_is_a_magnitude(keep: int, tmp_path: Path) -> None:
    made = "float[1,1,64]" if keep else "float[1,64]"
    body = f"p = Mul (a, a) s = ReduceSum <keepdims = {keep}> (p, first) y = Sqrt (s)"
    model = graph(f"g (float[1,2,64] a) => ({made} y) {{ {body} }}", {"first": np.array([1], np.int64)})
    given = {"a": np.stack([*parts().values()], axis=1)}
    before = outputs(model, given)["y"]

    assert apply_all(model, tmp_path)["scale_magnitudes"] == 1

    np.testing.assert_allclose(outputs(model, given)["y"], before, rtol=1e-6)
    assert scale_magnitudes.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    "text",
    [
        HEAD + " { p = Mul (a, b) q = Mul (b, b) s = Add (p, q) y = Sqrt (s) }",
        HEAD + " { p = Mul (a, a) s = Add (p, b) y = Sqrt (s) }",
        HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Add (p, q) t = Add (s, a) y = Log (t) }",
        "g (float[1,64,3] a) => (float[1,64] y) { p = Mul(a, a) s = ReduceSum <keepdims = 0> (p, last) y = Sqrt(s) }",
        HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Sub (p, q) t = Abs (s) y = Sqrt (t) }",
        HEAD + " { p = Mul (a, a) q = Mul (b, b) s = Add (p, q) t = Add (s, below) y = Sqrt (t) }",
        "g (float[1,64] a, float[1,1] b) => (float[1,64] y) { p = Mul(a, a) q = Mul(b, b) s = Add(p, q) y = Sqrt(s) }",
        "g (float16[1,64] a, float16[1,64] b) => (float16[1,64] y) "
        "{ p = Mul (a, a) q = Mul (b, b) s = Add (p, q) y = Sqrt (s) }",
    ],
    ids=[
        "no square",
        "one part",
        "more than squares",
        "three parts",
        "a difference",
        "less than zero added",
        "another shape",
        "another type",
    ],
)
def test_other_roots_are_left_alone(text: str, tmp_path: Path) -> None:
    constants: dict[str, ArrayLike] = {"below": np.float32(-1), "last": np.array([-1], np.int64)}
    model = graph(text, {name: value for name, value in constants.items() if name in text})
    assert scale_magnitudes.apply(model, tmp_path) == 0


def spectrum(quiet: float) -> tuple[ModelProto, list[dict[str, NDArray[np.float32]]]]:
    """Loud frames, and one that is quieter by a factor."""
    rng = np.random.default_rng(2)
    frames = [{name: rng.standard_normal((1, 64)).astype(np.float32) for name in "ab"} for _ in range(8)]
    frames.append({name: (quiet * array).astype(np.float32) for name, array in frames[0].items()})
    return graph(SQUARES), frames


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "quiet"), [("uint16", 1e-3), ("fp16", 1e-4)])
def test_a_quiet_frame_among_loud_ones_is_right_on_the_chip(scheme: str, quiet: float, tmp_path: Path) -> None:
    model, frames = spectrum(quiet)
    figures = []
    for name, component in (
        ("squares", without_rewrites(tmp_path / "squares", model)),
        ("quotients", with_rewrites(tmp_path / "quotients", model)),
    ):
        made = component.rewrite["all"]
        if scheme == "uint16":
            made = component.quantize("all", component.calibrate(frames))
        chip = on_chip(made, frames[-1:], tmp_path / name / "out")
        assert np.isfinite(chip.outputs[0]["y"]).all()
        figures.append(sqnr_db([outputs(model, frames[-1])], chip.outputs, "y"))

    assert figures[0] < 10, f"HTP keeps small squares now ({figures}): the rewrite is not needed any more"
    assert figures[1] > 20, figures


@pytest.mark.slow
def test_logarithms_of_small_squares_are_right_on_the_chip_in_float16(tmp_path: Path) -> None:
    model = graph(LOGS["a square and a floor"][0], {"tiny": np.float32(1e-12)})
    loud = (2.0 ** np.linspace(-19, 7, 64, dtype=np.float32)).astype(np.float16).astype(np.float32)[None]
    figures = []
    for name, component in (
        ("squares", without_rewrites(tmp_path / "squares", model)),
        ("roots", with_rewrites(tmp_path / "roots", model)),
    ):
        chip = on_chip(component.rewrite["all"], [{"a": loud}], tmp_path / name / "out")
        figures.append(sqnr_db([outputs(model, {"a": loud})], chip.outputs, "y"))

    assert figures[0] < 15, f"HTP keeps small squares now ({figures}): the rewrite is not needed any more"
    assert figures[1] > 50, figures
