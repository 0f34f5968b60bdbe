"""Drop guards against what can't be: a Softmax that isn't a number, an input that is infinite.

Before, as torch exports its own attention, or ``softmax(scores).nan_to_num()``::

    Where(IsNaN(w), 0, w)                               w = Softmax(scores)
    Where(And(IsInf(w), Greater(w, 0)), 3.4e38, w)

After::

    w

A Softmax gives NaN where all of its scores are -inf, and never an infinity. With masks made finite (make_masks_finite
comes first) the guards guard nothing. Nor does a test for infinities of an input, or of what is moved of it or put in
place of a NaN: HTP can't tell an infinity (2.51, emulated), so no sample and no application may give one. QNN EP 2.7
leaves IsInf to the CPU between two partitions, and compiles nothing where the guard is a float64; IsNaN it takes, for
three operators the size of the scores.

Left alone: a Softmax whose scores still meet a constant -inf; a guard of anything else; one that is an output.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.ops import KEEPING

_MASKS = (*KEEPING, "Add", "Clip", "Concat", "Div", "Gather", "Max", "Min", "Mul", "Slice", "Sub", "Where")


def apply(model: ModelProto, folder: Path) -> int:
    """Drop every guard of a Softmax; returns the number of nodes dropped."""
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
        self._given = {value.name for value in index.model.graph.input} - index.initializers.keys()
        """Inputs, and what is moved and chosen of them."""
        self.dropped: dict[str, str] = {}
        """Result of a guard -> what it guarded; of an Or with what is false -> its other input."""

    def visit(self, node: NodeProto) -> None:
        for position, name in enumerate(node.input):
            node.input[position] = self.dropped.get(name, name)
        if is_op(node, "Softmax"):
            if self._is_finite(node.input[0], set()):
                self._weights.update(node.output)
        elif is_op(node, *KEEPING) and node.input[0] in self._weights:
            self._weights.update(node.output)
        elif is_op(node, *KEEPING) and node.input[0] in self._given:
            self._given.update(node.output)
        elif is_op(node, *KEEPING) and node.input[0] in self._false:
            self._false.update(node.output)
        elif is_op(node, "Or") and not self._false.isdisjoint(node.input):
            first, second = node.input
            self._drop(node, second if first in self._false else first)
        elif self._is_false(node):
            self._false.update(node.output)
        elif is_op(node, "Where"):
            is_dropped = node.input[0] in self._false and self._drop(node, node.input[2])
            if not is_dropped and all(map(self._is_given, node.input[1:])):
                self._given.update(node.output)

    def _is_false(self, node: NodeProto) -> bool:
        """Whether a node asks whether something is what it can't be."""
        if is_op(node, "And"):
            return not self._false.isdisjoint(node.input)
        if is_op(node, "IsInf") and node.input[0] in self._given:
            return True
        return is_op(node, "IsNaN", "IsInf") and node.input[0] in self._weights

    def _is_given(self, name: str) -> bool:
        """Whether a value is an input, what is moved and chosen of it, or a finite constant."""
        constant = self._index.constant(name) if name in self._index.initializers else None
        return name in self._given or (constant is not None and bool(np.isfinite(constant).all()))

    def _drop(self, node: NodeProto, kept: str) -> bool:
        """Have readers of a node's result read one of its inputs, if that is of the same type."""
        result, types = node.output[0], self._index.types
        if result in self._index.outputs or kept not in types or types.get(result) != types[kept]:
            return False
        self.dropped[result] = kept
        return True

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


AFTER = {
    "make_masks_finite": "a Softmax of finite masks is never NaN",
}
