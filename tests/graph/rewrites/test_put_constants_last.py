from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.products import put_constants_last
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = 64, 384
CONSTANTS: dict[str, ArrayLike] = {
    "w": (RANDOM.normal(size=(COLUMNS, COLUMNS)) / 20).astype(np.float32),
    "c": RANDOM.normal(size=COLUMNS).astype(np.float32),
    "all": RANDOM.normal(size=(1, ROWS, COLUMNS)).astype(np.float32),
    "one": np.array([0.7], np.float32),
}


def model_of(body: str) -> ModelProto:
    edges = f"float[1,{ROWS},{COLUMNS}] x) => (float[1,{ROWS},{COLUMNS}] y)"
    return graph(f"g ({edges} {{ {body} }}", CONSTANTS)


def calls() -> list[dict[str, NDArray[np.float32]]]:
    return [{"x": np.random.default_rng(seed).normal(size=(1, ROWS, COLUMNS)).astype(np.float32)} for seed in range(2)]


def test_a_constant_that_is_spread_comes_last(tmp_path: Path) -> None:
    model, feed = model_of("m = MatMul (x, w) y = Add (c, m)"), calls()[0]
    before = outputs(model, feed)["y"]

    assert apply_all(model, tmp_path)["put_constants_last"] == 1

    assert [[*node.input] for node in model.graph.node if node.op_type == "Add"] == [["m", "c"]]
    np.testing.assert_array_equal(outputs(model, feed)["y"], before)
    assert put_constants_last.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    "body",
    ["y = Add (x, c)", "y = Add (one, x)", "y = Add (all, x)", "y = Sub (c, x)", "k = Identity (c) y = Add (k, x)"],
    ids=["last", "one number", "as many numbers", "a difference", "a computed row"],
)
def test_other_sums_stay_as_they_are(body: str, tmp_path: Path) -> None:
    assert put_constants_last.apply(model_of(body), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint16", "uint8"])
@pytest.mark.parametrize("body", ["m = MatMul (x, w) y = Add (c, m)", "m = Mul (x, x) y = Add (c, m)"])
def test_the_compiler_writes_it_once(activations: str, body: str, tmp_path: Path) -> None:
    sizes, results = [], []
    for made in (with_rewrites, without_rewrites):
        component = made(tmp_path / made.__name__, model_of(body))
        quantized = component.quantize("all", component.calibrate(calls()), activations=activations)
        chip = on_chip(quantized, calls(), tmp_path / f"chip {made.__name__}")
        sizes.append((tmp_path / f"chip {made.__name__}" / "net_ctx_qnn.bin").stat().st_size)
        results.append(chip.outputs)
    repeated = ROWS * COLUMNS * (2 if activations == "uint16" else 1)
    assert sizes[1] - sizes[0] > 0.8 * repeated  # when this fails, the rewrite has no use any more
    for with_it, without in zip(*results, strict=True):
        np.testing.assert_array_equal(with_it["y"], without["y"])
