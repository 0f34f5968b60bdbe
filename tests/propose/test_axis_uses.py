"""What a recurrence says of the axes that come to it, whatever their names and places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipeline.propose.axis_uses import find_uses
from pipeline.propose.guessed_axes import guess_axes
from pipeline.propose.interface import look_at
from tests.support.graphs import graph
from tests.support.models.builder import save

W = {"w": np.zeros((1, 18, 5), np.float32), "r": np.zeros((1, 18, 6), np.float32)}
GRU = "h, last = GRU <hidden_size = 6{layout}> ({x}, w, r)"


def kinds(tmp_path: Path, text: str, constants: dict[str, np.ndarray] | None = None, opset: int = 18) -> dict[str, str]:
    save(graph(text, {**W, **(constants or {})}, opset=opset), tmp_path / "net.onnx")
    found = look_at("net.onnx", tmp_path / "net.onnx")
    return {axis.name: axis.kind for axis in guess_axes({"net": found})}


def body(given: str, before: str, x: str, layout: int = 0) -> str:
    gru = GRU.format(layout=f", layout = {layout}" if layout else "", x=x)
    return f"g ({given}) => (float[] y) {{ {before} {gru} y = Identity (h) }}"


@pytest.mark.parametrize(
    ("given", "before", "x", "layout", "expected"),
    [
        ("float[a, b, 5] x", "", "x", 0, {"a": "length", "b": "batch"}),
        ("float[a, b, 5] x", "", "x", 1, {"a": "batch", "b": "length"}),
        ("float[a, 1, 5] x", "", "x", 0, {"a": "length"}),
        ("float[batch, time, 5] x", "", "x", 0, {"batch": "length", "time": "batch"}),
        ("float[a, b, 5] x", "t = Transpose <perm = [1, 0, 2]> (x)", "t", 0, {"a": "batch", "b": "length"}),
        ("float[a, 5, b] x", "t = Transpose <perm = [2, 0, 1]> (x)", "t", 0, {"a": "batch", "b": "length"}),
        ("float[a, 5] x", "t = Unsqueeze (x, one)", "t", 0, {"a": "length"}),
        ("float[a, b, 1, 5] x", "p = Relu (x) t = Squeeze (p, two)", "t", 0, {"a": "length", "b": "batch"}),
        ("float[a, b, 7] x", "m = MatMul (x, m75) t = Add (m, bias)", "t", 0, {"a": "length", "b": "batch"}),
        ("int64[a, b] x", "t = Gather (table, x)", "t", 0, {"a": "tokens", "b": "batch"}),
        ("float[a, 7, b] x", "c = Conv (x, k) t = Transpose <perm = [2, 0, 1]> (c)", "t", 0,
         {"a": "batch", "b": "length"}),
        ("float[a, b, 5] x, float[b, 5] z", "t = Add (x, z)", "t", 0, {"a": "length", "b": "batch"}),
        ("float[a, b, 5] x", "t = ReverseSequence <time_axis = 1, batch_axis = 0> (x, n)", "x", 1,
         {"a": "batch", "b": "length"}),
    ],
)  # fmt: skip
def test_axes_are_what_the_layout_of_the_recurrence_says(
    tmp_path: Path, given: str, before: str, x: str, layout: int, expected: dict[str, str]
) -> None:
    constants = {
        "one": np.array([1]),
        "two": np.array([2]),
        "m75": np.zeros((7, 5), np.float32),
        "bias": np.zeros(5, np.float32),
        "table": np.zeros((9, 5), np.float32),
        "k": np.zeros((5, 7, 1), np.float32),
        "n": np.array([3]),
    }
    assert kinds(tmp_path, body(given, before, x, layout), constants) == expected


def test_a_second_recurrence_and_states_say_the_same(tmp_path: Path) -> None:
    text = """g (float[a, b, 5] x, float[1, c, 6] h0) => (float[] y) {
        h, last = GRU <hidden_size = 6> (x, w, r, , , h0)
        s = Squeeze (h, one)
        y, l2 = GRU <hidden_size = 6> (s, r, r)
    }"""
    assert kinds(tmp_path, text, {"one": np.array([1])}) == {"a": "length", "b": "batch", "c": "batch"}


def test_what_counts_steps_is_a_length_whatever_its_name(tmp_path: Path) -> None:
    text = "g (float[t, 1, 5] x, int32[1] valid) => (float[] y) { y, l = GRU <hidden_size = 6> (x, w, r, , valid) }"
    save(graph(text, W), tmp_path / "net.onnx")
    found = look_at("net.onnx", tmp_path / "net.onnx")
    assert {given.spec.name: given.kind for given in found.inputs} == {"x": "other", "valid": "length"}
    (axis,) = guess_axes({"net": found})
    assert (axis.kind, axis.why) == ("length", "steps of 'GRU_0' (GRU)")


def test_a_node_without_a_name_is_told_by_what_it_makes(tmp_path: Path) -> None:
    text = "g (float[t, 1, 5] x) => (float[1, 1, 6] y) { , y = GRU <hidden_size = 6> (x, w, r) }"
    model = graph(text, W)
    model.graph.node[0].name = ""
    save(model, tmp_path / "net.onnx")
    (axis,) = guess_axes({"net": look_at("net.onnx", tmp_path / "net.onnx")})
    assert axis.why == "steps of 'y' (GRU)"


@pytest.mark.parametrize(
    "before",
    [
        "t = Reshape (x, shape)", "t = Transpose <perm = [0, 0, 1]> (x)", "t = ReduceSum (x, one)",
        "t = Squeeze (x, wild)", "t = Squeeze (x, many)",
    ],
)  # fmt: skip
def test_what_is_not_followed_says_nothing(before: str) -> None:
    constants = {"shape": np.array([0, 0, 5]), "one": np.array([3]), "wild": np.array([[1]]), "many": np.arange(3)}
    text = body("float[a, b, 5, 1] x", before, "t")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    assert not find_uses(model.graph).axes
