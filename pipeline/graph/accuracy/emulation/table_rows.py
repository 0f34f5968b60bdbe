"""Which rows of tables samples read, as far as the inputs of a model say: numbers that become indices of a Gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.ops import LOOKUPS, MOVES, MOVES_FIRST

Rows = Mapping[str, NDArray[Any]]
"""The rows that a sample reads by each input: its different numbers, sorted."""

_KEEPS_APART = ("Add", "Cast", "Clip", "Max", "Min", "Mod", "Mul", "Sub", "Where")
"""Operators by which numbers are moved into a table, or made valid: other numbers mostly give other rows."""


def inputs_of_tables(index: GraphIndex) -> tuple[str, ...]:
    """The inputs whose numbers become indices, by moves and what is computed with constants; sorted."""
    inputs = {value.name for value in index.model.graph.input} - index.initializers.keys()
    wanted = [node.input[1] for node in index.model.graph.node if is_op(node, *LOOKUPS)]
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            wanted += _given(index, name)
    return tuple(sorted(inputs & seen))


def _given(index: GraphIndex, name: str) -> Sequence[str]:
    """The values whose numbers are those of a value, or stand for them."""
    node = index.maker(name, *MOVES, *_KEEPS_APART)
    if node is None:
        return ()
    if is_op(node, *MOVES_FIRST):
        return [node.input[0]]
    given = node.input[1:] if is_op(node, "Where") else node.input
    varied = [each for each in given if each and each not in index.initializers]
    return varied if len(varied) == 1 or is_op(node, "Concat", "Where") else ()


def rows_read(feeds: Sequence[Mapping[str, NDArray[Any]]], inputs: Sequence[str]) -> list[Rows]:
    """The rows that each sample reads by these inputs, as far as they are whole numbers."""
    return [{name: np.unique(feed[name]) for name in inputs if feed[name].dtype.kind in "iu"} for feed in feeds]
