from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.norms import convert_group_norms
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

GROUPS = "y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, scale, bias)"
ALL = "y = MeanVarianceNormalization <axes = [0, 2, 3]> (x)"
RESHAPED = {"Reshape": 2, "InstanceNormalization": 1, "Mul": 1, "Add": 1}


def build(body: str, dims: str, opset: int = 17, parameters: int = 6) -> ModelProto:
    numbers = np.random.default_rng(0)
    constants = {name: numbers.normal(1, 0.3, parameters).astype(np.float32) for name in ("scale", "bias")}
    return graph(
        f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}", constants if "scale" in body else {}, opset=opset
    )


def values(dims: str, seed: int = 0) -> NDArray[np.float32]:
    shape = [int(dim) for dim in dims.split(",")]
    return np.random.default_rng(seed).normal(1, 2, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("dims", "opset", "parameters"), [("1,6,9", 21, 6), ("2,6,4,5", 21, 6), ("1,6,9", 18, 2), ("1,2,3,4,5", 21, 2)]
)
def test_groups(dims: str, opset: int, parameters: int, tmp_path: Path) -> None:
    model, x = build(GROUPS, dims, opset, parameters), values(dims)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["convert_group_norms"] == 1

    assert operators(model) == RESHAPED
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=1e-5)
    assert convert_group_norms.apply(model, tmp_path) == 0


def test_a_computed_scale(tmp_path: Path) -> None:
    body = f"scale = ReduceMean <keepdims = 0> (x, axes) bias = Neg (scale) {GROUPS}"
    model = graph(f"g (float[1,6,9] x) => (float[1,6,9] y) {{ {body} }}", {"axes": np.array([0, 2])}, opset=21)
    x = values("1,6,9")
    before = outputs(model, {"x": x})["y"]
    assert convert_group_norms.apply(model, tmp_path) == 1
    assert "GroupNormalization" not in operators(model)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dims", "axes"), [("1,6,4,5", "[0, 2, 3]"), ("1,6,9", "[0, 2]"), ("1,6,9", "[-1]")])
def test_mean_and_variance_of_each_channel(dims: str, axes: str, tmp_path: Path) -> None:
    model, x = build(ALL.replace("[0, 2, 3]", axes), dims), values(dims)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["convert_group_norms"] == 1

    assert operators(model) == {"InstanceNormalization": 1}
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "dims"),
    [
        pytest.param(ALL, "2,6,4,5", id="over two samples"),
        pytest.param(ALL.replace("[0, 2, 3]", "[0, 1, 2]"), "1,6,9", id="over the channels"),
    ],
)
def test_left_alone(body: str, dims: str, tmp_path: Path) -> None:
    model = graph(f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}", {})
    before = operators(model)

    assert convert_group_norms.apply(model, tmp_path) == 0

    assert operators(model) == before


@pytest.mark.parametrize("weights", ["uint8", "int16"])
@pytest.mark.parametrize(("body", "dims"), [(GROUPS, "1,6,24"), (ALL, "1,6,4,5")], ids=["groups", "all"])
def test_all_of_it_runs_on_the_chip(body: str, dims: str, weights: str, tmp_path: Path) -> None:
    """With weights of 16 bits, too: QNN takes no InstanceNormalization whose scale has so many."""
    calls = [{"x": values(dims, seed)} for seed in range(3)]
    component = with_rewrites(tmp_path / "model", build(body, dims, 21 if body == GROUPS else 17))
    quantized = component.quantize("all", component.calibrate(calls), weights=weights)

    chip = on_chip(quantized, calls[:1], tmp_path / "on chip")

    assert chip.context.partitions == 1
    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls[:1]), chip.outputs, "y") > 40
