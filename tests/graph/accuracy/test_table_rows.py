"""Inputs whose numbers are rows of a table, and which rows samples read by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.measures import Figures
from pipeline.graph.accuracy.emulation.sample_order import by_new_rows
from pipeline.graph.accuracy.emulation.table_rows import inputs_of_tables, rows_read
from pipeline.graph.ir.index import GraphIndex
from pipeline.stages.verify import _order
from tests.support.graphs import graph

TABLE: dict[str, NDArray[Any]] = {
    "table": np.zeros((9, 4), np.float32),
    "two": np.array(2, np.int64),
    "shape": np.array([2, 1, 3], np.int64),
}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("r = Gather (table, x)", ("x",)),
        ("a = Add (two, x)\n b = Reshape (a, shape)\n c = Cast <to = 6> (b)\n r = Gather (table, c)", ("x",)),
        ("n = Less (x, two)\n a = Add (x, two)\n b = Where (n, a, x)\n r = Gather (table, b)", ("x",)),
        ("c = Concat <axis = 0> (x, z)\n r = Gather (table, c)", ("x", "z")),
        ("a = Add (x, z)\n r = Gather (table, a)", ()),
        ("f = Cast <to = 1> (x)\n r = Relu (f)", ()),
        ("g = Gather (x, shape)\n r = Cast <to = 1> (g)", ()),
    ],
)
def test_what_becomes_indices_is_found(body: str, found: tuple[str, ...], tmp_path: Path) -> None:
    text = f"g (int64[3,2] x, int64[3,2] z) => (float[a,b] y) {{\n {body}\n y = Flatten (r)\n}}"
    assert inputs_of_tables(GraphIndex(graph(text, TABLE), tmp_path)) == found


def test_rows_of_two_inputs_are_told_apart() -> None:
    feeds = [{"ids": np.array([[3, 1, 3]]), "types": np.array(types), "mask": np.ones(3)} for types in ([0], [1], [1])]
    rows = rows_read(feeds, ("ids", "types", "mask"))
    assert [*rows[0]] == ["ids", "types"]
    assert rows[0]["ids"].tolist() == [1, 3]
    assert [*by_new_rows(rows)] == [0, 1]
    assert [*by_new_rows(rows, [2])] == [0]


def test_samples_that_stand_in_take_no_turn_of_those_that_need_the_bucket() -> None:
    """The worst of all stands in and reads what only one of the others reads: that one came after another."""
    reads = [[1], [1], [7, 8, 9], [1], [7, 8, 9]]
    rows = [{"ids": np.array(each)} for each in reads]
    names, errors_db = ["a", "b", "c", "d", "e"], [10.0, 11.0, 12.0, 13.0, 1.0]
    total = {"y": Figures(9.0, 9.0, 1.0, worst_sample="e", cosine=1.0, max_abs_error=0.1)}
    assert _order([{}] * 5, names, total, errors_db, rows, own=4) == [0, 2, 1, 3, 4]
    alone = {"y": Figures(9.0, 9.0, 10.0, worst_sample="a", cosine=1.0, max_abs_error=0.1)}
    assert _order([{}] * 4, names[:4], alone, errors_db[:4], rows[:4], own=4) == [0, 2, 1, 3]
    assert _order([{}] * 5, names, total, errors_db, rows, own=0)[0] == 4
