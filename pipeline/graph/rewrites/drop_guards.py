"""Drop guards against a Softmax that isn't a number.

Before, as torch exports its own attention, or ``softmax(scores).nan_to_num()``::

    Where(IsNaN(w), 0, w)                               w = Softmax(scores)
    Where(And(IsInf(w), Greater(w, 0)), 3.4e38, w)

After::

    w

A Softmax gives NaN where all of its scores are -inf, and never an infinity. With masks made finite (make_masks_finite
comes first) the guards guard nothing. QNN EP 2.7 leaves IsInf to the CPU between two partitions, and compiles nothing
where the guard is a float64; IsNaN it takes, for three operators the size of the scores.

Left alone: a Softmax whose scores still meet a constant -inf; a guard of anything else; one that is an output.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.moves import KEEPING

_MASKS = (*KEEPING, "Add", "Clip", "Concat", "Div", "Gather", "Max", "Min", "Mul", "Slice", "Sub", "Where")


def apply(model: ModelProto, folder: Path) -> int:
    """Drop every guard of a Softmax; returns the number of Where nodes dropped."""
    index = GraphIndex(model, folder)
    guards = _Guards(index)
    for node in model.graph.node:
        guards.visit(node)
    return len(guards.dropped)


class _Guards:
    """One pass over a graph in its order. Values are known to be weights of a Softmax, or false throughout."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._weights: set[str] = set()
        self._false: set[str] = set()
        self.dropped: dict[str, str] = {}
        """Result of a guard -> what it guarded."""

    def visit(self, node: NodeProto) -> None:
        for position, name in enumerate(node.input):
            node.input[position] = self.dropped.get(name, name)
        if is_op(node, "Softmax"):
            if self._is_finite(node.input[0], set()):
                self._weights.update(node.output)
        elif is_op(node, *KEEPING) and node.input[0] in self._weights:
            self._weights.update(node.output)
        elif (is_op(node, "IsNaN", "IsInf") and node.input[0] in self._weights) or (
            is_op(node, "And") and not self._false.isdisjoint(node.input)
        ):
            self._false.update(node.output)
        elif is_op(node, "Where") and node.input[0] in self._false and self._same_type(node):
            self.dropped[node.output[0]] = node.input[2]

    def _same_type(self, node: NodeProto) -> bool:
        guarded, result = node.input[2], node.output[0]
        types = self._index.types
        return result not in self._index.outputs and guarded in types and types.get(result) == types[guarded]

    def _is_finite(self, name: str, seen: set[str]) -> bool:
        """Whether no infinite constant goes into a value by way of a mask."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            tensor = self._index.constant(name) if name in self._index.initializers else None
            maker = self._index.makers.get(name)
            if tensor is not None and tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                return False
            if maker is not None and is_op(maker, *_MASKS):
                waiting += [given for given in maker.input if given]
        return True
