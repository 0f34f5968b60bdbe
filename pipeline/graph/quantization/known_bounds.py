"""Where values end by what computes them, whatever the samples show.

Confident samples give a LogSoftmax that is written out a sum of exponentials from 1 to 2.4 over eight classes; of equal
logits it is 8, and a sum that ends at 2.4 says -0.8 for -2.1. Samples that never fill a length of 16 give a mask whose
sum is 8 at most; of a full one the mean was twice as large. Known are what a boolean is cast to, masks of integers,
exponentials of what the largest was taken away from, sums and means of these, and what is computed of those with
constants; and by how much sums of what is masked grow where the mask is full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.moves import KEEPING
from pipeline.graph.ir.reductions import reduced_axes
from pipeline.graph.quantization.operand_rules import moves_data
from pipeline.graph.quantization.ranges import Range

MOST_SUMMED = 256
"""The most that a sum of fractions gets room for: of 65536 steps one that is near 1 needs some hundred. Whole numbers
need one each."""
_SHARE = Range(0.0, 1.0)


def known_bounds(index: GraphIndex, ranges: Mapping[str, Range] | None = None) -> dict[str, Range]:
    """The bounds of float values of a graph whose nodes are in topological order; of large sums, what gets room.

    `ranges` tell which integers are masks: those that are 0 or 1 in all samples.
    """
    known = _Known(index, ranges or {})
    found = {name: known.with_room(name) for name in known.bounds if is_float(index, name)}
    for name, wider in known.sums_of_masked():
        found[name] = found[name] | wider if name in found else wider
    return found


class _Known:
    """Bounds by value, and what they are of."""

    def __init__(self, index: GraphIndex, ranges: Mapping[str, Range]) -> None:
        self._index = index
        self._ranges = ranges
        self._peaks: dict[str, tuple[int, ...]] = {}
        """The axes along which exponentials are 1 once."""
        self._fractions = set[str]()
        """Those that are of exponentials: no whole numbers."""
        self._masked: list[tuple[str, str]] = []
        """Sums of what is multiplied with a mask, and the mask."""
        self.bounds: dict[str, Range] = {}
        for node in index.model.graph.node:
            bound = self._bound(node) if node.output else None
            if bound is not None:
                self.bounds |= dict.fromkeys(map(str, node.output), bound)
                if not self._fractions.isdisjoint(node.input) or is_op(node, "Exp"):
                    self._fractions.update(map(str, node.output))

    def with_room(self, name: str) -> Range:
        """The bound of a value, and of fractions no more than is worth its steps."""
        bound = self.bounds[name]
        return Range(bound.low, min(bound.high, MOST_SUMMED)) if name in self._fractions else bound

    def sums_of_masked(self) -> Iterator[tuple[str, Range]]:
        """The sums of what is masked, grown as the mask may: from the most that samples had of it to all."""
        counts: dict[str, float] = {}
        for name, bound in self.bounds.items():
            maker, seen = self._index.maker(name, "ReduceSum"), self._ranges.get(name)
            if maker is not None and seen is not None and seen.high > 0:
                counts[self._mask(str(maker.input[0]))] = bound.high / seen.high
        for node in self._index.model.graph.node:
            product = self._index.maker(self._moved(str(node.input[0])), "Mul") if is_op(node, "ReduceSum") else None
            seen = self._ranges.get(str(node.output[0])) if product is not None else None
            if product is None or seen is None or node.output[0] in self.bounds:
                continue
            grown = max((counts.get(self._mask(str(given)), 1.0) for given in product.input), default=1.0)
            if grown > 1:
                yield str(node.output[0]), Range(seen.low * grown, seen.high * grown)

    def _bound(self, node: NodeProto) -> Range | None:
        index, given = self._index, str(node.input[0]) if node.input else ""
        if is_op(node, "Cast"):
            return self._of_cast(node)
        if is_op(node, "Exp"):
            axes = _largest_taken_away(index, given)
            if axes is not None:
                self._peaks[str(node.output[0])] = axes
            return _SHARE if axes is not None else None
        known = self.bounds.get(given)
        if known is not None and is_op(node, "ReduceSum"):
            summed = _size(index, given) / max(1, _size(index, str(node.output[0])))
            one = given in self._peaks and {*self._peaks[given]} <= {*(reduced_axes(index, node) or ())}
            return Range(1.0 if one else summed * known.low, summed * known.high)
        if known is not None and is_op(node, "Log"):
            return Range(math.log(known.low), math.log(known.high)) if known.low > 0 else None
        if known is not None and (is_op(node, "ReduceMean", "ReduceMax", "ReduceMin") or moves_data(index, node)):
            return known
        return self._of_constants(node)

    def _of_cast(self, node: NodeProto) -> Range | None:
        """The bound of what a boolean, a mask or something known is cast to."""
        given, result = str(node.input[0]), str(node.output[0])
        kind = element_type(self._index, given)
        if kind == TensorProto.BOOL:
            return _SHARE
        seen = self._ranges.get(result)
        if given in self.bounds and (is_float(self._index, result) or element_type(self._index, result) in WHOLE):
            return self.bounds[given]
        return _SHARE if kind in WHOLE and seen is not None and seen.low >= 0 and seen.high <= 1 else None

    def _of_constants(self, node: NodeProto) -> Range | None:
        """The bound of what is computed of one known value and constants of one number."""
        numbers: list[Range] = []
        for name in node.input:
            scalar = self._index.scalar(name) if name else None
            bound = Range(scalar, scalar) if scalar is not None else self.bounds.get(name)
            numbers += [bound] if bound is not None else []
        if not any(name in self.bounds for name in node.input) or len(numbers) != len(node.input):
            return None
        return _computed(node, numbers)

    def _moved(self, name: str) -> str:
        """The value whose elements one has."""
        while (node := self._index.makers.get(name)) is not None and moves_data(self._index, node):
            name = str(node.input[0])
        return name

    def _mask(self, name: str) -> str:
        """The value that one is of, but for moves and its type."""
        while (node := self._index.maker(name, *KEEPING)) is not None:
            name = str(node.input[0])
        return name


def _computed(node: NodeProto, given: Sequence[Range]) -> Range | None:
    """The range of an operator's result, of the ranges that it is given."""
    first, *others = given
    if is_op(node, "Sqrt") and first.low >= 0:
        return Range(math.sqrt(first.low), math.sqrt(first.high))
    if is_op(node, "Neg"):
        return Range(-first.high, -first.low)
    if is_op(node, "Clip", "Max") and others:
        floored = Range(max(first.low, others[0].low), max(first.high, others[0].high))
        return _computed_min(floored, others[1]) if is_op(node, "Clip") and len(others) > 1 else floored
    if len(others) != 1:
        return None
    (second,) = others
    if is_op(node, "Min"):
        return _computed_min(first, second)
    if is_op(node, "Add"):
        return Range(first.low + second.low, first.high + second.high)
    if is_op(node, "Sub"):
        return Range(first.low - second.high, first.high - second.low)
    if is_op(node, "Div") and second.low == second.high != 0:
        return Range(*sorted((first.low / second.low, first.high / second.low)))
    if is_op(node, "Mul"):
        ends = [one * other for one in (first.low, first.high) for other in (second.low, second.high)]
        return Range(min(ends), max(ends))
    return None


def _computed_min(first: Range, second: Range) -> Range:
    return Range(min(first.low, second.low), min(first.high, second.high))


def _size(index: GraphIndex, name: str) -> int:
    return math.prod(dim.dim_value for dim in index.types[name].tensor_type.shape.dim)


def _largest_taken_away(index: GraphIndex, name: str) -> tuple[int, ...] | None:
    """The axes along which the largest of a value was taken away from it, so that it is 0 once, and below elsewhere."""
    bounded = index.maker(name, "Max")
    if bounded is not None:
        computed = [str(given) for given in bounded.input if given not in index.initializers]
        scalars = [index.scalar(given) for given in bounded.input if given in index.initializers]
        if len(computed) != 1 or any(scalar is None or scalar > 0 for scalar in scalars):
            return None
        name = computed[0]
    difference = index.maker(name, "Sub")
    largest = index.maker(difference.input[1], "ReduceMax") if difference is not None else None
    if difference is None or largest is None or largest.input[0] != difference.input[0]:
        return None
    return reduced_axes(index, largest)
