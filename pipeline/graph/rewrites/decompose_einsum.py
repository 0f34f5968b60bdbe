"""Write an Einsum as the products, sums and transpositions that it is.

Before::

    Einsum<"bihd,bjhd->bhij">(a, b)

After, with each index of the equation sorted by where it occurs (both operands and the result, both operands only, one
operand only), and indices of one kind made one dim::

    MatMul(Reshape(Transpose(a)), Reshape(Transpose(b)))          reshaped and transposed to the result
    Mul(Reshape(Transpose(a)), Reshape(Transpose(b)))             if no index is summed over
    Transpose(a)                                                  if there is one operand

In front of that, each operand by itself::

    Slice(Reshape(Transpose(a)))                                  an index that occurs twice in it: a diagonal
    ReduceSum(a)                                                  an index that nothing else has

Of three operands and more, the two whose product is smallest become one, until there are two. An ellipsis stands for
indices that have no letter.

QNN EP 2.7 takes a handful of equations and leaves the others to the CPU: seven partitions for an XLNet of two layers,
which is one of these. A constant operand is rearranged here, so that it stays a weight; steps that would do nothing are
left out. The result keeps its name. The same products are added, in another order. Left alone: integers, and an operand
whose dims are not those of its indices.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.attributes import text
from pipeline.graph.ir.index import LazyIndex, element_type, is_op, set_nodes
from pipeline.graph.ir.node_builder import Additions

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_ELLIPSIS = "..."


@dataclass(frozen=True)
class _Operand:
    """A value with a letter for each of its dims, and its elements if it is a constant."""

    name: str
    letters: str
    values: NDArray[Any] | None = None


@dataclass(frozen=True)
class _Step:
    """A node of one input that is to be written behind a value; `given` are constants that it reads besides."""

    kind: str
    stem: str
    given: tuple[list[int], ...] = ()
    perm: list[int] | None = None

    def write(self, added: Additions, name: str, out: str, *, last: bool) -> str:
        """Add the node, as the one that makes the result if it is the last; returns what it makes."""
        constants = [added.integers(f"{out}_{self.stem}", *values) for values in self.given]
        attributes: dict[str, Any] = {"keepdims": 0} if self.kind == "ReduceSum" else {}
        if self.perm is not None:
            attributes["perm"] = self.perm
        if not last:
            return added.op(self.kind, name, *constants, out=f"{out}_{self.stem}", **attributes)
        added.replace(self.kind, name, *constants, out=out, **attributes)
        return out


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Einsum of floats; returns their number."""
    added = Additions(LazyIndex(model, folder))
    nodes: list[NodeProto] = []
    replaced = 0
    for node in model.graph.node:
        equation = _equation(added, node) if is_op(node, "Einsum") else None
        if equation is None:
            nodes.append(node)
            continue
        start = len(added.nodes)
        _write(added, node, *equation)
        nodes += added.nodes[start:]
        replaced += 1
    if replaced:
        added.finish()
        set_nodes(model, nodes)
    return replaced


