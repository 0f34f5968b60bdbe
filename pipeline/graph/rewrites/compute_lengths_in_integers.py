"""Compute lengths, positions and buckets in integers that exporters compute in floats.

Before, as PyTorch's exporters write ``length // 2``, ``torch.div`` of integers, rounded down or to zero, and
``(position / 8).long()``, and as models round lengths themselves::

    Cast(Floor(Div(Cast(length, to=float), 2)), to=int)
    Cast(Ceil(Add(Div(Add(Cast(length, to=float), -1), 2), 1)), to=int)
    Cast(Mul(Floor(Abs(q)), Sign(q)), to=int)       with q = Div(Cast(position, to=float), Cast(size, to=float))
    Cast(q, to=int)

After, where the divisor is a positive constant::

    cut = Div(length, 2)                            which is cut towards zero
    rest = Sub(length, Mul(cut, 2))
    floor, ceil = Sub(cut, Cast(Less(rest, 0))), Add(cut, Cast(Greater(rest, 0)))

and where it is computed, or may be negative, with ``Where(size < 0, -position, position)`` over ``Max(Abs(size), 1)``:
integers by 0 end onnxruntime's process, and what a float by 0 becomes when it is cast to an integer is not defined.

There is no Mod in it, as HTP computes that in float16: above 2048 it is wrong, where Div, Mul, Sub, Max, Abs, Where and
comparisons were right for all that was tried, up to 2^30.

Quotients that are whole come out a little above or below in 16 bits and in float16, and one of six is off by one behind
a Floor. Of a length it is a mask that shows a padded frame or hides a valid one: a small wav2vec 2.0 so exported has
11 dB of SQNR on the emulator, 29 with lengths in integers.

What is read as a float as well is cast from the integer, and the result keeps its name. Left alone: a value that may
not be whole; constants that aren't; lengths that are floats to begin with; products, which integers have no room for,
but for those of a quotient and its divisor, as in remainders; floats by what is computed, which are infinite by 0.
Beyond 2^23 the two differ, as floats then skip whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, LazyIndex, element_type, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.recursion import Recursive
from pipeline.graph.ir.whole_constants import whole_constant

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_ROUND = ("Floor", "Ceil")
_SUMS = ("Add", "Sub", "Neg")
_MOVES = (*VIEWS, "Expand", "Transpose")
_WHOLE = (*_ROUND, *_SUMS, *_MOVES, "Mul")
"""Operators that may give whole numbers, as a Cast of integers does."""


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every rounded quotient that integers can compute; returns their number."""
    if not any(is_op(node, *_ROUND, "Cast") for node in model.graph.node):
        return 0
    lengths = _Lengths(LazyIndex(model, folder))
    found = [node for node in model.graph.node if lengths.compute(node)]
    if found:
        lengths.added.join()
    return len(found)


@dataclass(frozen=True)
class _Quotient:
    """A quotient in int64: whole numbers, and what is left over by a positive divisor, of either sign."""

    whole: str
    rest: str


