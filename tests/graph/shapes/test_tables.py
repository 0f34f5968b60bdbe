"""Inputs that look rows up in constant tables, and of how many rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from pipeline.graph.shapes.tables import tables
from tests.support.graphs import graph

CONSTANTS: dict[str, ArrayLike] = {
    "words": np.zeros((50, 4), np.float32),
    "few": np.zeros((7, 4), np.float32),
    "wide": np.zeros((4, 30), np.float32),
    "zero": np.int64(0),
    "dims": np.array([8]),
    "ends": np.array([0]),
    "stops": np.array([4]),
    "last": np.array([1]),
}


@pytest.mark.parametrize(
    ("nodes", "rows"),
    [
        ("y = Gather (words, ids)", 50),
        ("y = Gather <axis = 1> (wide, ids)", 30),
        ("y = Gather <axis = -1> (wide, ids)", 30),
        ("a = Gather (words, ids) b = Gather (few, ids) y = Add (a, b)", 7),
        ("n = Cast <to = 6> (ids) f = Reshape (n, dims) y = Gather (words, f)", 50),
        ("t = Concat <axis = 1> (ids, ids) y = Gather (words, t)", 50),
        ("n = Less (ids, zero) s = Where (n, zero, ids) y = Gather (words, s)", None),
        ("s = Slice (ids, ends, stops, last) y = Gather (words, s)", None),
        ("n = Cast <to = 1> (ids) y = Identity (n)", None),
        ("y = Gather (x, ids)", None),
    ],
)
def test_the_rows_that_ids_choose_from(nodes: str, rows: int | None) -> None:
    made = "float[8,4] y" if "Reshape" in nodes else "float[a,b] y" if "Identity" in nodes else "float[a,b,c] y"
    found = tables(graph(f"g (int64[1,8] ids, float[9,4] x) => ({made}) {{ {nodes} }}", CONSTANTS))
    assert {name: table.rows for name, table in found.items()} == ({} if rows is None else {"ids": rows})
    assert all(len(table.nodes) == nodes.count("Gather") for table in found.values())


def test_a_table_of_whole_numbers_is_told_apart_and_an_empty_one_has_no_ids() -> None:
    constants = {**CONSTANTS, "map": np.zeros((9, 4), np.int64), "none": np.zeros((0, 4), np.float32)}
    header = "g (int64[1,8] ids, int64[1,8] other) => (float[a,b,c] y)"
    body = "a = Gather (words, ids) m = Gather (map, ids) c = Cast <to = 1> (m) e = Gather (none, other) y = Add (a, c)"
    (found,) = tables(graph(f"{header} {{ {body} }}", constants)).values()
    assert (found.rows, found.floats) == (9, False)
    assert tables(graph(f"{header} {{ y = Gather (words, ids) }}", constants))["ids"].floats
