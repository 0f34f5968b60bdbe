"""shape: the static model computes exactly what the dynamic one does, and what can't be static is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from pipeline.graph.files.model_file import CONSTANTS, MODEL, WEIGHTS, load_graph, tensor_array
from pipeline.graph.shapes import folding
from pipeline.model import StageInput
from tests.support import graphs
from tests.support.sources import ingested, model, numbers, outputs, same, shaped

Feeds = dict[str, NDArray[Any]]
MASK = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])

SAME: dict[str, tuple[ModelProto, dict[str, int], Feeds]] = {
    "a block of a transformer": (
        graphs.attention(),
        {"batch": 2, "sequence": 6},
        {"input_ids": np.arange(12).reshape(2, 6), "attention_mask": MASK},
    ),
    "heads by Shape, Gather, Concat, Reshape": (
        model(
            """g (float[b,n,12] x) => (float[b,n,12] y) {
                s = Shape (x)
                b = Gather (s, zero)  n = Gather (s, one)
                b1 = Unsqueeze (b, axis)  n1 = Unsqueeze (n, axis)
                split = Concat <axis = 0> (b1, n1, heads)
                a = Reshape (x, split)
                t = Transpose <perm = [0, 2, 1, 3]> (a)
                u = Transpose <perm = [0, 2, 1, 3]> (t)
                joined = Concat <axis = 0> (b1, n1, all)
                y = Reshape (u, joined)
            }""",
            {"zero": np.array(0), "one": np.array(1), "axis": np.array([0]), "heads": np.array([3, 4]),
             "all": np.array([-1])},
        ),
        {"b": 2, "n": 5},
        {"x": numbers(2, 5, 12)},
    ),
    "a causal mask by Range, Less, Where, Expand": (
        model(
            """g (float[b,n,n] x) => (float[b,n,n] y) {
                s = Shape (x)
                n = Gather (s, one)
                r = Range (zero, n, one)
                column = Unsqueeze (r, last)
                later = Less (column, r)
                all = Expand (later, s)
                y = Where (all, low, x)
            }""",
            {"zero": np.array(0), "one": np.array(1), "last": np.array([-1]), "low": np.float32(-1e9)},
        ),
        {"b": 2, "n": 40},
        {"x": numbers(2, 40, 40)},
    ),
    "expressions in dims": (
        model(
            "g (float[b,n] x, float[b,n] p) => (float[b,n] y) { c = Concat <axis = 1> (p, x)  y = Add (c, one) }",
            {"one": numbers(1)},
        ),
        {"b": 2, "n": 5, "m": 3},
        {"x": numbers(2, 5), "p": numbers(2, 8)},
    ),
    "a branch chosen by a shape": (
        model(
            """g (float[b,n] x) => (float[b,n] y) {
                s = Size (x)
                large = Greater (s, ten)
                z = If (large) <
                    then_branch = t () => (float[b,n] h) { a = If (large) <
                        then_branch = tt () => (float[b,n] h) { h = Mul (x, w) },
                        else_branch = te () => (float[b,n] c) { c = Neg (x) }>  h = Relu (a) },
                    else_branch = e () => (float[b,n] h) { h = Neg (x) }
                >
                h = Add (z, w)
                y = Identity (h)
            }""",
            {"ten": np.array(10), "w": numbers(400)},
        ),
        {"b": 2, "n": 400},
        {"x": numbers(2, 400)},
    ),
    "contributed operators": (
        model(
            """g (float[b,n,8] x) => (float[b,n,8] y) {
                a = com.microsoft.FusedMatMul <transB = 1> (x, w)
                s = Shape (a)
                r = Reshape (a, s)
                y = com.microsoft.BiasGelu (r, bias)
            }""",
            {"w": numbers(8, 8), "bias": numbers(8)},
        ),
        {"b": 2, "n": 5},
        {"x": numbers(2, 5, 8)},
    ),
    "nothing to do but for the names of the outputs": (
        model(
            """g (float[b,n] x) => (float[b,n] y, float[b,n] z, float[b,n] w) {
                a = Relu (x)
                s = Shape (a)
                y = Expand (a, s)
                z = Identity (a)
                w = Identity (x)
                k = Neg (y)
                dead = Add (k, a)
            }"""
        ),
        {"b": 2, "n": 3},
        {"x": numbers(2, 3)},
    ),
    "CastLike, Dropout, Tile, Squeeze": (
        model(
            """g (float[b,n] x) => (float[b,n] y) {
                c = CastLike (narrow, x)
                d, unread = Dropout (x, ratio, inference)
                t = Tile (d, ones)
                u = Unsqueeze (t, axis)
                q = Squeeze (u, axis)
                y = Mul (q, c)
            }""",
            {"narrow": np.float16(0.5), "ones": np.array([1, 1]), "axis": np.array([1]),
             "ratio": np.float32(0.5), "inference": np.array(False)},
        ),
        {"b": 2, "n": 3},
        {"x": numbers(2, 3)},
    ),
    "a constant output": (
        model("g (float[b,n] x) => (float[b,n] y, int64[2] shape) { y = Relu (x)  shape = Shape (x) }"),
        {"b": 2, "n": 3},
        {"x": numbers(2, 3)},
    ),
    "dims without a name": (
        model(
            "g (float[?,n] x) => (float[?,n] y) { s = Shape <start = -1> (x)  f = Cast <to = 1> (s)  y = Div (x, f) }"
        ),
        {"x[0]": 2, "n": 3},
        {"x": numbers(2, 3)},
    ),
}  # fmt: skip
SAME["expressions in dims"][0].graph.input[1].type.tensor_type.shape.dim[1].dim_param = "n + m"


@pytest.mark.parametrize("case", SAME)
def test_the_static_model_computes_the_same(case: str, tmp_path: Path) -> None:
    source, axes, feeds = SAME[case]
    static = shaped(tmp_path, source, **axes)
    assert same(outputs(static.folder / MODEL, feeds), outputs(source, feeds))


@pytest.mark.parametrize("case", SAME)
def test_every_value_has_a_static_type(case: str, tmp_path: Path) -> None:
    source, axes, _ = SAME[case]
    graph = load_graph(shaped(tmp_path, source, **axes).folder / MODEL).graph
    values = [*graph.input, *graph.output, *graph.value_info]
    assert all(dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim)
    known = {value.name for value in values} | {tensor.name for tensor in graph.initializer}
    assert {name for node in graph.node for name in (*node.input, *node.output) if name} <= known


def operators(static: StageInput) -> dict[str, int]:
    return dict(graphs.operators(load_graph(static.folder / MODEL)))


@pytest.mark.parametrize(
    ("case", "left"),
    [
        ("heads by Shape, Gather, Concat, Reshape", {"Reshape": 2, "Transpose": 2}),
        ("a causal mask by Range, Less, Where, Expand", {"Where": 1}),
        ("a branch chosen by a shape", {"Relu": 1, "Mul": 1, "Add": 1}),
        ("contributed operators", {"MatMul": 1, "Add": 1, "Gelu": 1}),
        ("nothing to do but for the names of the outputs", {"Relu": 1, "Identity": 2}),
        ("CastLike, Dropout, Tile, Squeeze", {"Unsqueeze": 1, "Squeeze": 1, "Mul": 1}),
    ],
)
def test_arithmetic_on_shapes_disappears(case: str, left: dict[str, int], tmp_path: Path) -> None:
    source, axes, _ = SAME[case]
    assert operators(shaped(tmp_path, source, **axes)) == left


def test_a_dropout_that_drops_or_whose_mask_is_read_stays(tmp_path: Path) -> None:
    text = "g (float[n] x, bool flag) => (float[n] y) {{ d, m = Dropout ({inputs})  {rest} }}"
    trains = model(text.format(inputs="x, half, flag", rest="y = Relu (d)"), {"half": np.float32(0.5)})
    masks = model(text.format(inputs="x", rest="c = Cast <to = 1> (m)  y = Mul (d, c)"))
    assert operators(shaped(tmp_path / "a", trains, n=4)) == {"Dropout": 1, "Relu": 1}
    assert operators(shaped(tmp_path / "b", masks, n=4)) == {"Dropout": 1, "Cast": 1, "Mul": 1}


def test_facts(tmp_path: Path) -> None:
    source, axes, _ = SAME["a causal mask by Range, Less, Where, Expand"]
    assert shaped(tmp_path, source, **axes).facts == {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [2, 40, 40]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [2, 40, 40]}],
        "nodes": 1,
        "folded": 6,
        "stale_outputs": [],
        "neutral_pads": 0,
    }


def test_buckets_share_the_weights(tmp_path: Path) -> None:
    taken = ingested(tmp_path, graphs.attention())
    first, second = (shaped(tmp_path, taken, batch=1, sequence=n) for n in (16, 48))
    assert first.files[WEIGHTS] == second.files[WEIGHTS] == taken.files[WEIGHTS]
    weights = [
        [tensor for tensor in load_graph(each.folder / MODEL).graph.initializer if tensor.external_data]
        for each in (first, second)
    ]
    shared = [
        [tensor.SerializeToString() for tensor in some if tensor.external_data[0].value == WEIGHTS] for some in weights
    ]
    assert shared[0] == shared[1]
    assert (len(weights[0]), len(shared[0])) == (7, 6)
    assert first.files[CONSTANTS].bytes == 16 * 32 * 4


def test_a_transformed_weight_goes_to_constants(tmp_path: Path) -> None:
    weight = numbers(64, 16)
    source = model(
        """g (float[n,16] x) => (float[n,16] y) {
            n = Shape <end = 1> (x)
            rows = Slice (w, zero, n, zero)
            same = Reshape (w, like)
            first = Gather <axis = 0> (same, zero)
            a = Add (x, rows)
            y = Add (a, first)
        }""",
        {"w": weight, "zero": np.array([0]), "like": np.array([64, 16])},
    )
    static = shaped(tmp_path, source, n=32)
    graph = load_graph(static.folder / MODEL).graph
    places = {tensor.name: tensor.external_data[0].value for tensor in graph.initializer if tensor.external_data}
    assert places == {"rows": CONSTANTS}
    assert np.array_equal(tensor_array(graph.initializer[-1], static.folder), weight[:32])


def test_results_that_are_too_large_stay_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(
        """g (float[n] x) => (float[n,n] y) {
            s = Shape (x)  m = Concat <axis = 0> (s, s)  z = ConstantOfShape (m)  y = Add (z, x)
        }"""
    )
    assert operators(shaped(tmp_path / "a", source, n=64)) == {"Add": 1}
    monkeypatch.setattr(folding, "FOLD_LIMIT", 64 * 64 * 4 - 1)
    static = shaped(tmp_path / "b", source, n=64)
    assert operators(static) == {"ConstantOfShape": 1, "Add": 1}
    feeds = {"x": numbers(64)}
    assert same(outputs(static.folder / MODEL, feeds), outputs(source, feeds))


def test_large_results_are_computed_when_they_are_written(tmp_path: Path) -> None:
    source = model(
        """g (float[n] x) => (float[n,n] y) {
            s = Shape (x)  m = Concat <axis = 0> (s, s)
            z = ConstantOfShape (m)  e = Exp (z)  y = Add (e, x)
        }"""
    )
    static = shaped(tmp_path, source, n=600)
    assert operators(static) == {"Add": 1}
    assert static.files[CONSTANTS].bytes == 600 * 600 * 4
    feeds = {"x": numbers(600)}
    assert same(outputs(static.folder / MODEL, feeds), outputs(source, feeds))


def test_output_dims_that_are_named_wrongly_are_corrected(tmp_path: Path) -> None:
    source = model("g (float[b,n] x) => (float[b,n] y) { y = Concat <axis = 1> (x, x) }")
    static = shaped(tmp_path, source, b=1, n=4)
    assert static.facts["outputs"] == [{"name": "y", "dtype": "float32", "shape": [1, 8]}]
    assert static.facts["stale_outputs"] == ["y[1] is named 'n' (4) and is 8"]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("float[16,4] y", "y[0] is declared 16 and is 8"),
        ("float[n,4,1] y", "y is declared float32 [n, 4, 1] and is float32 [8, 4]"),
        ("float[n,n] y", "y[1] is named 'n' (8) and is 4"),
    ],
)
def test_a_stale_declaration_of_an_output_is_told_and_the_computed_shape_is_used(
    declared: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(f"g (float[n,4] x) => ({declared}) {{ a = Neg (x)  y = Relu (a) }}", opset=12)
    source.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [3, 3, 3]))
    static = shaped(tmp_path, source, n=8)
    assert static.facts["outputs"] == [{"name": "y", "dtype": "float32", "shape": [8, 4]}]
    assert static.facts["stale_outputs"] == [said]
    assert f"warning: output {said}" in capsys.readouterr().out
    feeds = {"x": numbers(8, 4)}
    assert same(outputs(static.folder / MODEL, feeds), outputs(source, feeds))


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    taken = ingested(tmp_path, graphs.attention())
    first, second = (shaped(tmp_path / name, taken, batch=1, sequence=16) for name in "ab")
    assert first.files == second.files
