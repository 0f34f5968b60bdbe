"""Cast to integers before what is cast is bounded or chosen from, where that gives the same.

Before, as a model that takes its tokens as floats bounds them, or hides some::

    row = Cast(Clip(x, 0, 2999), to=int)
    row = Cast(Where(hidden, 0, Mul(x, Cast(valid, to=float))), to=int)

After::

    row = Min(Max(Cast(x, to=int), 0), 2999)
    row = Where(hidden, 0, Mul(Cast(x, to=int), Cast(valid, to=int)))

A Cast cuts towards zero, which keeps order and signs: it may stand in front of a choice, of bounds that are whole, of
signs and sizes, and of a product with a boolean. HTP casts an input of the model in float32, and computes in float16,
or in the steps of an encoding, what stands between: of rows beyond 2048 neighbours become one, and of 60,000 in 16
bits, of which calibration had half, 487 of 1,200 were other rows behind a Where.

The result keeps its name. Left alone: what is rounded or added to, which a fraction may tell from its whole part;
leaves that are neither inputs of the model, nor whole constants, nor integers; what is moved and nothing else. Beyond
2^31 the two differ, as there are no such integers on HTP.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, LazyIndex, element_type, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.recursion import Recursive
from pipeline.graph.ir.whole_constants import whole_constant

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_EXACT = (*_INTEGERS, TensorProto.BOOL)
_BOUNDS = ("Max", "Min", "Relu", "Clip")
_CHOOSES = (*_BOUNDS, "Abs", "Neg", "Where", "Mul")
_MOVES = (*VIEWS, "Expand", "Slice", "Transpose")


def apply(model: ModelProto, folder: Path) -> int:
    """Move every Cast to integers in front of what it can stand in front of; returns their number."""
    if not any(is_op(node, *_CHOOSES) for node in model.graph.node):
        return 0
    casting = _Casting(LazyIndex(model, folder))
    found = [node for node in model.graph.node if casting.moves(node)]
    if found:
        casting.added.join()
    return len(found)


class _Casting:
    """Float values whose whole parts follow from those of inputs and constants, and these as integers."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self.added = Additions(index)
        self._is_known = Recursive(self._find_known)
        self._is_chosen = Recursive(self._find_chosen)
        """Whether a value is bounded or chosen from somewhere on its way."""
        self._made: dict[int, Recursive[str]] = {kind: Recursive(partial(self._integer, kind)) for kind in _INTEGERS}
        """What integers of a kind a value is cast to."""

    def moves(self, node: NodeProto) -> bool:
        """Add what casts earlier than a node does, if it is a Cast that can be moved."""
        if not is_op(node, "Cast") or not is_float32(self._index, node.input[0]):
            return False
        kind, given = element_type(self._index, node.output[0]), node.input[0]
        if kind not in _INTEGERS or not self._is_chosen(given) or not self._is_known(given):
            return False
        self.added.replace("Cast", self._made[kind](given), out=node.output[0], to=kind)
        return True

    def _given(self, node: NodeProto) -> list[str]:
        """The values that a node chooses from, or moves."""
        if is_op(node, *_MOVES):
            return [str(node.input[0])]
        return [str(name) for name in (node.input[1:] if is_op(node, "Where") else node.input) if name]

    def _find_known(self, name: str) -> bool:
        node = self._index.makers.get(name)
        if node is None:
            is_constant = name in self._index.initializers
            return is_float32(self._index, name) and (not is_constant or whole_constant(self._index, name) is not None)
        if is_op(node, "Cast"):
            return self._is_exact(node)
        if not is_op(node, *_CHOOSES, *_MOVES) or (is_op(node, "Clip") and settings(node)):
            return False
        if is_op(node, "Mul") and not any(self._is_boolean(given) for given in node.input):
            return False
        return all(map(self._is_known, self._given(node)))

    def _find_chosen(self, name: str) -> bool:
        node = self._index.maker(name, *_CHOOSES, *_MOVES)
        if node is None:
            return False
        return is_op(node, *_CHOOSES) or self._is_chosen(node.input[0])

    def _is_exact(self, cast: NodeProto) -> bool:
        given = cast.input[0]
        return given in self._index.types and element_type(self._index, given) in _EXACT

    def _is_boolean(self, name: str) -> bool:
        cast = self._index.maker(name, "Cast")
        return cast is not None and element_type(self._index, cast.input[0]) == TensorProto.BOOL

    def _integer(self, kind: int, name: str) -> str:
        node, out, dtype = self._index.makers.get(name), f"{name}_integer", helper.tensor_dtype_to_np_dtype(kind)
        constant = whole_constant(self._index, name) if node is None else None
        if constant is not None:
            return self.added.constant(out, constant.astype(dtype))
        if node is None or is_op(node, "Cast"):
            return self.added.op("Cast", name if node is None else node.input[0], out=out, to=kind)
        made = [self._made[kind](given) for given in self._given(node)]
        if is_op(node, *_MOVES):
            return self.added.op(node.op_type, made[0], *node.input[1:], out=out, **settings(node))
        if is_op(node, "Where"):
            return self.added.op("Where", node.input[0], *made, out=out)
        if is_op(node, "Neg"):
            return self.added.op("Mul", made[0], self.added.number(f"{name}_minus_one", -1, dtype), out=out)
        if is_op(node, "Relu"):
            return self.added.op("Max", made[0], self.added.number(f"{name}_zero", 0, dtype), out=out)
        if is_op(node, "Clip"):
            for bound, limit in zip(("Max", "Min"), node.input[1:], strict=False):
                made[0] = self.added.op(bound, made[0], self._made[kind](limit), out=out) if limit else made[0]
            return made[0]
        return self.added.op(node.op_type, *made, out=out)


AFTER = {"compute_lengths_in_integers": "it casts integers to the floats that were rounded, and they may be bounded"}
