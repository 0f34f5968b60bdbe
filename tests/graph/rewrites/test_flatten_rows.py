from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.products import flatten_rows
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, sqnr_db, with_rewrites, without_rewrites

SHAPES = {"windows": (4, 49, 64), "channels last": (1, 7, 7, 64), "a batch of single rows": (16, 1, 64)}


def linear(*shape: int) -> ModelProto:
    weight = (np.random.default_rng(0).normal(size=(shape[-1], 96)) / 8).astype(np.float32)
    given, made = (",".join(map(str, dims)) for dims in (shape, (*shape[:-1], 96)))
    model = graph(f"g (float[{given}] x) => (float[{made}] y) {{ y = MatMul(x, w) }}", {"w": weight})
    model.graph.node[0].name = "proj"
    return model


def calls(*shape: int) -> list[dict[str, NDArray[np.float32]]]:
    return [{"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)} for seed in range(4)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_of_all_batches_are_multiplied_at_once(shape: tuple[int, ...], tmp_path: Path) -> None:
    model, feed = linear(*shape), calls(*shape)[0]
    before = outputs(model, feed)["y"]

    assert apply_all(model, tmp_path)["flatten_rows"] == 1

    assert operators(model) == {"Reshape": 2, "MatMul": 1}
    assert [node.name for node in model.graph.node if node.op_type == "MatMul"] == ["proj"], "a rule may name it"
    np.testing.assert_allclose(outputs(model, feed)["y"], before, rtol=1e-5, atol=1e-6)
    assert flatten_rows.apply(model, tmp_path) == 0


def test_what_another_rewrite_made_has_no_name_twice(tmp_path: Path) -> None:
    model = linear(4, 49, 64)
    model.graph.node[0].name = "y_made"
    assert flatten_rows.apply(model, tmp_path) == 1
    names = [node.name for node in model.graph.node]
    assert len({*names}) == len(names)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,8,64] x) => (float[1,8,64] y) { y = MatMul(x, w) }",
        "g (float[8,64] x) => (float[8,64] y) { y = MatMul(x, w) }",
        "g (float[2,8,64] x, float[64,64] z) => (float[2,8,64] y) { y = MatMul(x, z) }",
        "g (float[2,64,8] x) => (float[2,64,8] y) { y = MatMul(w, x) }",
    ],
    ids=["one batch", "a matrix", "a computed matrix", "a matrix from the left"],
)
def test_other_products_stay_as_they_are(text: str, tmp_path: Path) -> None:
    model = graph(text, {"w": np.ones((64, 64), np.float32)} if "w)" in text or "(w" in text else {})
    assert flatten_rows.apply(model, tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_qnn_compiles_weights_in_blocks_of_them(shape: tuple[int, ...], tmp_path: Path) -> None:
    feed = calls(*shape)
    with_it = with_rewrites(tmp_path / "with", linear(*shape))
    chip = on_chip(with_it.quantize("all", with_it.calibrate(feed), weights="int8", block=32), feed, tmp_path / "out")
    assert sqnr_db([outputs(linear(*shape), each) for each in feed], chip.outputs, "y") > 40
    without = without_rewrites(tmp_path / "without", linear(*shape))
    with pytest.raises(Exception, match="compiled nothing"):  # when this passes, the rewrite has no use any more
        on_chip(without.quantize("all", without.calibrate(feed), weights="int8", block=32), feed, tmp_path / "none")
