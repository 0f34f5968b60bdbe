from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.gathers import flatten_gather_nd
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

DATA = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)

# Indices, batch_dims, and the operators that remain.
CASES: dict[str, tuple[ArrayLike, int, list[str]]] = {
    "all, in order": ([[[0, 0], [0, 1], [0, 2]], [[1, 0], [1, 1], [1, 2]]], 0, ["Reshape"]),
    "some": ([[0, 2], [1, 0]], 0, ["Reshape", "Gather"]),
    "from the end": ([[-1, -1], [-2, 1]], 0, ["Reshape", "Gather"]),
    "one index": ([[1], [0], [1]], 0, ["Gather"]),
    "single elements": ([[[0, 1, 2]], [[1, 2, 3]]], 0, ["Reshape", "Gather"]),
    "a batch": ([[[2], [0]], [[1], [1]]], 1, ["Reshape", "Gather"]),
    "two batch dims": ([[[3], [0], [1]], [[1], [1], [2]]], 2, ["Reshape", "Gather"]),
    "a batch, in order": ([[[0], [1], [2]], [[0], [1], [2]]], 1, ["Reshape"]),
}


def build(indices: NDArray[np.int64], batch_dims: int) -> ModelProto:
    shape = ",".join(map(str, (*indices.shape[:-1], *DATA.shape[batch_dims + indices.shape[-1] :])))
    body = f"y = GatherND <batch_dims = {batch_dims}> (x, indices)"
    return graph(f"g (float[2,3,4] x) => (float[{shape}] y) {{ {body} }}", {"indices": indices})


@pytest.mark.parametrize("case", CASES)
def test_known_indices_become_places_along_one_axis(case: str, tmp_path: Path) -> None:
    indices, batch_dims, expected = CASES[case]
    model = build(np.asarray(indices), batch_dims)
    before = outputs(model, {"x": DATA})["y"]

    assert apply_all(model, tmp_path)["flatten_gather_nd"] == 1

    assert [node.op_type for node in model.graph.node] in (
        expected,
        ["Reshape", *expected],
        ["Reshape", *expected, "Reshape"],
    )
    np.testing.assert_array_equal(outputs(model, {"x": DATA})["y"], before)
    assert flatten_gather_nd.apply(model, tmp_path) == 0
    typed = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert {name for node in model.graph.node for name in node.output} == typed


def test_the_place_of_an_index_counts_all_indexed_dims(tmp_path: Path) -> None:
    model = build(np.array([[0, 2], [-1, 0]]), 0)
    flatten_gather_nd.apply(model, tmp_path)
    assert constant(model, "y_places").tolist() == [2, 3]


def test_computed_indices_are_left_alone(tmp_path: Path) -> None:
    model = graph("g (float[2,3,4] x, int64[5,2] indices) => (float[5,4] y) { y = GatherND (x, indices) }")
    assert flatten_gather_nd.apply(model, tmp_path) == 0
    assert operators(model) == {"GatherND": 1}


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_mask_read_by_gather_nd_parts_the_graph_for_qnn(rewritten: bool, tmp_path: Path) -> None:
    indices = np.stack(np.meshgrid([0], np.arange(8), indexing="ij"), -1)[:, None, None]
    model = graph(
        """g (float[1,1,8,8] x, int64[1,8] mask) => (float[1,1,8,8] y) {
            keep = Cast <to = 9> (mask)
            placed = GatherND (keep, indices)
            z = Relu (x)
            w = Where (placed, z, zero)
            y = Softmax (w)
        }""",
        {"indices": indices, "zero": np.float32(0)},
    )
    component = (with_rewrites if rewritten else without_rewrites)(tmp_path, model)

    chip = on_chip(component.rewrite["all"], [], tmp_path / "out")

    assert chip.cpu_ops == (set() if rewritten else {"GatherND"})