def _equation(added: Additions, node: NodeProto) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result; None if they don't fit, or if these aren't floats."""
    if element_type(added.index, node.output[0]) not in _FLOATS:
        return None
    given, arrow, result = text(node, "equation").replace(" ", "").partition("->")
    operands, shapes = given.split(","), [added.shape(name) for name in node.input]
    if len(operands) != len(shapes):
        return None
    if not arrow:
        result = _ELLIPSIS if _ELLIPSIS in given else ""
        result += "".join(letter for letter in sorted(set(given) - {".", ","}) if given.count(letter) == 1)
    unnamed = [
        max(0, len(dims) - len(letters) + len(_ELLIPSIS)) if _ELLIPSIS in letters else 0
        for letters, dims in zip(operands, shapes, strict=True)
    ]
    free = "".join(letter for letter in string.ascii_letters if letter not in given)[: max(unnamed)]
    spelled = [
        letters.replace(_ELLIPSIS, free[len(free) - count :]) for letters, count in zip(operands, unnamed, strict=True)
    ]
    if not all(_fits(letters, dims) for letters, dims in zip(spelled, shapes, strict=True)):
        return None
    return spelled, result.replace(_ELLIPSIS, free)


def _fits(letters: str, dims: Sequence[int]) -> bool:
    """Whether there is a letter for each dim, and dims of one letter are equal."""
    return len(letters) == len(dims) and len(set(zip(letters, dims, strict=True))) == len(set(letters))


def _write(added: Additions, node: NodeProto, letters: Sequence[str], result: str) -> None:
    """Add the nodes that make the result of an Einsum."""
    name = node.output[0]
    operands = [_Operand(each, own, added.index.constant(each)) for each, own in zip(node.input, letters, strict=True)]
    if len(operands) == 1:
        steps, left = _thinning(added, operands[0], result)
        if left != result:
            steps.append(_Step("Transpose", "turned", perm=_order(left, result)))
        elif not steps:
            steps.append(_Step("Identity", "same"))
        source = operands[0].name
        for step in steps:
            source = step.write(added, source, name, last=step is steps[-1])
        return
    for position, operand in enumerate(operands):
        wanted = result + "".join(other.letters for other in operands if other is not operand)
        operands[position] = _thinned(added, operand, wanted, f"{name}_{string.ascii_lowercase[position]}")
    while len(operands) > 2:
        operands = _with_one_product(added, operands, result, f"{name}_part")
    _Product(added, operands[0], operands[1], result, name).write(last=True)


def _thinning(added: Additions, operand: _Operand, wanted: str) -> tuple[list[_Step], str]:
    """What leaves an operand each of its letters once, and the `wanted` ones alone; and the letters in their order."""
    letters, steps = operand.letters, []
    sizes = dict(zip(letters, added.shape(operand.name), strict=True))
    for letter in dict.fromkeys(operand.letters):
        times, size = letters.count(letter), sizes[letter]
        if times == 1:
            continue
        rest = letters.replace(letter, "")
        places = [axis for axis, each in enumerate(letters) if each == letter]
        perm = [axis for axis, each in enumerate(letters) if each != letter] + places
        if perm != sorted(perm):
            steps.append(_Step("Transpose", "turned", perm=perm))
        steps.append(_Step("Reshape", "joined", ([*(sizes[each] for each in rest), size**times],)))
        apart = sum(size**power for power in range(times))
        steps.append(_Step("Slice", "diagonal", ([0], [size**times], [len(rest)], [apart])))
        letters = rest + letter
    summed = [axis for axis, letter in enumerate(letters) if letter not in wanted]
    if summed:
        steps.append(_Step("ReduceSum", "sum", (summed,)))
    return steps, "".join(letter for letter in letters if letter in wanted)


def _thinned(added: Additions, operand: _Operand, wanted: str, stem: str) -> _Operand:
    steps, letters = _thinning(added, operand, wanted)
    if not steps:
        return operand
    if operand.values is not None:
        return _constant(added, [operand], letters, stem)
    name = operand.name
    for step in steps:
        name = step.write(added, name, stem, last=False)
    return _Operand(name, letters)


def _constant(added: Additions, operands: Sequence[_Operand], letters: str, stem: str) -> _Operand:
    """What an equation makes of constants."""
    equation = ",".join(operand.letters for operand in operands) + "->" + letters
    values = np.asarray(np.einsum(equation, *(operand.values for operand in operands if operand.values is not None)))
    return _Operand(added.constant(stem, values), letters, values)


def _with_one_product(added: Additions, operands: list[_Operand], result: str, stem: str) -> list[_Operand]:
    """Operands of which the two with the smallest product are replaced by it, in the place of the first."""
    sizes: dict[str, int] = {}
    for operand in operands:
        for letter, size in zip(operand.letters, added.shape(operand.name), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))

    def letters_of(first: int, second: int) -> str:
        others = [operand.letters for place, operand in enumerate(operands) if place not in (first, second)]
        left, right = operands[first].letters, operands[second].letters
        needed = "".join(others) + result
        if all(letter in needed for letter in left if letter in right):
            return left + "".join(letter for letter in right if letter not in left)
        kept = "".join(letter for letter in left if letter in right and letter in needed)
        return kept + "".join(letter for letter in left + right if (letter in left) != (letter in right))

    pairs = itertools.combinations(range(len(operands)), 2)
    first, second = min(pairs, key=lambda pair: math.prod(sizes[letter] for letter in letters_of(*pair)))
    left, right, letters = operands[first], operands[second], letters_of(first, second)
    if left.values is not None and right.values is not None:
        product = _constant(added, (left, right), letters, stem)
    else:
        product = _Operand(_Product(added, left, right, letters, stem).write(last=False), letters)
    return [product if place == first else each for place, each in enumerate(operands) if place != second]


class _Product:
    """Writes a product of two operands, each of whose letters the other or the result has."""

    def __init__(self, added: Additions, left: _Operand, right: _Operand, result: str, out: str) -> None:
        self._added = added
        self._operands = left, right
        self._letters = result
        self._out = out
        self._last = False
        self._sizes: dict[str, int] = {}
        for operand in self._operands:
            for letter, size in zip(operand.letters, added.shape(operand.name), strict=True):
                self._sizes[letter] = max(size, self._sizes.get(letter, 1))
        self._kept = "".join(letter for letter in result if letter in left.letters and letter in right.letters)
        self._summed = "".join(letter for letter in left.letters if letter in right.letters and letter not in result)

    def write(self, *, last: bool) -> str:
        """Add the nodes, of which one makes the result if this is the last product; returns what they make."""
        self._last = last
        return self._contract() if self._summed else self._multiply()

    def _multiply(self) -> str:
        sides = []
        for position, operand in enumerate(self._operands):
            letters = "".join(letter for letter in self._letters if letter in operand.letters)
            dims = [self._size(operand, letter) if letter in letters else 1 for letter in self._letters]
            sides.append(self._arranged(position, letters, dims))
        return self._end("Mul", *sides)

    def _contract(self) -> str:
        kept, summed = self._kept, self._summed
        left, right = self._free(0), self._free(1)
        batch = [self._sizes[letter] for letter in kept]
        columns, inner = self._count(right), self._count(summed)
        # A matrix for all leaves the other operand's dims as they are; one for each place of the batch takes two.
        rows = [self._count(left)] if kept or not left else [self._sizes[letter] for letter in left]
        a = self._arranged(0, kept + left + summed, [*batch, *rows, inner])
        b = self._arranged(1, kept + summed + right, [*batch, inner, columns])
        made = kept + left + right
        shape = [self._sizes[letter] for letter in made]
        is_shaped, is_ordered = shape == [*batch, *rows, columns], made == self._letters
        if is_shaped and is_ordered:
            return self._end("MatMul", a, b)
        product = self._added.op("MatMul", a, b, out=f"{self._out}_product")
        if is_ordered:
            return self._end("Reshape", product, self._shape("shape", shape))
        if not is_shaped:
            product = self._added.op("Reshape", product, self._shape("shape", shape), out=f"{self._out}_split")
        return self._end("Transpose", product, perm=_order(made, self._letters))

    def _free(self, position: int) -> str:
        """The letters that one operand has, and the other lacks."""
        mine, other = self._operands[position].letters, self._operands[1 - position].letters
        return "".join(letter for letter in self._letters if letter in mine and letter not in other)

    def _arranged(self, position: int, letters: str, dims: list[int]) -> str:
        """An operand with its letters in another order, and then in other dims."""
        operand = self._operands[position]
        name, side = operand.name, "ab"[position]
        stem = f"{self._out}_{side}"
        # A dim of 1 stands for one of another size where the operands broadcast; MatMul wants it in full.
        full = [self._sizes[letter] for letter in operand.letters]
        if not self._summed:
            full = list(self._added.shape(name))
        if operand.values is not None:
            turned = np.broadcast_to(operand.values, full).transpose(_order(operand.letters, letters)).reshape(dims)
            is_same = turned.shape == operand.values.shape and operand.letters == letters
            return name if is_same else self._added.constant(stem, np.ascontiguousarray(turned))
        if full != list(self._added.shape(name)):
            name = self._added.op("Expand", name, self._shape(f"{side}_full", full), out=f"{stem}_full")
        if operand.letters != letters:
            perm = _order(operand.letters, letters)
            name = self._added.op("Transpose", name, out=f"{stem}_turned", perm=perm)
        if dims != list(self._added.shape(name)):
            name = self._added.op("Reshape", name, self._shape(f"{side}_shape", dims), out=f"{stem}_joined")
        return name

    def _end(self, kind: str, *inputs: str, **attributes: Any) -> str:
        if not self._last:
            return self._added.op(kind, *inputs, out=self._out, **attributes)
        self._added.replace(kind, *inputs, out=self._out, **attributes)
        return self._out

    def _shape(self, what: str, dims: list[int]) -> str:
        return self._added.integers(f"{self._out}_{what}", *dims)

    def _size(self, operand: _Operand, letter: str) -> int:
        return self._added.shape(operand.name)[operand.letters.index(letter)]

    def _count(self, letters: str) -> int:
        return math.prod(self._sizes[letter] for letter in letters)


def _order(have: str, want: str) -> list[int]:
    """The permutation that puts the axes `have` into the order `want`."""
    return [have.index(letter) for letter in want]
