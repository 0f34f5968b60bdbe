from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites.products import add_spare_columns
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

Dims = tuple[int, ...]

# The dims in front and behind, and of how many rows the layer is.
FORMS: dict[str, tuple[Dims, Dims, int]] = {
    "a picture": ((1, 8, 4, 4), (1, 8, 4, 8), 1),
    "of its own size": ((1, 8, 16), (1, 8, 16), 1),
    "a batch": ((2, 8, 16), (2, 8, 32), 2),
    "a spectrum": ((3, 16, 1), (3, 16, 2), 3),
    "heads": ((2, 4, 4, 8), (2, 4, 4, 16), 8),
    "a leading one less": ((1, 8, 16), (8, 32), 1),
}
LEFT_ALONE: dict[str, tuple[Dims, Dims, int]] = {
    "other dims": ((2, 8, 16), (2, 4, 32), 2),
    "over the last dim": ((2, 8, 16), (2, 8, 32), 16),
    "more dims": ((1, 8, 16), (1, 8, 4, 8), 1),
    "fewer dims": ((1, 8, 4, 4), (1, 8, 32), 1),
}
LAYERS = {
    "MatMul": "m = MatMul (r, w)",
    "Gemm": "m = Gemm (r, w)",
    "transposed": "m = Gemm <transB = 1> (r, t)",
    "a bias of zeros": "m = Gemm (r, w, zeros)",
    "zeros added": "p = MatMul (r, w) m = Add (p, zeros)",
}


def build(form: tuple[Dims, Dims, int], layer: str = "MatMul") -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    numbers, (before, after, rows) = np.random.default_rng(0), form
    inner, columns = int(np.prod(before)) // rows, int(np.prod(after)) // rows
    w = numbers.normal(size=(inner, columns)).astype(np.float32)
    body = f"q = Relu (x)  r = Reshape (q, flat)  {LAYERS[layer]}  n = Reshape (m, dims)  y = Relu (n)"
    known: dict[str, NDArray[Any]] = {
        "w": w, "t": np.ascontiguousarray(w.T), "zeros": np.zeros(columns, np.float32),
        "flat": np.array([rows, inner]), "dims": np.array(after),
    }  # fmt: skip
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    model = graph(
        f"g (float{list(before)} x) => (float{list(after)} y) {{ {body} }}",
        {name: value for name, value in known.items() if name in words},
    )
    return model, {"x": numbers.normal(size=before).astype(np.float32)}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_column_is_added_and_left_out(form: str, layer: str, tmp_path: Path) -> None:
    model, feeds = build(FORMS[form], layer)
    before = outputs(model, feeds)["y"]

    assert add_spare_columns.apply(model, tmp_path) == 1

    assert operators(model)["Slice"] == 1
    np.testing.assert_allclose(outputs(model, feeds)["y"], before, rtol=1e-5, atol=1e-5)
    assert add_spare_columns.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_others_are_left_alone(form: str, tmp_path: Path) -> None:
    assert add_spare_columns.apply(build(LEFT_ALONE[form])[0], tmp_path) == 0


def test_a_bias_is_enough(tmp_path: Path) -> None:
    text = """g (float[1,8,16] x) => (float[1,8,32] y) {
        r = Flatten (x)  m = Gemm (r, w, b)  y = Reshape (m, dims)
    }"""
    numbers = np.random.default_rng(0)
    constants = {
        "w": numbers.normal(size=(128, 256)).astype(np.float32), "b": numbers.normal(size=256).astype(np.float32),
        "dims": np.array([1, 8, 32]),
    }  # fmt: skip
    assert add_spare_columns.apply(graph(text, constants), tmp_path) == 0


@pytest.mark.parametrize("precision", ["fp16", "uint16", "uint8"])
@pytest.mark.parametrize(
    ("form", "layer"), [*((form, "MatMul") for form in FORMS), *(("a picture", layer) for layer in LAYERS)]
)
def test_the_chip_is_right(form: str, layer: str, precision: str, tmp_path: Path) -> None:
    model, feeds = build(FORMS[form], layer)
    component = with_rewrites(tmp_path / "model", model)
    made = component.rewrite["all"]
    if precision != "fp16":
        made = component.quantize("all", component.calibrate([feeds]), activations=precision)

    chip = on_chip(made, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(made, [feeds]), chip.outputs, "y") > (60 if precision != "uint8" else 40)


def test_weights_in_blocks_have_room_for_it(tmp_path: Path) -> None:
    model, feeds = build(FORMS["a picture"])
    component = with_rewrites(tmp_path / "model", model)
    made = component.quantize("all", component.calibrate([feeds]), weights="int8", block=32)
    chip = on_chip(made, [feeds], tmp_path / "chip")
    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(made, [feeds]), chip.outputs, "y") > 60


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_what_is_left_alone_is_right_on_the_chip(form: str, tmp_path: Path) -> None:
    model, feeds = build(LEFT_ALONE[form])
    component = with_rewrites(tmp_path / "model", model)
    chip = on_chip(component.rewrite["all"], [feeds], tmp_path / "chip")
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") > 60


def test_the_chip_is_wrong_without(tmp_path: Path) -> None:
    model, feeds = build(FORMS["a picture"])
    component = without_rewrites(tmp_path / "model", model)
    chip = on_chip(component.rewrite["all"], [feeds], tmp_path / "chip")
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") < 5, "drop add_spare_columns"
