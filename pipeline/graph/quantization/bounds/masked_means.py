"""Means over a mask: which values of a graph are one, and of what.

Known are sums and means of a product or a Where, and products of matrices with the mask, divided by the sum or mean of
the same mask, by what it is told from (a length), or by a number that the model is given; or with the mask divided
first::

    Div(ReduceSum(Mul(x, mask)), Max(ReduceSum(mask), floor))          MatMul(Div(mask, ReduceSum(mask)), x)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.moves import KEEPING
from pipeline.graph.quantization.calibration.ranges import Range

_SUMS = ("ReduceMean", "ReduceSum")
_BOUNDED = ("Add", "Clip", "Max", "Min")
"""What keeps a count from being zero."""
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not")


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
            while len(factors := self._computed(product)) == 1 and is_op(product, "Mul"):
                if (inner := self._index.maker(self._kept(factors[0]), "Mul")) is None:
                    return
                product = inner
            if len(factors) == 2:
                yield from ((factors[0], factors[1]), (factors[1], factors[0]))

    def _quotients(self, node: NodeProto) -> Iterator[tuple[str, str, str]]:
        """What a node divides, by what, and the inverse of that if it multiplies by one."""
        if is_op(node, "Div"):
            yield str(node.input[0]), str(node.input[1]), ""
        elif is_op(node, "Mul"):
            left, right = map(str, node.input)
            for given, name in ((left, right), (right, left)):
                inverse = self._index.maker(self._kept(name), "Reciprocal", "Div")
                if inverse is None or (is_op(inverse, "Div") and self._index.scalar(inverse.input[0]) != 1):
                    continue
                yield given, str(inverse.input[-1]), str(inverse.output[0])

    def _counts(self, name: str, mask: str | None) -> bool:
        """Whether a value is how much there is of a mask, or a number of things that the model is given."""
        name = self._kept(name)
        while (node := self._index.maker(name, *_BOUNDED)) is not None:
            if len(computed := self._computed(node)) != 1:
                return False
            name = self._kept(computed[0])
        summed = self._index.maker(name, *_SUMS)
        counted = self._mask(str(summed.input[0])) if summed is not None else None
        given = name in self._inputs and element_type(self._index, name) in WHOLE
        return mask is not None and (given or mask in (counted, name))

    def _mask(self, name: str) -> str | None:
        """What a mask is told from: the value that is compared, moved and cast to it. None if a value is no mask.

        What masks and constants are multiplied to is one, too: so tokens are weighed by their places.
        """
        sources = dict[str, None]()
        roots, waiting = set[str](), [name]
        while waiting:
            each = waiting.pop()
            root = self._kept(each)
            made, kind = self._index.makers.get(root), element_type(self._index, root)
            seen = [self._ranges[value] for value in (each, root) if value in self._ranges]
            if root in self._index.initializers or any(values.low < 0 for values in seen):
                return None
            given = root in self._inputs and is_float(self._index, root) and root in self._ranges
            if kind == TensorProto.BOOL:
                sources[self._compared(root)] = None
            elif made is not None and (is_op(made, "Mul") or self._is_rest(made)):
                waiting += self._computed(made) if root not in roots else []
            elif (given or kind in WHOLE) and all(values.high <= 1 for values in seen):
                sources[root] = None
            else:
                return None
            roots.add(root)
        if len(sources) > 1:
            return self._kept(name)
        return next(iter(sources), None)

    def _is_rest(self, node: NodeProto) -> bool:
        """Whether a node gives 1 less a value."""
        return is_op(node, "Sub") and self._index.scalar(node.input[0]) == 1

    def _compared(self, name: str) -> str:
        """What a boolean is told from."""
        while (node := self._index.maker(name, *_COMPARISONS)) is not None and len(self._computed(node)) == 1:
            name = self._kept(self._computed(node)[0])
        return name

    def _computed(self, node: NodeProto) -> list[str]:
        """The inputs of a node that are no constants."""
        return [str(name) for name in node.input if name and name not in self._index.initializers]

    def _kept(self, name: str) -> str:
        """The value that one is but for its type and where its elements stand."""
        while (node := self._index.maker(name, *KEEPING)) is not None:
            name = str(node.input[0])
        return name
