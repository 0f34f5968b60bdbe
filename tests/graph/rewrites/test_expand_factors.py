from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.products import expand_factors
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

# The dims of the two inputs, and what they become.
FORMS = {
    "rows by columns": ((4, 16), (4, 16), (4, 16, 1), (4, 1, 16)),
    "heads": ((1, 3, 16), (1, 3, 16), (1, 3, 16, 1), (1, 3, 1, 16)),
    "pairs of rows": ((2, 3, 16), (2, 3, 16), (2, 1, 3, 16), (2, 3, 1, 16)),
    "five dims": ((64,), (64,), (4, 4, 4, 1, 1), (4, 1, 1, 4, 4)),
    "a leading one": ((1, 4, 16), (4, 16), (4, 16, 1), (4, 1, 16)),
    "a one between": ((4, 1, 16), (4, 16), (4, 16, 1), (4, 1, 16)),
}
LEFT_ALONE = {
    "other sizes": ((4, 16), (4, 8), (4, 16, 1), (4, 1, 8)),
    "other dims": ((64,), (4, 16), (4, 16, 1), (4, 1, 16)),
    "one is in full": ((4, 16), (4, 256), (4, 16, 1), (4, 16, 16)),
    "equal": ((4, 16), (4, 16), (4, 1, 16), (4, 1, 16)),
}

Dims = tuple[tuple[int, ...], ...]


def build(dims: Dims, kind: str = "Mul") -> ModelProto:
    a, b, first, second = (list(each) for each in dims)
    result = list(np.broadcast_shapes(tuple(first), tuple(second)))
    body = f"s = Reshape (a, first)  t = Reshape (b, second)  y = {kind} (s, t)"
    constants = {"first": np.array(first), "second": np.array(second)}
    return graph(f"g (float{a} a, float{b} b) => (float{result} y) {{ {body} }}", constants)


def feeds(dims: Dims) -> list[dict[str, NDArray[np.float32]]]:
    numbers = np.random.default_rng(0)
    return [{name: numbers.normal(size=dims["ab".index(name)]).astype(np.float32) for name in "ab"}]


@pytest.mark.parametrize("form", FORMS)
def test_a_factor_is_written_out(form: str, tmp_path: Path) -> None:
    model, (feed,) = build(FORMS[form]), feeds(FORMS[form])
    before = outputs(model, feed)["y"]

    assert apply_all(model, tmp_path)["expand_factors"] == 1

    assert operators(model) == {"Reshape": 2, "Expand": 1, "Mul": 1}
    np.testing.assert_array_equal(outputs(model, feed)["y"], before)
    assert expand_factors.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_others_are_left_alone(form: str, tmp_path: Path) -> None:
    assert expand_factors.apply(build(LEFT_ALONE[form]), tmp_path) == 0


def test_sums_are_left_alone(tmp_path: Path) -> None:
    assert expand_factors.apply(build(FORMS["heads"], "Add"), tmp_path) == 0


@pytest.mark.parametrize("activations", ["uint16", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_the_product_is_right_on_the_chip(form: str, activations: str, tmp_path: Path) -> None:
    calls, found = feeds(FORMS[form]), []
    for name, take in (("before", without_rewrites), ("after", with_rewrites)):
        component = take(tmp_path / name, build(FORMS[form]))
        made = component.quantize("all", component.calibrate(calls), activations=activations)
        chip = on_chip(made, calls, tmp_path / name / "out")
        assert chip.cpu_ops == set()
        found.append(sqnr_db(on_cpu(made, calls), chip.outputs, "y"))

    assert found[1] > (70 if activations == "uint16" else 40)
    assert form == "a one between" or found[0] < 0, "HTP takes it now: without, it would cost less"


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_what_is_left_alone_is_right_on_the_chip(form: str, tmp_path: Path) -> None:
    calls = feeds(LEFT_ALONE[form])
    component = with_rewrites(tmp_path / "model", build(LEFT_ALONE[form]))
    made = component.quantize("all", component.calibrate(calls))
    chip = on_chip(made, calls, tmp_path / "out")
    assert sqnr_db(on_cpu(made, calls), chip.outputs, "y") > 70
