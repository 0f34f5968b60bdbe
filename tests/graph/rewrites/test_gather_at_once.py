from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, gather_at_once
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

X = np.random.default_rng(0).normal(size=(2, 3, 6, 8)).astype(np.float32)
ROWS = np.arange(2)[:, None] + 2 * np.arange(3)[None]  # kernel 2, stride 2
COLUMNS = np.arange(3)[:, None] + np.arange(6)[None] - 8  # kernel 3, stride 1, counted from the end
UNFOLD = """g (float[2,3,6,8] x) => (float[2,18,18] y) {
    b = Relu (x)  r = Gather <axis = 2> (b, rows)  c = Gather <axis = 4> (r, columns)
    t = Transpose <perm = [0, 1, 2, 4, 3, 5]> (c)  u = Reshape (t, shape)  y = Neg (u) }"""


def unfold(text: str = UNFOLD, columns: NDArray[np.int64] = COLUMNS) -> ModelProto:
    constants: dict[str, NDArray[np.int64]] = {"rows": ROWS, "columns": columns, "shape": np.array([2, 18, 18])}
    return graph(text, constants)


def test_an_unfold_takes_the_same_places_of_each_channel(tmp_path: Path) -> None:
    model = unfold()
    before = outputs(model, {"x": X})["y"]
    assert apply_all(model, tmp_path)["gather_at_once"] == 1
    assert operators(model) == {"Relu": 1, "Reshape": 2, "Gather": 1, "Neg": 1}
    assert constant(model, "u_blocks").tolist() == [6, 48]
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
    assert gather_at_once.apply(model, tmp_path) == 0


def test_what_mixes_channels_is_one_block(tmp_path: Path) -> None:
    model = unfold(UNFOLD.replace("[0, 1, 2, 4, 3, 5]", "[2, 4, 1, 0, 3, 5]"))
    before = outputs(model, {"x": X})["y"]
    assert gather_at_once.apply(model, tmp_path) == 1
    assert constant(model, "u_blocks").tolist() == [1, 288]
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


def test_one_that_begins_where_another_ends_is_another(tmp_path: Path) -> None:
    again = "v = Gather <axis = 2> (t, first)  w = Gather <axis = 4> (v, more)  u = Reshape (w, shape)"
    text = UNFOLD.replace("u = Reshape (t, shape)", again)
    constants: dict[str, NDArray[Any]] = {
        "rows": ROWS, "columns": COLUMNS, "shape": np.array([2, 9, 18]),
        "first": np.array(1), "more": np.array([[0, 1, 2, 3, 4, 5]]),
    }  # fmt: skip
    model = graph(text.replace("[2,18,18] y", "[2,9,18] y"), constants)
    before = outputs(model, {"x": X})["y"]
    assert gather_at_once.apply(model, tmp_path) == 2
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(float[2,18,18] y)", "(float[2,18,18] y, float[2,3,2,3,3,6] c)"),
        ("y = Neg (u)", "e = ReduceSum <keepdims = 0> (t)  y = Add (u, e)"),
        ("float[2,3,6,8] x)", "float[2,3,6,8] x, int64[3,6] places)"),
        ("u = Reshape (t, shape)", "a = Abs (t)  u = Reshape (a, shape)"),
    ],
    ids=["an output", "read by others", "computed indices", "computed from"],
)
def test_left_alone(old: str, new: str, tmp_path: Path) -> None:
    text = UNFOLD.replace(old, new)
    model = unfold(text.replace("(r, columns)", "(r, places)") if "places" in new else text)
    assert gather_at_once.apply(model, tmp_path) == 0


def test_places_that_are_not_there_are_left_to_onnxruntime(tmp_path: Path) -> None:
    assert gather_at_once.apply(unfold(columns=COLUMNS + 9), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rewritten", [False, True])
def test_qnn_has_no_value_of_six_dims(rewritten: bool, tmp_path: Path) -> None:
    model = unfold(columns=COLUMNS + 8)  # HTP does not count from the end
    component = (with_rewrites if rewritten else without_rewrites)(tmp_path / "model", model)
    feeds = [{"x": X}] if rewritten else []  # the part in front of the CPU's does not even run
    ran = on_chip(component.rewrite["all"], feeds, tmp_path / "chip")
    assert (len(ran.context.cpu_nodes), ran.context.partitions) == ((0, 1) if rewritten else (3, 2))
    for given in ran.outputs:
        np.testing.assert_allclose(given["y"], outputs(model, {"x": X})["y"], atol=0.01)
