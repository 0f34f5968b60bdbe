from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import flatten_output_casts
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, with_rewrites

RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Any] = {"k": (RNG.normal(size=(3, 3, 3, 3)) * 0.3).astype(np.float32), "most": np.float32(255)}
X = RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)
TYPES = {"uint8": 2, "int32": 6, "int64": 7}


def picture(kind: str) -> ModelProto:
    body = f"c = Conv <pads = [1, 1, 1, 1]> (x, k) s = Sigmoid (c) m = Mul (s, most) y = Cast <to = {TYPES[kind]}> (m)"
    return graph(f"g (float[1,3,8,8] x) => ({kind}[1,3,8,8] y) {{ {body} }}", CONSTANTS)


@pytest.mark.parametrize("kind", TYPES)
def test_integers_of_an_output_are_cast_in_a_row(kind: str, tmp_path: Path) -> None:
    model = picture(kind)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["flatten_output_casts"] == 1

    assert [node.op_type for node in model.graph.node][-3:] == ["Reshape", "Cast", "Reshape"]
    after = outputs(model, {"x": X})["y"]
    np.testing.assert_array_equal(after, before)
    assert after.dtype == kind
    assert flatten_output_casts.apply(model, tmp_path) == 0


@pytest.mark.parametrize(("kind", "number"), [("int8", 3), ("int16", 5), ("uint16", 4)])
def test_types_that_the_chip_has_not_are_cast_to_at_the_edge(kind: str, number: int, tmp_path: Path) -> None:
    body = f"a = Abs (x) m = Mul (a, most) y = Cast <to = {number}> (m)"
    model = graph(f"g (float[1,3,8,8] x) => ({kind}[1,3,8,8] y) {{ {body} }}", {"most": np.float32(9)})
    before = outputs(model, {"x": X})["y"]
    assert flatten_output_casts.apply(model, tmp_path) == 1
    after = outputs(model, {"x": X})["y"]
    np.testing.assert_array_equal(after, before)
    assert after.dtype == kind
    component = with_rewrites(tmp_path, model)
    chip = on_chip(component.quantize("all", component.calibrate([{"x": X}])), [{"x": X}], tmp_path / "out")
    assert {node.op for node in chip.context.cpu_nodes} == {"QuantizeLinear", "Cast"}
    assert not chip.context.fallbacks
    assert np.abs(chip.outputs[0]["y"].astype(int) - before).max() <= 1


def test_a_row_becomes_a_list(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (int64[1,64] y) { y = Cast <to = 7> (x) }")
    flatten_output_casts.apply(model, tmp_path)
    assert list(outputs(model, {"x": X.reshape(-1, 64)[:1]})["y"].shape) == [1, 64]
    assert flatten_output_casts.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,64] x) => (double[1,64] y) { y = Cast <to = 11> (x) }",
        "g (float[1,64] x) => (bool[1,64] y) { y = Cast <to = 9> (x) }",
        "g (int32[1,64] x) => (int64[1,64] y) { y = Cast <to = 7> (x) }",
        "g (float[1,64] x) => (int32[1,64] y) { c = Cast <to = 6> (x) y = Neg (c) }",
        "g (float[1,64] x) => (int32[1,64] y, int32[1,64] z) { y = Cast <to = 6> (x) z = Neg (y) }",
    ],
)
def test_other_casts_are_left_alone(text: str, tmp_path: Path) -> None:
    assert flatten_output_casts.apply(graph(text), tmp_path) == 0


def test_the_chip_gives_no_int64_behind_a_convolution(tmp_path: Path) -> None:
    cured = picture("int64")
    flatten_output_casts.apply(cured, tmp_path)
    before = run_batch([picture("int64")], [{"x": X}], tmp_path / "work")[0]
    after = run_batch([cured], [{"x": X}], tmp_path / "work")[0]

    assert "data size" in before.refused, "QNN gives integers behind a Transpose rightly now: drop flatten_output_casts"
    assert not after.on_cpu
    assert np.abs(after.outputs[0] - outputs(cured, {"x": X})["y"]).max() <= 1
