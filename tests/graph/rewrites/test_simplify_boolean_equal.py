from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import simplify_boolean_equal
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, with_rewrites

X = np.array([[-2, -1, 0, 1, 2, 3]], np.float32)
FORMS = {
    "with true": ("e = Equal (b, true)", {"Less": 1, "Where": 1}),
    "with true, turned": ("e = Equal (true, b)", {"Less": 1, "Where": 1}),
    "with false": ("e = Equal (b, false)", {"Less": 1, "Not": 1, "Where": 1}),
    "of both kinds": ("e = Equal (b, mixed)", {"Less": 1, "Xor": 1, "Not": 1, "Where": 1}),
    "with more dims": ("l = Equal (b, wide)  e = Reshape (l, dims)", {
        "Less": 1, "Xor": 1, "Not": 1, "Reshape": 1, "Where": 1,
    }),
    "of two that are computed": ("c = Less (x, two)  e = Equal (b, c)", {"Less": 2, "Xor": 1, "Not": 1, "Where": 1}),
}  # fmt: skip
OTHERS = {"of numbers": "e = Equal (x, one)"}
CONSTANTS: dict[str, NDArray[Any]] = {
    "true": np.array(True), "false": np.array([False]), "mixed": np.array([True, False] * 3),
    "wide": np.ones((1, 1, 6), bool), "dims": np.array([1, 6]),
    "one": np.array(1, np.float32), "two": np.array(2, np.float32),
}  # fmt: skip


def build(body: str) -> ModelProto:
    text = f"b = Less (x, one)  {body}  y = Where (e, x, one)"
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: array for name, array in CONSTANTS.items() if name in words}
    return graph(f"g (float[1,6] x) => (float[1,6] y) {{ {text} }}", used)


@pytest.mark.parametrize("form", FORMS)
def test_the_result_stays_what_it_was(form: str, tmp_path: Path) -> None:
    body, made = FORMS[form]
    model = build(body)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["simplify_boolean_equal"] == 1

    assert operators(model) == made
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
    assert simplify_boolean_equal.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", OTHERS)
def test_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert simplify_boolean_equal.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_an_output_keeps_its_name(tmp_path: Path) -> None:
    model = graph("g (bool[4] b) => (bool[4] y) { y = Equal (b, true) }", {"true": CONSTANTS["true"]})
    assert simplify_boolean_equal.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", ["with true", "of both kinds", "of two that are computed"])
def test_all_of_it_runs_on_the_chip(form: str, tmp_path: Path) -> None:
    component = with_rewrites(tmp_path / "model", build(FORMS[form][0]))
    calls = [{"x": X}]

    chip = on_chip(component.quantize("all", component.calibrate(calls)), calls, tmp_path / "on chip")

    assert chip.context.partitions == 1
    assert chip.cpu_ops == set()
    np.testing.assert_allclose(chip.outputs[0]["y"], on_cpu(component.ingest, calls)[0]["y"], atol=1e-3)
