"""Means over a mask: which values of a graph are one, and of what.

Known are sums and means of a product or a Where, and products of matrices with the mask, divided by the sum or mean of
the same mask or by a number that the model is given; or with the mask divided first::

    Div(ReduceSum(Mul(x, mask)), Max(ReduceSum(mask), floor))          MatMul(Div(mask, ReduceSum(mask)), x)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.moves import KEEPING
from pipeline.graph.quantization.ranges import Range

_SUMS = ("ReduceMean", "ReduceSum")
_BOUNDED = ("Add", "Clip", "Max", "Min")
"""What keeps a count from being zero."""


@dataclass(frozen=True)
class MaskedMean:
    """A mean over a mask, and the values that make it; a name is empty where it is made without."""

    name: str
    of: str
    """What is averaged."""
    total: str
    """The sum that is divided."""
    share: str
    """What each token counts: the mask divided, or the inverse of how many there are."""


def masked_means(index: GraphIndex, ranges: Mapping[str, Range]) -> list[MaskedMean]:
    """The means over masks, in the graph's order. `ranges` tell which integers are a mask: those from 0 to 1."""
    finder = _Finder(index, ranges)
    return [found for node in index.model.graph.node if node.output for found in finder.means(node)]


class _Finder:
    def __init__(self, index: GraphIndex, ranges: Mapping[str, Range]) -> None:
        self._index = index
        self._ranges = ranges
        self._inputs = {value.name for value in index.model.graph.input} - set(index.initializers)

    def means(self, node: NodeProto) -> Iterator[MaskedMean]:
        """The mean that a node gives, if it gives one."""
        name = str(node.output[0])
        for value, by in self._weighed(node):
            share = self._index.maker(self._kept(by), "Div")
            if share is not None and self._counts(str(share.input[1]), self._mask(str(share.input[0]))):
                yield MaskedMean(name, value, "", str(share.output[0]))
        for total, count, inverse in self._quotients(node):
            maker = self._index.makers.get(self._kept(total))
            for value, by in self._weighed(maker) if maker is not None else ():
                if maker is not None and self._counts(count, self._mask(by)):
                    summed = "" if is_op(maker, "ReduceMean") else str(maker.output[0])
                    yield MaskedMean(name, value, summed, inverse)

    def _weighed(self, node: NodeProto) -> Iterator[tuple[str, str]]:
        """What a node sums up, and what it may be weighed by; of a product either may be the one or the other."""
        product: NodeProto | None = node if is_op(node, "MatMul") else None
        if is_op(node, *_SUMS):
            product = self._index.maker(self._kept(str(node.input[0])), "Mul", "Where")
        if product is not None and is_op(product, "Where"):
            condition, *values = map(str, product.input)
            for value, other in (values, values[::-1]):
                if self._index.scalar(other) == 0:
                    yield value, condition
        elif product is not None:
            left, right = map(str, product.input)
            yield from ((left, right), (right, left))

    def _quotients(self, node: NodeProto) -> Iterator[tuple[str, str, str]]:
        """What a node divides, by what, and the inverse of that if it multiplies by one."""
        if is_op(node, "Div"):
            yield str(node.input[0]), str(node.input[1]), ""
        elif is_op(node, "Mul"):
            left, right = map(str, node.input)
            for given, name in ((left, right), (right, left)):
                inverse = self._index.maker(self._kept(name), "Reciprocal")
                if inverse is not None:
                    yield given, str(inverse.input[0]), str(inverse.output[0])

    def _counts(self, name: str, mask: str | None) -> bool:
        """Whether a value is how much there is of a mask, or a number of things that the model is given."""
        name = self._kept(name)
        while (node := self._index.maker(name, *_BOUNDED)) is not None:
            computed = [str(each) for each in node.input if each and each not in self._index.initializers]
            if len(computed) != 1:
                return False
            name = self._kept(computed[0])
        summed = self._index.maker(name, *_SUMS)
        counted = self._mask(str(summed.input[0])) if summed is not None else None
        given = name in self._inputs and element_type(self._index, name) in WHOLE
        return mask is not None and (given or counted == mask)

    def _mask(self, name: str) -> str | None:
        """What a mask is made of by moving it and changing its type; None if a value is no mask."""
        root = self._kept(name)
        seen = [self._ranges[each] for each in (name, root) if each in self._ranges]
        if root in self._index.initializers or any(each.low < 0 or each.high > 1 for each in seen):
            return None
        made = self._index.maker(root, "Mul", "Sub")
        if made is not None:
            inverted = is_op(made, "Sub") and self._index.scalar(made.input[0]) == 1
            parts = [None] if is_op(made, "Sub") and not inverted else map(self._mask, made.input[int(inverted) :])
            return root if None not in parts else None
        kind = element_type(self._index, root)
        given = root in self._inputs and is_float(self._index, root) and root in self._ranges
        return root if given or kind == TensorProto.BOOL or kind in WHOLE else None

    def _kept(self, name: str) -> str:
        """The value that one is but for its type and where its elements stand."""
        while (node := self._index.maker(name, *KEEPING)) is not None:
            name = str(node.input[0])
        return name
