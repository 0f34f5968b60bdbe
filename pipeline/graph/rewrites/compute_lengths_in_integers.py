"""Compute lengths in integers that exporters compute in floats.

Before, as PyTorch's dynamo exporter writes ``length // 2``, and as models round lengths down themselves::

    Cast(Floor(Div(Cast(length, to=float), 2)), to=int)
    Cast(Floor(Add(Div(Add(Cast(length, to=float), -1), 2), 1)), to=int)

After::

    cut = Div(length, 2)
    Sub(cut, Cast(Less(Sub(length, Mul(cut, 2)), 0)))
    Add(of Add(length, -1) the same, 1)

Integers are cut towards zero: a negative one with a rest is one too large then. There is no Mod in it, as HTP computes
that in float16: above 2048 it is wrong, where Div, Mul and Sub were right for all that was tried, up to 2^23.

Quantized, a length is off by one now and then, and the mask made from it shows a padded frame or hides a valid one: a
small wav2vec 2.0 so exported has 11 dB of SQNR on the emulator, 29 with lengths in integers.

The result keeps its name. Left alone: a value that may not be whole; constants that aren't; lengths that are floats to
begin with. Beyond 2^23 the two differ, as floats then skip whole numbers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, LazyIndex, element_type, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.recursion import Recursive

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_LARGEST = 1 << 23


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every conversion of a rounded float to an integer that integers can do; returns their number."""
    lengths = _Lengths(LazyIndex(model, folder))
    found = [node for node in model.graph.node if lengths.compute(node)]
    if found:
        lengths.added.join()
    return len(found)


class _Lengths:
    """Float values that are whole, and the integers they stand for."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self.added = Additions(index)
        self._made: dict[str, str] = {}
        self._is_whole = Recursive(self._find_whole)
        self._is_ratio = Recursive(self._find_ratio)
        """Whether a value is whole, one by a whole constant, or a sum of a value like that and a whole constant."""
        self.is_floored = Recursive(self._find_floored)
        """Whether a value is whole, and rounded somewhere on its way; else its conversion is no loss."""

    def _find_floored(self, name: str) -> bool:
        node = self._index.maker(name, "Floor", "Add", "Sub")
        if node is None:
            return False
        if node.op_type == "Floor":
            return self._is_ratio(node.input[0])
        return self._is_whole(name) and any(self.is_floored(given) for given in node.input)

    def compute(self, node: NodeProto) -> bool:
        """Add what computes a whole value in integers, if a node is a Cast of one."""
        kind = element_type(self._index, node.output[0]) if is_op(node, "Cast") else None
        if kind not in _INTEGERS or not self.is_floored(node.input[0]):
            return False
        self.added.replace("Cast", self._integer(node.input[0]), out=node.output[0], to=kind)
        return True

    def _find_whole(self, name: str) -> bool:
        node = self._index.maker(name, "Cast", "Floor", "Add", "Sub")
        if node is None:
            return _whole(self._index, name) is not None
        if node.op_type == "Cast":
            return node.input[0] in self._index.types and element_type(self._index, node.input[0]) in _INTEGERS
        return self._is_ratio(node.input[0]) if node.op_type == "Floor" else all(map(self._is_whole, node.input))

    def _find_ratio(self, name: str) -> bool:
        node = self._index.maker(name, "Div", "Add", "Sub")
        if node is None or self._is_whole(name):
            return self._is_whole(name)
        if node.op_type == "Div":
            divisor = _whole(self._index, node.input[1])
            return divisor is not None and divisor > 0 and self._is_whole(node.input[0])
        known = [_whole(self._index, given) is not None for given in node.input]
        if node.op_type == "Sub":
            return known[1] and self._is_ratio(node.input[0])
        return any(known) and self._is_ratio(node.input[0 if known[1] else 1])

    def _integer(self, name: str) -> str:
        """The int64 that a whole value stands for."""
        if name not in self._made:
            self._made[name] = self._new_integer(name)
        return self._made[name]

    def _new_integer(self, name: str) -> str:
        constant = self._index.constant(name)
        if constant is not None:
            return self.added.constant(f"{name}_integer", constant.astype(np.int64))
        node = self._index.makers[name]
        if node.op_type == "Cast":
            return self.added.op("Cast", node.input[0], out=f"{name}_integer", to=TensorProto.INT64)
        if node.op_type == "Floor":
            return self._floored(node.input[0])
        return self.added.op(node.op_type, *map(self._integer, node.input), out=f"{name}_integer")

    def _floored(self, name: str) -> str:
        if self._is_whole(name):
            return self._integer(name)
        node = self._index.makers[name]
        if node.op_type == "Div":
            length, divisor = map(self._integer, node.input)
            cut = self.added.op("Div", length, divisor, out=f"{name}_cut")
            whole = self.added.op("Mul", cut, divisor, out=f"{name}_whole")
            zero = self.added.number(f"{name}_zero", 0, np.int64)
            rest = self.added.op("Sub", length, whole, out=f"{name}_rest")
            is_above = self.added.op("Less", rest, zero, out=f"{name}_is_above")
            above = self.added.op("Cast", is_above, out=f"{name}_above", to=TensorProto.INT64)
            return self.added.op("Sub", cut, above, out=f"{name}_floored")
        parts = [
            self._integer(given) if _whole(self._index, given) is not None else self._floored(given)
            for given in node.input
        ]
        return self.added.op(node.op_type, *parts, out=f"{name}_floored")


def _whole(index: GraphIndex, name: str) -> float | None:
    """A constant of one whole number, many times or once."""
    value = index.scalar(name) if name in index.initializers else None
    return value if value is not None and abs(value) < _LARGEST and value == round(value) else None
