"""Keeps the operators of a branch that is computed though it was not chosen within what they are defined for.

An If may be what keeps a divisor from being zero, or an index within its table. Computed both ways, the branch meets
just what the If kept from it: onnxruntime stops at a division of integers by zero and at an index out of range, and
HTP reads past the table. Where the branch is not chosen, the operand is a harmless value::

    d = Div(a, n)      becomes      g = Where(chosen, n, 1);  d = Div(a, g)

Floats need nothing: a division by zero gives an infinity, which the choice throws away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TypeProto, helper, numpy_helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.inference import is_static, shape_of
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS


@dataclass(frozen=True)
class _Hazard:
    """An integer operand that not every value may be given for.

    `operand` is its position and `harmless` a value that it may always have. `table` is the position of the input whose
    dims bound it, where it is an index.
    """

    operand: int
    harmless: int
    table: int | None = None


_HAZARDS: Mapping[str, _Hazard] = {
    "Div": _Hazard(1, 1),
    "Mod": _Hazard(1, 1),
    "Gather": _Hazard(1, 0, 0),
    "GatherElements": _Hazard(1, 0, 0),
    "GatherND": _Hazard(1, 0, 0),
    "Scatter": _Hazard(1, 0, 0),
    "ScatterElements": _Hazard(1, 0, 0),
    "ScatterND": _Hazard(1, 0, 0),
    "ReverseSequence": _Hazard(1, 1, 0),
    "RoiAlign": _Hazard(2, 0, 0),
    "GRU": _Hazard(4, 1, 0),
    "LSTM": _Hazard(4, 1, 0),
    "RNN": _Hazard(4, 1, 0),
}

_CHOSEN_BY_WHERE = (np.int8, np.int32, np.int64, np.uint8, np.uint32)
"""The integers of which onnxruntime's Where chooses; an operand of others stays as it is."""
_ALONG_AN_AXIS = ("Gather", "GatherElements", "Scatter", "ScatterElements")


class Guards:
    """Under which condition the nodes run that a pass goes through, and what they need where it does not hold."""

    def __init__(self, type_of: Callable[[str], TypeProto | None], known: Callable[[str], NDArray[Any] | None]) -> None:
        self._type_of = type_of
        self._known = known
        self._chosen: list[str] = []
        self._harmless: set[str] = set()

    def enter(self, name: str, condition: str, *, holds: bool) -> GraphProto:
        """Go into a branch: a part of a graph that says in value `name`, bool [1], whether the branch is chosen.

        It is where `condition`, of one element, is `holds`, and where the branch around it is chosen, too.
        """
        part = GraphProto()
        part.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), f"{name}_dims"))
        steps = [("Reshape", [condition, f"{name}_dims"])]
        steps += [] if holds else [("Not", [])]
        steps += [("And", [self._chosen[-1]])] if self._chosen else []
        given: list[str] = []
        for count, (operator, inputs) in enumerate(steps, 1):
            made = name if count == len(steps) else f"{name}_{operator}"
            part.node.append(helper.make_node(operator, [*given, *inputs], [made], made))
            given = [made]
        self._chosen.append(name)
        return part

    def leave(self) -> None:
        """Go out of the branch that was entered last."""
        self._chosen.pop()

    def guard(self, node: NodeProto) -> GraphProto | None:
        """What to put where a node stands; None if it may compute whatever it is given."""
        hazard = _HAZARDS.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
        if not self._chosen or hazard is None or len(node.input) <= hazard.operand:
            return None
        operand = node.input[hazard.operand]
        if not operand or operand in self._harmless or self._is_safe(node, operand, hazard):
            return None
        kind = self._type_of(operand)
        if kind is None or not is_static(kind):
            return None
        dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        if dtype not in _CHOSEN_BY_WHERE:
            return None
        name = f"{next(filter(None, node.output))}//guarded"
        rank = len(shape_of(kind))
        part = GraphProto()
        part.initializer.append(numpy_helper.from_array(np.ones(rank, np.int64), f"{name}_dims"))
        part.initializer.append(numpy_helper.from_array(np.full((1,) * rank, hazard.harmless, dtype), f"{name}_else"))
        part.node.append(
            helper.make_node("Reshape", [self._chosen[-1], f"{name}_dims"], [f"{name}_chosen"], f"{name}_chosen")
        )
        part.node.append(helper.make_node("Where", [f"{name}_chosen", operand, f"{name}_else"], [name], name))
        self._harmless.add(name)
        guarded = part.node.add()
        guarded.CopyFrom(node)
        guarded.input[hazard.operand] = name
        return part

    def _is_safe(self, node: NodeProto, operand: str, hazard: _Hazard) -> bool:
        """Whether an operand is a constant that the node takes."""
        values = self._known(operand)
        if values is None or values.size == 0:
            return values is not None
        if hazard.table is None:
            return bool(np.all(values != 0))
        table = self._type_of(node.input[hazard.table])
        if table is None or not is_static(table) or not shape_of(table):
            return False
        dims = shape_of(table)
        size = dims[integer(node, "axis")] if node.op_type in _ALONG_AN_AXIS else min(dims)
        return bool(np.all(values >= -size) and np.all(values < size))
