"""A graph takes rows of a table in place of tokens, and the table is written as the graph reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.errors import StoreError
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.host_table import rows_of, take_out, write_table
from pipeline.graph.language.names import EMBEDDED, IDS, TABLE
from tests.support.spoken_graphs import HIDDEN, VOCABULARY, tiny_facts, write_rows


def tied() -> GraphIndex:
    """A table that tokens are looked up in, and that what comes of them is multiplied with."""
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(6, 2), "table")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", IDS], ["rows"], axis=0),
            helper.make_node("Neg", ["rows"], ["less"]),
            helper.make_node("Mul", ["rows", "less"], ["both"]),
            helper.make_node("Reshape", ["both", "shape"], ["flat"]),
            helper.make_node("Gemm", ["flat", "table"], ["logits"], transB=1),
        ],
        "tied",
        [helper.make_tensor_value_info(IDS, TensorProto.INT32, [1, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [3, 6])],
        [table, numpy_helper.from_array(np.array([-1, 2]), "shape")],
        value_info=[helper.make_tensor_value_info("rows", TensorProto.FLOAT, [1, 3, 2])],
    )
    return GraphIndex(helper.make_model(graph), Path())


def test_the_graph_takes_rows_and_a_tied_head_keeps_the_table() -> None:
    index = tied()

    assert take_out(index) == "table"

    graph = index.model.graph
    (given,) = graph.input
    assert given.name == EMBEDDED
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [1, 3, 2]
    assert [node.op_type for node in graph.node] == ["Neg", "Mul", "Reshape", "Gemm"]
    assert [*graph.node[0].input, *graph.node[1].input] == [EMBEDDED, EMBEDDED, "less"]
    assert graph.node[-1].input[1] == "table"
    assert not graph.value_info


def test_rows_are_looked_up_as_they_were_written(tmp_path: Path) -> None:
    numbers = np.random.default_rng(5).integers(0, 65536, (VOCABULARY, HIDDEN), np.uint16)

    write_table(Pieces.of_array(numbers), tmp_path)
    made = rows_of(tmp_path, tiny_facts())({IDS: np.array([[7, 0, 287]], np.int32)})[EMBEDDED]

    np.testing.assert_array_equal(made, numbers[None, [7, 0, 287]])


def test_without_a_table_tokens_stay_tokens(tmp_path: Path) -> None:
    feed = {IDS: np.array([[1]], np.int32)}

    assert rows_of(tmp_path, tiny_facts())(feed) is feed


def test_a_table_of_another_size_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / TABLE)
    path.write_bytes(path.read_bytes()[:-2])

    with pytest.raises(StoreError, match=r"embedding\.bin has 36862 bytes"):
        rows_of(tmp_path, tiny_facts())
