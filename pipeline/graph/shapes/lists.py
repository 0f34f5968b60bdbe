"""Lists of tensors (ONNX calls them sequences), followed by name until only tensors are left.

    s = SplitToSequence(x)   y = SequenceAt(s, 1)   z = ConcatFromSequence(s)

becomes::

    s0, s1 = Split(x)        y = Identity(s1)       z = Concat(s0, s1)

PyTorch's older exporter writes splits, stacks and lists that loops append to like this. Which tensors a list holds is
known once shapes are, and loops are written out before, so that a list that grows in one is known, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.inference import ShapeError
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS
from pipeline.graph.shapes import shape_errors


class Lists:
    """The lists of one model: which tensors each holds.

    `known` gives the value of a constant, None for any other value; `dims` the shape of any tensor.
    """

    def __init__(self, known: Callable[[str], NDArray[Any] | None], dims: Callable[[str], Sequence[int]]) -> None:
        self._known = known
        self._dims = dims
        self._held: dict[str, tuple[str, ...]] = {}

    def write_out(self, node: NodeProto) -> GraphProto | None:
        """Nodes on tensors in place of one that makes or reads a list; None for any other node.

        Raises:
            ModelError: what a list holds, or which of it is taken, follows from data.
        """
        if node.domain not in DEFAULT_DOMAINS:
            return None
        part = GraphProto()
        held = [self._held.get(name) for name in node.input]
        match node.op_type:
            case "SequenceEmpty":
                self._held[node.output[0]] = ()
            case "SequenceConstruct":
                self._held[node.output[0]] = tuple(node.input)
            case "SplitToSequence":
                return self._split(node, part)
            case "Identity" if held[0] is not None:
                self._held[node.output[0]] = held[0]
            case "SequenceInsert" | "SequenceErase" | "SequenceAt" if held[0] is not None:
                return self._at(node, held[0], part)
            case "SequenceLength" if held[0] is not None:
                part.initializer.append(numpy_helper.from_array(np.array(len(held[0])), node.output[0]))
            case "ConcatFromSequence" if held[0]:
                _concat(node, held[0], part)
            case _:
                return None
        return part

    def _at(self, node: NodeProto, held: tuple[str, ...], part: GraphProto) -> GraphProto:
        """Insert, erase or take the tensor at a place; without one, at the end."""
        inserts = node.op_type == "SequenceInsert"
        given = node.input[2 if inserts else 1 :]
        place = len(held) if inserts else len(held) - 1
        if given and given[0]:
            value = self._known(given[0])
            if value is None:
                raise shape_errors.list_depends_on_data(node, given[0])
            place = int(value.item())
        place = place + len(held) if place < 0 else place
        if not 0 <= place < len(held) + inserts:
            raise ShapeError(f"the list holds {len(held)} tensors, and place {place} is asked for")
        if inserts:
            self._held[node.output[0]] = (*held[:place], node.input[1], *held[place:])
        elif node.op_type == "SequenceErase":
            self._held[node.output[0]] = held[:place] + held[place + 1 :]
        else:
            part.node.append(helper.make_node("Identity", [held[place]], list(node.output), node.name))
        return part

    def _split(self, node: NodeProto, part: GraphProto) -> GraphProto:
        dims = self._dims(node.input[0])
        axis = integer(node, "axis") % max(len(dims), 1)
        ones = len(node.input) < 2 or not node.input[1]
        value = np.array(1) if ones else self._known(node.input[1])
        if value is None:
            raise shape_errors.list_depends_on_data(node, node.input[1])
        if value.ndim:
            sizes = [int(size) for size in value]
        else:
            step = max(int(value), 1)
            sizes = [min(step, dims[axis] - start) for start in range(0, dims[axis], step)]
        if not sizes or sum(sizes) != dims[axis]:
            raise ShapeError(f"parts of {sizes} don't make up the {dims[axis]} of axis {axis}")
        name = node.output[0]
        names = [f"{name}/{number}" for number in range(len(sizes))]
        part.initializer.append(numpy_helper.from_array(np.array(sizes), f"{name}/sizes"))
        part.node.append(helper.make_node("Split", [node.input[0], f"{name}/sizes"], names, node.name, axis=axis))
        if ones and not integer(node, "keepdims", 1):
            part.initializer.append(numpy_helper.from_array(np.array([axis]), f"{name}/axis"))
            flat = [f"{each}/flat" for each in names]
            for given, made in zip(names, flat, strict=True):
                part.node.append(helper.make_node("Squeeze", [given, f"{name}/axis"], [made], made))
            names = flat
        self._held[name] = tuple(names)
        return part


def _concat(node: NodeProto, held: tuple[str, ...], part: GraphProto) -> None:
    axis, name = integer(node, "axis"), node.output[0]
    if integer(node, "new_axis"):
        part.initializer.append(numpy_helper.from_array(np.array([axis]), f"{name}/axis"))
        taller = [f"{name}/{number}" for number in range(len(held))]
        for given, made in zip(held, taller, strict=True):
            part.node.append(helper.make_node("Unsqueeze", [given, f"{name}/axis"], [made], made))
        held = tuple(taller)
    part.node.append(helper.make_node("Concat", list(held), [name], node.name, axis=axis))