class _Lengths:
    """Float values that are whole, or one whole number by another, and the integers they stand for."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self.added = Additions(index)
        self._is_whole = Recursive(self._find_whole)
        self._is_ratio = Recursive(self._find_ratio)
        """Whether a value is whole, one by another, or a sum of a value like that and a whole one."""
        self._is_rounded = Recursive(self._find_rounded)
        """Whether a value is whole, and rounded somewhere on its way; else its conversion is no loss."""
        self._is_finite = Recursive(self._find_finite)
        """Whether what a ratio or a whole value is divided by are constants."""
        self._is_read_as_float = Recursive(self._find_read_as_float)
        self._integer = Recursive(self._new_integer)
        """The int64 that a whole value stands for."""
        self._quotient = Recursive(self._new_quotient)
        """The parts of a ratio."""

    def compute(self, node: NodeProto) -> bool:
        """Add what computes in integers what a node casts to them, or gives as floats."""
        result = node.output[0] if node.output else ""
        if self._casts_to_integer(node):
            given = node.input[0]
            if not self._is_rounded(given) and (self._is_whole(given) or not self._is_ratio(given)):
                return False
            value = self._integer(given) if self._is_rounded(given) else self._towards_zero(given)
        elif is_op(node, *_WHOLE) and self._is_rounded(result) and self._is_finite(result):
            if not self._is_read_as_float(result):
                return False
            value = self._integer(result)
        else:
            return False
        self.added.replace("Cast", value, out=result, to=element_type(self._index, result))
        return True

    def _casts_to_integer(self, node: NodeProto) -> bool:
        return is_op(node, "Cast") and element_type(self._index, node.output[0]) in _INTEGERS

    # -- what is whole -----------------------------------------------------------------------------------------------

    def _find_rounded(self, name: str) -> bool:
        node = self._index.maker(name, *_WHOLE)
        if node is None:
            return False
        if is_op(node, *_ROUND):
            return self._is_ratio(node.input[0])
        if is_op(node, "Mul"):
            return self._is_whole(name)
        given = node.input[:1] if is_op(node, *_MOVES) else node.input
        return any(map(self._is_rounded, given)) and self._is_whole(name)

    def _find_whole(self, name: str) -> bool:
        node = self._index.maker(name, *_WHOLE, "Cast")
        if node is None:
            return whole_constant(self._index, name) is not None
        if is_op(node, "Cast"):
            return node.input[0] in self._index.types and element_type(self._index, node.input[0]) in _INTEGERS
        if is_op(node, "Mul"):
            return self._truncated(node) is not None or self._multiplied(node) is not None
        if is_op(node, *_ROUND):
            return self._is_ratio(node.input[0])
        return all(map(self._is_whole, node.input[:1] if is_op(node, *_MOVES) else node.input))

    def _find_ratio(self, name: str) -> bool:
        node = self._index.maker(name, "Div", "Add", "Sub")
        if node is None or self._is_whole(name):
            return self._is_whole(name)
        if is_op(node, "Div"):
            divisor = whole_constant(self._index, node.input[1])
            known = divisor.all() if divisor is not None else self._is_whole(node.input[1])
            return bool(known) and self._is_whole(node.input[0])
        ratio, other = self._ratio_first(node)
        return self._is_whole(other) and self._is_ratio(ratio) and (ratio == node.input[0] or is_op(node, "Add"))

    def _ratio_first(self, node: NodeProto) -> tuple[str, str]:
        """The operands of a sum, the whole one last."""
        first, second = node.input
        return (second, first) if self._is_whole(first) else (first, second)

    def _truncated(self, node: NodeProto) -> str | None:
        """The ratio that a Mul cuts towards zero: of the Floor of its size by its sign."""
        for down, sign in (node.input, reversed(node.input)):
            floor, signed = self._index.maker(down, "Floor"), self._index.maker(sign, "Sign")
            size = self._index.maker(floor.input[0], "Abs") if floor is not None else None
            if size is not None and signed is not None and size.input[0] == signed.input[0]:
                return str(size.input[0]) if self._is_ratio(size.input[0]) else None
        return None

    def _multiplied(self, node: NodeProto) -> tuple[str, str] | None:
        """A rounded quotient and its divisor, where a Mul is of them: no larger than what was divided."""
        for down, divisor in (node.input, reversed(node.input)):
            maker = self._index.maker(down, *_ROUND, "Mul")
            if maker is None or not self._is_whole(down):
                continue
            ratio = self._truncated(maker) if is_op(maker, "Mul") else maker.input[0]
            division = self._index.maker(ratio, "Div") if ratio is not None else None
            if division is not None and self._are_equal(division.input[1], divisor):
                return str(down), str(divisor)
        return None

    def _are_equal(self, first: str, second: str) -> bool:
        one, other = whole_constant(self._index, first), whole_constant(self._index, second)
        return first == second or (one is not None and other is not None and np.array_equal(one, other))

    def _find_finite(self, name: str) -> bool:
        node = self._index.maker(name, *_WHOLE, "Div", "Abs")
        if node is None:
            return True
        if is_op(node, "Div") and node.input[1] not in self._index.initializers:
            return False
        return all(map(self._is_finite, node.input[:1] if is_op(node, *_MOVES, "Div") else node.input))

    def _find_read_as_float(self, name: str) -> bool:
        """Whether what reads a value is neither a conversion to integers nor, itself or behind it, computed in them."""
        if name in self._index.outputs:
            return True
        readers = (node for node in self._index.readers.get(name, ()) if not self._casts_to_integer(node))
        return any(
            not self._is_ratio(node.output[0])
            or (not self._is_whole(node.output[0]) and self._is_read_as_float(node.output[0]))
            for node in readers
        )

    # -- in integers -------------------------------------------------------------------------------------------------

    def _new_integer(self, name: str) -> str:
        constant = whole_constant(self._index, name)
        if constant is not None:
            return self.added.constant(f"{name}_integer", constant.astype(np.int64))
        node = self._index.makers[name]
        if is_op(node, "Cast"):
            return self.added.op("Cast", node.input[0], out=f"{name}_integer", to=TensorProto.INT64)
        if is_op(node, *_ROUND):
            return self._rounded(node.op_type, node.input[0])
        if is_op(node, *_MOVES):
            given = self._integer(node.input[0])
            return self.added.op(node.op_type, given, *node.input[1:], out=f"{name}_integer", **settings(node))
        if is_op(node, "Mul"):
            ratio, parts = self._truncated(node), self._multiplied(node)
            if ratio is not None:
                return self._towards_zero(ratio)
            assert parts is not None
            return self.added.op("Mul", *map(self._integer, parts), out=f"{name}_integer")
        return self.added.op(node.op_type, *map(self._integer, node.input), out=f"{name}_integer")

    def _rounded(self, how: str, name: str) -> str:
        if self._is_whole(name):
            return self._integer(name)
        parts = self._quotient(name)
        if how == "Floor":
            return self._corrected("Sub", parts.whole, self._is("Less", parts.rest))
        return self._corrected("Add", parts.whole, self._is("Greater", parts.rest))

    def _towards_zero(self, name: str) -> str:
        if self._is_whole(name):
            return self._integer(name)
        parts = self._quotient(name)
        if is_op(self._index.makers[name], "Div"):
            return parts.whole
        above = self._both(self._is("Less", parts.rest), self._is("Greater", parts.whole))
        below = self._both(self._is("Greater", parts.rest), self._is("Less", parts.whole))
        return self._corrected("Add", self._corrected("Sub", parts.whole, above), below)

    def _is(self, how: str, value: str) -> str:
        zero = self.added.number(f"{value}_zero", 0, np.int64)
        return self.added.op(how, value, zero, out=f"{value}_is_{how.lower()}")

    def _both(self, first: str, second: str) -> str:
        return self.added.op("And", first, second, out=f"{first}_both")

    def _corrected(self, how: str, value: str, where: str) -> str:
        one = self.added.op("Cast", where, out=f"{where}_number", to=TensorProto.INT64)
        return self.added.op(how, value, one, out=f"{value}_rounded")

    def _new_quotient(self, name: str) -> _Quotient:
        node = self._index.makers[name]
        if not is_op(node, "Div"):
            ratio, other = self._ratio_first(node)
            parts = self._quotient(ratio)
            return _Quotient(
                self.added.op(node.op_type, parts.whole, self._integer(other), out=f"{name}_moved"), parts.rest
            )
        divided, size = self._by_a_positive(name, *map(str, node.input))
        cut = self.added.op("Div", divided, size, out=f"{name}_cut")
        whole = self.added.op("Mul", cut, size, out=f"{name}_whole")
        return _Quotient(cut, self.added.op("Sub", divided, whole, out=f"{name}_rest"))

    def _by_a_positive(self, name: str, divided: str, divisor: str) -> tuple[str, str]:
        """What is divided, and by what, so that the quotient is the same and the divisor positive."""
        given, constant = self._integer(divided), whole_constant(self._index, divisor)
        if constant is not None:
            size = self.added.constant(f"{name}_size", np.abs(constant).astype(np.int64))
            if (constant > 0).all():
                return given, size
            sign = self.added.constant(f"{name}_sign", np.sign(constant).astype(np.int64))
            return self.added.op("Mul", given, sign, out=f"{name}_turned"), size
        by = self._integer(divisor)
        one, minus_one = (self.added.number(f"{name}_one", number, np.int64) for number in (1, -1))
        turned = self.added.op("Mul", given, minus_one, out=f"{name}_negative")
        turned = self.added.op("Where", self._is("Less", by), turned, given, out=f"{name}_turned")
        size = self.added.op("Max", self.added.op("Abs", by, out=f"{name}_size"), one, out=f"{name}_divisor")
        return turned, size
