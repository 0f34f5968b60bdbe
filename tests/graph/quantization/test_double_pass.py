"""A float32 model in float64: what each operator gives, what is left in float32, and that processors agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.cpu import run, unoptimized_session
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.double_pass import Wide, in_double, widened_once
from tests.support.graphs import graph

Arrays = Mapping[str, NDArray[Any]]


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def widened(text: str, given: Arrays, outputs: tuple[str, ...] = ("y",), *, opset: int = 17) -> tuple[GraphIndex, Wide]:
    index = GraphIndex(graph(text, given, opset=opset), Path())
    return index, in_double(index, outputs)


def both(text: str, given: Arrays, feeds: Arrays, *, opset: int = 17) -> tuple[NDArray[Any], NDArray[Any]]:
    """``y`` in float32, and in float64."""
    index, wide = widened(text, given, opset=opset)
    assert not wide.doubtful
    single = run(unoptimized_session(index.model, Path()), feeds)["y"]
    double = run(unoptimized_session(wide.model, Path()), feeds)[wide.outputs["y"]]
    assert double.dtype == np.float64
    return single, double


PICTURE = "net (float[1, 6, 11, 9] x) => (float[{}] y) {{ y = {} }}"
WEIGHTS: Arrays = {
    "w": drawn(8, 6, 3, 3, seed=1), "g": drawn(8, 3, 3, 2, seed=2), "d": drawn(6, 1, 3, 3, seed=3),
    "b": drawn(8, seed=4), "t": drawn(6, 4, 3, 3, seed=5), "u": drawn(6, 2, 2, 3, seed=6), "c": drawn(4, seed=7),
    "slope": drawn(6, 1, 1, seed=8), "none": np.zeros(0, np.float32), "twice": np.array([1, 1, 2, 2], np.float32),
    "size": np.array([1, 6, 17, 5], np.int64),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "made"),
    [
        ("1, 8, 11, 9", "Conv <pads = [1, 1, 1, 1]> (x, w, b)"),
        ("1, 8, 5, 4", "Conv <strides = [2, 2]> (x, w)"),
        ("1, 8, 6, 5", 'Conv <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w)'),
        ("1, 8, 6, 5", 'Conv <strides = [2, 2], auto_pad = "SAME_LOWER"> (x, w, b)'),
        ("1, 8, 7, 8", "Conv <dilations = [2, 1], group = 2> (x, g)"),
        ("1, 6, 12, 9", "Conv <group = 6, pads = [2, 1, 1, 1]> (x, d)"),
        ("1, 4, 13, 11", "ConvTranspose (x, t, c)"),
        ("1, 4, 22, 18", "ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (x, t, c)"),
        ("1, 4, 31, 20", "ConvTranspose <strides = [3, 2], group = 2, dilations = [1, 2], pads = [1, 1, 0, 0]> (x, u)"),
        ("1, 6, 5, 4", "AveragePool <kernel_shape = [3, 2], strides = [2, 2]> (x)"),
        ("1, 6, 1, 1", "GlobalAveragePool (x)"),
        ("1, 6, 22, 18", 'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (x, none, twice)'),
        ("1, 6, 17, 5", 'Resize <mode = "nearest", nearest_mode = "floor"> (x, none, none, size)'),
        ("1, 6, 17, 5", 'Resize <mode = "nearest", nearest_mode = "ceil"> (x, none, none, size)'),
        ("1, 6, 17, 5", 'Resize <mode = "linear"> (x, none, none, size)'),
        ("1, 6, 17, 5", 'Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , , size)'),
        (
            "1, 6, 17, 5",
            'Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , , size)',
        ),
        ("1, 6, 11, 9", "Erf (x)"),
        ("1, 6, 11, 9", "Elu <alpha = 0.5> (x)"),
        ("1, 6, 11, 9", "Softplus (x)"),
        ("1, 6, 11, 9", "HardSigmoid <alpha = 0.3> (x)"),
        ("1, 6, 11, 9", "HardSwish (x)"),
        ("1, 6, 11, 9", "LeakyRelu (x)"),
        ("1, 6, 11, 9", "PRelu (x, slope)"),
        ("1, 6, 11, 9", "Softmax (x)"),
        ("1, 6, 11, 9", "Mul (x, slope)"),
    ],
)
def test_an_operator_gives_what_it_gives_in_float32(dims: str, made: str) -> None:
    single, double = both(PICTURE.format(dims, made), WEIGHTS, {"x": 3 * drawn(1, 6, 11, 9)})
    assert np.abs(double - single).max() < 2e-6 * np.abs(single).max()


@pytest.mark.parametrize("how", ["", '<approximate = "tanh">'])
def test_gelu(how: str) -> None:
    text = f"net (float[4, 99] x) => (float[4, 99] y) {{ y = Gelu {how} (x) }}"
    single, double = both(text, {}, {"x": 3 * drawn(4, 99)}, opset=20)
    assert np.abs(double - single).max() < 2e-6


@pytest.mark.parametrize(("axis", "size"), [(-1, (99,)), (1, (4, 99))])
@pytest.mark.parametrize(("kind", "opset"), [("RMSNormalization", 23), ("SimplifiedLayerNormalization", 17)])
def test_rms_norm(axis: int, size: tuple[int, ...], kind: str, opset: int) -> None:
    text = f"net (float[2, 4, 99] x) => (float[2, 4, 99] y) {{ y = {kind} <axis = {axis}> (x, gamma) }}"
    single, double = both(text, {"gamma": drawn(*size)}, {"x": 3 * drawn(2, 4, 99)}, opset=opset)
    assert np.abs(double - single).max() < 2e-6 * np.abs(single).max()


def test_a_large_conv_is_added_up_place_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.graph.quantization.calibration.double_windows._ELEMENTS_AT_ONCE", 1)
    text = PICTURE.format("1, 8, 7, 8", "Conv <dilations = [2, 1], group = 2> (x, g, b)")
    single, double = both(text, WEIGHTS, {"x": drawn(1, 6, 11, 9)})
    assert np.abs(double - single).max() < 2e-6 * np.abs(single).max()


def test_what_is_looked_up_is_widened_and_not_the_table() -> None:
    text = "net (int64[1, 3] ids) => (float[1, 3, 4] y) { e = Gather (table, ids) y = Add (e, e) }"
    _, wide = widened(text, {"table": drawn(1000, 4)})
    kinds = [node.op_type for node in wide.model.graph.node]
    assert kinds == ["Gather", "Cast", "Add"]


LSTM = """
net (float[3, 1, 4] x) => (float[3, 1, 1, 5] y)
{
  a = Add (x, x)
  h = LSTM <hidden_size = 5> (a, w, r)
  y = Relu (h)
}
"""


def test_what_float64_is_not_to_be_had_for_is_named_with_all_that_follows() -> None:
    index, wide = widened(LSTM, {"w": drawn(1, 20, 4), "r": drawn(1, 20, 5)}, ("a", "y"))
    assert wide.doubtful == {"h", "y"}
    feeds = {"x": drawn(3, 1, 4)}
    single = run(unoptimized_session(index.model, Path()), feeds)["y"]
    double = run(unoptimized_session(wide.model, Path()), feeds)[wide.outputs["y"]]
    assert np.abs(double - single).max() < 1e-6


@pytest.mark.parametrize(("size", "doubtful"), [(8, set()), (9, {"a", "y"})])
def test_a_pool_whose_windows_reach_beyond_the_end_stays_in_float32(size: int, doubtful: set[str]) -> None:
    """What follows reads it in float64 all the same."""
    text = f"""g (float[1,3,{size},{size}] x) => (float[d0,d1,d2,d3] y) {{
        a = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1, count_include_pad = 0> (x)
        y = Conv (a, w) }}"""
    index, wide = widened(text, {"w": drawn(4, 3, 1, 1)})
    assert wide.doubtful == doubtful
    feeds = {"x": drawn(1, 3, size, size)}
    single = run(unoptimized_session(index.model, Path()), feeds)["y"]
    double = run(unoptimized_session(wide.model, Path()), feeds)[wide.outputs["y"]]
    assert double.dtype == np.float64
    assert np.abs(double - single).max() < 1e-5


def test_sums_in_another_order_fall_to_the_same_side_of_every_rounding() -> None:
    """What the inputs of a weight are rounded to does not hang on the order of sums; in float32 it does."""
    x, w = drawn(400, 700, seed=1), drawn(700, 300, seed=2) / 9
    turned = np.random.default_rng(3).permutation(700)
    text = "net (float[400, 700] x) => (float[400, 300] y) { a = MatMul (x, w) y = Softmax (a) }"
    found = {}
    for name, order in (("one", np.arange(700)), ("other", turned)):
        index, wide = widened(text, {"w": w[order]})
        feeds = {"x": np.ascontiguousarray(x[:, order])}
        found["float32", name] = run(unoptimized_session(index.model, Path()), feeds)["y"]
        found["float64", name] = run(unoptimized_session(wide.model, Path()), feeds)[wide.outputs["y"]]
    off = {
        kind: float(np.abs(found[kind, "one"] / found[kind, "other"].astype(np.float64) - 1).max())
        for kind in ("float32", "float64")
    }
    assert off["float32"] > 1e-7
    assert off["float64"] < 1e-12


def test_weights_are_widened_once_where_they_are_few() -> None:
    text = "net (float[2, 6] x) => (float[2, 4] y) { a = MatMul (x, w) y = MatMul (a, v) }"
    index, wide = widened(text, {"w": drawn(6, 5), "v": drawn(5, 4)})
    feeds = {"x": drawn(2, 6)}
    expected = run(unoptimized_session(wide.model, Path()), feeds)[wide.outputs["y"]]

    given = widened_once(index, wide.model, 8 * 30)

    assert [array.shape for array in given.values()] == [(6, 5)]
    assert [tensor.name for tensor in wide.model.graph.initializer] == ["v"]
    made = run(unoptimized_session(wide.model, Path()), {**feeds, **given})[wide.outputs["y"]]
    assert (made == expected).all()
