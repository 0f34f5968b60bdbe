from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import divide_log_arguments
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

HEAD = "g (float[1,64] x) => (float[1,64] y) "
FORMS = {
    "factor, offset": HEAD + " { p = Mul (x, factor) s = Add (p, offset) y = Log (s) }",
    "offset, factor": HEAD + " { p = Mul (factor, x) s = Add (offset, p) y = Log (s) }",
    "read by others": "g (float[1,64] x) => (float[1,64] y, float[1,64] s) "
    "{ p = Mul (x, factor) s = Add (p, offset) y = Log (s) }",
}


def logarithm(text: str, factor: float = 2.0**20, offset: float = 1.0) -> ModelProto:
    return graph(text, {"factor": np.array(factor, np.float32), "offset": np.array(offset, np.float32)})


def magnitudes() -> dict[str, NDArray[np.float32]]:
    """From 0 and 2^-18 to 14, as those of a short spectrum of speech."""
    return {"x": np.concatenate([[0], np.geomspace(2.0**-18, 14.4, 63)])[None].astype(np.float32)}


@pytest.mark.parametrize(("factor", "offset"), [(2.0**20, 1.0), (1e6, 1e-3), (70000.0, 1e5), (1e9, 0.5)])
@pytest.mark.parametrize("form", FORMS)
def test_the_logarithm_stays_what_it_is(form: str, factor: float, offset: float, tmp_path: Path) -> None:
    model = logarithm(FORMS[form], factor, offset)
    before = outputs(model, magnitudes())

    assert apply_all(model, tmp_path)["divide_log_arguments"] == 1

    after = outputs(model, magnitudes())
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=4e-6)
    assert divide_log_arguments.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("text", "factor", "offset"),
    [
        (FORMS["factor, offset"], 60000.0, 1.0),
        (FORMS["factor, offset"], 2.0**20, 0.0),
        (FORMS["factor, offset"], 2.0**20, 2.0**-14),
        (HEAD + " { p = Add (x, factor) s = Mul (p, offset) y = Log (s) }", 2.0**20, 1.0),
        (HEAD + " { p = Mul (x, factor) s = Add (p, offset) y = Sqrt (s) }", 2.0**20, 1.0),
        (HEAD + " { p = Mul (x, x) s = Add (p, offset) t = Add (s, factor) y = Log (t) }", 2.0**20, 1.0),
        (
            "g (float16[1,64] x) => (float[1,64] y) "
            "{ z = Cast <to = 1> (x) p = Mul (z, z) s = Add (p, offset) y = Log (s) }",
            2.0**20,
            1.0,
        ),
    ],
    ids=["a factor that fits", "no offset", "an offset too small", "a sum times", "a root", "a square", "a cast"],
)
def test_other_logarithms_are_left_alone(text: str, factor: float, offset: float, tmp_path: Path) -> None:
    assert divide_log_arguments.apply(logarithm(text, factor, offset), tmp_path) == 0


@pytest.mark.slow
def test_a_logarithm_of_a_large_sum_is_right_on_the_chip_in_float16(tmp_path: Path) -> None:
    model, fed = logarithm(FORMS["factor, offset"]), magnitudes()
    worst = []
    for name, component in (
        ("sum", without_rewrites(tmp_path / "sum", model)),
        ("divided", with_rewrites(tmp_path / "divided", model)),
    ):
        chip = on_chip(component.rewrite["all"], [fed], tmp_path / name / "out")
        worst.append(float(np.abs(chip.outputs[0]["y"] - outputs(model, fed)["y"]).max()))

    assert worst[0] > 1, f"HTP keeps such sums now ({worst}): the rewrite is not needed any more"
    assert worst[1] < 0.05, worst
