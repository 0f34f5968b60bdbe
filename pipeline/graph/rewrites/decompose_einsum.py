"""Write an Einsum as the Transpose, MatMul or Mul that it is.

Before::

    Einsum<"bihd,bjhd->bhij">(a, b)

After, with each index of the equation sorted by where it occurs (both operands and the result, both operands only, one
operand only), and indices of one kind made one dim::

    MatMul(Reshape(Transpose(a)), Reshape(Transpose(b)))          reshaped and transposed to the result
    Mul(Reshape(Transpose(a)), Reshape(Transpose(b)))             if no index is summed over
    Transpose(a)                                                  if there is one operand

QNN EP 2.7 takes a handful of equations and leaves the others to the CPU: seven partitions for an XLNet of two layers,
which is one of these. A constant operand is rearranged here, so that it stays a weight; steps that would do nothing are
left out. The result keeps its name. Left alone: three operands, an ellipsis, an index that occurs twice in an operand,
one that is summed over in one operand alone, integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.attributes import text
from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op, set_nodes
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class _Equation:
    operands: tuple[str, ...]
    result: str

    @property
    def kept(self) -> str:
        """The indices of both operands and the result."""
        left, right = self.operands
        return "".join(index for index in self.result if index in left and index in right)

    @property
    def summed(self) -> str:
        """The indices of both operands that the result lacks."""
        left, right = self.operands
        return "".join(index for index in left if index in right and index not in self.result)

    def free(self, position: int) -> str:
        """The indices of one operand and the result."""
        mine, other = self.operands[position], self.operands[1 - position]
        return "".join(index for index in self.result if index in mine and index not in other)


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Einsum that is a product or a transposition; returns their number."""
    index = LazyIndex(model, folder)
    added = Additions(index)
    nodes: list[NodeProto] = []
    replaced = 0
    for node in model.graph.node:
        equation = _equation(index, node) if is_op(node, "Einsum") else None
        if equation is None:
            nodes.append(node)
            continue
        start = len(added.nodes)
        _Plain(index, added, node, equation).write()
        nodes += added.nodes[start:]
        replaced += 1
    if replaced:
        added.finish()
        set_nodes(model, nodes)
    return replaced


def _equation(index: GraphIndex, node: NodeProto) -> _Equation | None:
    equation = text(node, "equation").replace(" ", "")
    given, arrow, result = equation.partition("->")
    operands = tuple(given.split(","))
    indices = "".join(operands)
    if not arrow:
        result = "".join(sorted(letter for letter in set(indices) if indices.count(letter) == 1))
    if "." in equation or len(operands) > 2 or any(len(set(operand)) < len(operand) for operand in operands):
        return None
    if not all(_has_dims(index, name, operand) for name, operand in zip(node.input, operands, strict=True)):
        return None
    alone = [letter for letter in indices if indices.count(letter) == 1 and letter not in result]
    return None if alone or not result else _Equation(operands, result)


def _has_dims(index: GraphIndex, name: str, operand: str) -> bool:
    if name in index.initializers:
        tensor = index.initializers[name]
        return tensor.data_type in _FLOATS and len(tensor.dims) == len(operand)
    kind = index.types.get(name)
    return kind is not None and kind.tensor_type.elem_type in _FLOATS and len(shape_of(kind)) == len(operand)


class _Plain:
    """Writes one Einsum out."""

    def __init__(self, index: GraphIndex, added: Additions, node: NodeProto, equation: _Equation) -> None:
        self._index = index
        self._added = added
        self._names = [str(name) for name in node.input]
        self._result = node.output[0]
        self._equation = equation
        self._sizes: dict[str, int] = {}
        for name, operand in zip(node.input, equation.operands, strict=True):
            for letter, size in zip(operand, added.shape(name), strict=True):
                self._sizes[letter] = max(size, self._sizes.get(letter, 1))

    def write(self) -> None:
        """Add the nodes that make the result."""
        equation = self._equation
        if len(equation.operands) == 1:
            self._end("Transpose", self._names[0], perm=_order(equation.operands[0], equation.result))
        elif not equation.summed:
            self._multiply()
        else:
            self._contract()

    def _multiply(self) -> None:
        result = self._equation.result
        sides = []
        for position, operand in enumerate(self._equation.operands):
            indices = "".join(letter for letter in result if letter in operand)
            dims = [self._size(position, letter) if letter in operand else 1 for letter in result]
            sides.append(self._arranged(position, indices, dims))
        self._end("Mul", *sides)

    def _contract(self) -> None:
        equation, kept, summed = self._equation, self._equation.kept, self._equation.summed
        left, right = equation.free(0), equation.free(1)
        batch = [self._sizes[letter] for letter in kept]
        columns, inner = self._count(right), self._count(summed)
        # A matrix for all leaves the other operand's dims as they are; one for each place of the batch takes two.
        rows = [self._count(left)] if kept or not left else [self._sizes[letter] for letter in left]
        a = self._arranged(0, kept + left + summed, [*batch, *rows, inner])
        b = self._arranged(1, kept + summed + right, [*batch, inner, columns])
        made = kept + left + right
        shape = [self._sizes[letter] for letter in made]
        is_shaped, is_ordered = shape == [*batch, *rows, columns], made == equation.result
        if is_shaped and is_ordered:
            self._end("MatMul", a, b)
            return
        product = self._added.op("MatMul", a, b, out=f"{self._result}_product")
        if is_ordered:
            self._end("Reshape", product, self._shape("shape", shape))
            return
        if not is_shaped:
            product = self._added.op("Reshape", product, self._shape("shape", shape), out=f"{self._result}_split")
        self._end("Transpose", product, perm=_order(made, equation.result))

    def _arranged(self, position: int, indices: str, dims: list[int]) -> str:
        """An operand with its indices in another order, and then in other dims."""
        name, operand = self._names[position], self._equation.operands[position]
        stem = f"{self._result}_{'ab'[position]}"
        # A dim of 1 stands for one of another size where the operands broadcast; MatMul wants it in full.
        full = [self._sizes[letter] for letter in operand]
        if not self._equation.summed:
            full = list(self._added.shape(name))
        constant = self._index.constant(name) if name in self._index.initializers else None
        if constant is not None:
            turned = np.broadcast_to(constant, full).transpose(_order(operand, indices)).reshape(dims)
            is_same = turned.shape == constant.shape and operand == indices
            return name if is_same else self._added.constant(stem, np.ascontiguousarray(turned))
        if full != list(self._added.shape(name)):
            name = self._added.op("Expand", name, self._shape(f"{'ab'[position]}_full", full), out=f"{stem}_full")
        if operand != indices:
            name = self._added.op("Transpose", name, out=f"{stem}_turned", perm=_order(operand, indices))
        if dims != list(self._added.shape(name)):
            name = self._added.op("Reshape", name, self._shape(f"{'ab'[position]}_shape", dims), out=f"{stem}_joined")
        return name

    def _end(self, kind: str, *inputs: str, **attributes: list[int]) -> None:
        self._added.replace(kind, *inputs, out=self._result, **attributes)

    def _shape(self, what: str, dims: list[int]) -> str:
        return self._added.integers(f"{self._result}_{what}", *dims)

    def _size(self, position: int, letter: str) -> int:
        dims = self._added.shape(self._names[position])
        return dims[self._equation.operands[position].index(letter)]

    def _count(self, indices: str) -> int:
        return math.prod(self._sizes[letter] for letter in indices)


def _order(have: str, want: str) -> list[int]:
    """The permutation that puts the axes `have` into the order `want`."""
    return [have.index(letter) for letter in want]
