from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, count_indices_from_the_front
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

NAME = "count_indices_from_the_front"
X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
COLUMNS = np.array([[-1, 0], [-4, -2], [3, -1]])
PLACES = np.array([[-1, -1], [0, -2]])
COUNTED = {"Less": 1, "Add": 1, "Where": 1}
BOUNDED = {"Less": 2, "Add": 1, "Where": 2}

READERS: dict[str, tuple[str, dict[str, NDArray[Any]]]] = {
    "GatherElements": (
        "g (float[3,4] x, int64[3,2] i) => (float[3,2] y) { y = GatherElements <axis = 1> (x, i) }",
        {"x": X, "i": COLUMNS},
    ),
    "ScatterElements": (
        "g (float[3,4] x, int64[3,2] i, float[3,2] u) => (float[3,4] y) { y = ScatterElements <axis = -1> (x, i, u) }",
        {"x": X, "i": COLUMNS, "u": -X[:, :2].copy()},
    ),
    "ScatterND": (
        "g (float[3,4] x, int64[2,2] i, float[2] u) => (float[3,4] y) { y = ScatterND (x, i, u) }",
        {"x": X, "i": PLACES, "u": np.array([-1, -2], np.float32)},
    ),
    "OneHot": (
        "g (int64[3] i) => (float[3,4] y) { y = OneHot (i, depth, values) }",
        {"i": np.array([-1, -7, 2])},  # the second is outside of the axis
    ),
}
CONSTANTS = {"depth": np.array(4), "values": np.array([0, 1], np.float32)}


def _model(reader: str) -> ModelProto:
    return graph(READERS[reader][0], CONSTANTS if reader == "OneHot" else {})


@pytest.mark.parametrize("reader", READERS)
def test_negative_indices_are_counted_from_the_front(reader: str, tmp_path: Path) -> None:
    model, feeds = _model(reader), READERS[reader][1]
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)[NAME] == 1

    compared = {"Cast": 2, "Equal": 1, "Reshape": 1}  # what `compare_one_hots` makes of a OneHot
    assert operators(model) == (BOUNDED | compared if reader == "OneHot" else COUNTED | {reader: 1})
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)
    assert apply_all(model, tmp_path)[NAME] == 0


def test_the_sizes_are_of_the_places_in_their_order(tmp_path: Path) -> None:
    model = _model("ScatterND")
    apply_all(model, tmp_path)
    sizes = next(tensor for tensor in model.graph.initializer if tensor.name == "i_size")
    assert np.frombuffer(sizes.raw_data, np.int64).tolist() == [3, 4]


def test_what_two_read_is_counted_once(tmp_path: Path) -> None:
    model = graph(
        "g (float[3,4] x, float[3,4] z, int64[3,2] i) => (float[3,2] y, float[3,2] w) {"
        "y = GatherElements <axis = 1> (x, i) w = GatherElements <axis = 1> (z, i) }"
    )
    assert apply_all(model, tmp_path)[NAME] == 2
    assert operators(model) == COUNTED | {"GatherElements": 2}


@pytest.mark.parametrize(
    "made",
    [
        "a = Shape (x) t = Slice (a, one, two) j = Reshape (t, flat)",
        "values, t = TopK <axis = 0> (x, one) a = Reshape (t, flat) j = Slice (a, one, two)",
        "b = Sub (i, one) zero = Clip (b, none) j = Add (zero, one)",
        "b = Sub (i, one) n = Less (b, none) a = Add (b, two) j = Where (n, a, b)",
        "b = Sub (i, one) j = Max (b, none)",
        "b = Sub (i, one) c = Equal (b, one) j = Cast <to = 7> (c)",
    ],
    ids=["a shape", "places of the largest", "bounded", "counted already", "a maximum", "truth"],
)
def test_what_is_never_negative_is_left_alone(made: str, tmp_path: Path) -> None:
    given = {"one": np.array([1]), "two": np.array([2]), "none": np.array(0), "flat": np.array([-1])}
    model = graph(f"g (float[3,4] x, int64[1] i) => (float[1,4] y) {{ {made} y = Gather (x, j) }}", given)
    assert count_indices_from_the_front.apply(model, tmp_path) == 0


def test_what_may_be_negative_is_not(tmp_path: Path) -> None:
    model = graph(
        "g (float[3,4] x, int64[1] i) => (float[1,4] y) { j = Sub (i, one) y = Gather (x, j) }", {"one": np.array([1])}
    )
    assert count_indices_from_the_front.apply(model, tmp_path) == 1


def test_rows_of_a_table_that_the_model_is_given_are_left_alone(tmp_path: Path) -> None:
    model = graph(
        "g (int32[1,3] ids) => (float[3,4] y) { flat = Reshape (ids, shape) y = Gather (table, flat) }",
        {"table": X, "shape": np.array([-1])},
    )
    assert count_indices_from_the_front.apply(model, tmp_path) == 0


def test_constants_are_left_alone(tmp_path: Path) -> None:
    model = graph("g (float[3,4] x) => (float[3,2] y) { y = GatherElements <axis = 1> (x, i) }", {"i": COLUMNS})
    assert count_indices_from_the_front.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_the_chip_counts_from_the_front_alone(tmp_path: Path) -> None:
    raw, cured = [_model(reader) for reader in READERS], [_model(reader) for reader in READERS]
    for model in cured:
        assert count_indices_from_the_front.apply(model, tmp_path) == 1
    feeds = [given for _, given in READERS.values()]

    found = run_batch([*raw, *cured], feeds * 2, tmp_path / "work")

    for model, given, wrong, right in zip(raw, feeds, found[: len(raw)], found[len(raw) :], strict=True):
        truth = outputs(model, given)["y"]
        assert not right.on_cpu
        np.testing.assert_allclose(right.outputs[0], truth, rtol=1e-3)
        assert np.abs(wrong.outputs[0] - truth).max() > 0.5, f"{model.graph.node[0].op_type} is right now"
