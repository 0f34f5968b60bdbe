from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.errors import PipelineError
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.products import flatten_products
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, sqnr_db, with_rewrites, without_rewrites

NUMBERS = np.random.default_rng(0)
LEFT = (1, 2, 2, 3, 4)


def product(left: tuple[int, ...], right: tuple[int, ...], *, constant: bool = False) -> ModelProto:
    dims = (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])
    x, y, z = (",".join(map(str, each)) for each in (left, right, dims))
    if constant:
        values = NUMBERS.normal(size=right).astype(np.float32)
        return graph(f"g (float[{x}] x) => (float[{z}] z) {{ z = MatMul (x, y) }}", {"y": values})
    return graph(f"g (float[{x}] x, float[{y}] y) => (float[{z}] z) {{ z = MatMul (x, y) }}")


def numbers(model: ModelProto) -> dict[str, np.ndarray]:
    return {
        value.name: NUMBERS.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }


@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [
        (LEFT, (1, 2, 2, 4, 5), False),
        (LEFT, (1, 2, 2, 4, 5), True),
        (LEFT, (4, 5), False),
        (LEFT, (4, 5), True),
        (LEFT, (1, 1, 1, 4, 5), True),
        (LEFT, (2, 4, 5), False),
        ((2, 1, 1, 3, 4), (2, 2, 1, 4, 5), False),
        ((3, 4), (1, 2, 2, 4, 5), False),
        ((2, 1, 2, 1, 3, 4), (1, 3, 1, 2, 4, 5), False),
        ((3, 4), (1, 1, 1, 4, 5), True),
        ((2, 3, 4), (1, 1, 1, 4, 5), False),
    ],
)
def test_products_of_many_dims_are_flat(
    left: tuple[int, ...], right: tuple[int, ...], constant: bool, tmp_path: Path
) -> None:
    model = product(left, right, constant=constant)
    feeds = numbers(model)
    before = outputs(model, feeds)["z"]

    assert apply_all(model, tmp_path)["flatten_products"] == 1

    after = outputs(model, feeds)["z"]
    assert after.shape == before.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert flatten_products.apply(model, tmp_path) == 0
    assert operators(model)["MatMul"] == 1


def from_the_left(weights: tuple[int, ...]) -> ModelProto:
    values = NUMBERS.normal(size=weights).astype(np.float32)
    return graph("g (float[2,2,2,4,5] x) => (float[2,2,2,3,5] z) { z = MatMul (w, x) }", {"w": values})


@pytest.mark.parametrize("weights", [(3, 4), (1, 1, 1, 3, 4)])
def test_weights_from_the_left_stay_weights(weights: tuple[int, ...], tmp_path: Path) -> None:
    model = from_the_left(weights)
    feeds = numbers(model)
    before = outputs(model, feeds)["z"]

    assert flatten_products.apply(model, tmp_path) == 1

    np.testing.assert_allclose(outputs(model, feeds)["z"], before, rtol=1e-5, atol=1e-6)
    (node,) = (node for node in model.graph.node if node.op_type == "MatMul")
    assert node.input[0] in {tensor.name for tensor in model.graph.initializer}


def test_weights_of_some_batches_from_the_left_are_left_alone(tmp_path: Path) -> None:
    assert flatten_products.apply(from_the_left((2, 1, 1, 3, 4)), tmp_path) == 0


@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [((2, 2, 3, 4), (2, 2, 4, 5), False), ((3, 4), (4, 5), False), (LEFT, (2, 4, 5), True)],
)
def test_what_is_left_alone(left: tuple[int, ...], right: tuple[int, ...], constant: bool, tmp_path: Path) -> None:
    model = product(left, right, constant=constant)
    before = model.SerializeToString()
    assert flatten_products.apply(model, tmp_path) == 0
    assert model.SerializeToString() == before


@pytest.mark.slow
def test_htp_computes_it(tmp_path: Path) -> None:
    model = product(LEFT, (1, 2, 2, 4, 5))
    feeds = [numbers(model)]
    truth = [outputs(model, feeds[0])]
    found = {}
    for name, make in (("with", with_rewrites), ("without", without_rewrites)):
        component = make(tmp_path / name, ModelProto.FromString(model.SerializeToString()))
        quantized = component.quantize("all", component.calibrate(feeds), activations="uint8")
        found[name] = on_chip(quantized, feeds, tmp_path / name / "chip").outputs
    assert sqnr_db(truth, found["with"], "z") > 30
    assert sqnr_db(truth, found["without"], "z") < 5, "if this fails, the rewrite is no longer needed"


@pytest.mark.slow
def test_htp_compiles_it(tmp_path: Path) -> None:
    model = product(LEFT, (1, 2, 2, 4, 5), constant=True)
    feeds = [numbers(model)]
    component = with_rewrites(tmp_path / "with", ModelProto.FromString(model.SerializeToString()))
    quantized = component.quantize("all", component.calibrate(feeds))
    assert sqnr_db([outputs(model, feeds[0])], on_chip(quantized, feeds, tmp_path / "chip").outputs, "z") > 30
    component = without_rewrites(tmp_path / "without", model)
    with pytest.raises(PipelineError):
        on_chip(component.quantize("all", component.calibrate(feeds)), feeds, tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint8", "uint16"])
@pytest.mark.parametrize("weights", [(3, 4), (1, 1, 1, 3, 4)])
def test_htp_computes_weights_from_the_left(weights: tuple[int, ...], activations: str, tmp_path: Path) -> None:
    model = from_the_left(weights)
    feeds = [numbers(model)]
    component = with_rewrites(tmp_path / "with", ModelProto.FromString(model.SerializeToString()))
    quantized = component.quantize("all", component.calibrate(feeds), activations=activations)
    assert sqnr_db([outputs(model, feeds[0])], on_chip(quantized, feeds, tmp_path / "chip").outputs, "z") > 30
