"""Integer outputs that an ArgMax makes: what it chose from tells whether another choice would be as good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.graph.accuracy.accuracy import Outputs
from pipeline.graph.accuracy.trace import TracedModel
from pipeline.graph.cpu import Arrays, run
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.moves import VIEWS

Choices = Mapping[str, tuple[str, int]]
"""For each output that an ArgMax makes, the value that it chose from, and the axis."""


def argmax_outputs(index: GraphIndex) -> dict[str, tuple[str, int]]:
    """The outputs that are the result of an ArgMax, with the value that it chose from and the axis."""
    found = {}
    for output in index.outputs:
        name = output
        while (node := index.makers.get(name)) is not None and is_op(node, "Cast", *VIEWS):
            name = node.input[0]
        if node is not None and is_op(node, "ArgMax") and not integer(node, "select_last_index"):
            found[output] = (node.input[0], integer(node, "axis"))
    return found


def values_of(path: Path, names: Sequence[str], feeds: Sequence[Arrays]) -> list[Outputs]:
    """These values of a model for each sample; nothing for no names."""
    if not names:
        return [{} for _ in feeds]
    session = TracedModel(path).session(names)
    return [run(session, feed) for feed in feeds]
