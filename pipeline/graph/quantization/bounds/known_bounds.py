"""Where values end by what computes them, whatever the samples show.

Confident samples give a LogSoftmax that is written out a sum of exponentials from 1 to 2.4 over eight classes; of equal
logits it is 8, and a sum that ends at 2.4 says -0.8 for -2.1. Samples that never fill a length of 16 give a mask whose
sum is 8 at most; of a full one the mean was twice as large. Known are what a boolean is cast to, masks of integers,
exponentials of what the largest was taken away from, sums and means of these, and what is computed of those with
constants; and by how much sums of what is masked grow where a mask that the model is given is fuller.

Room costs steps, so a sum gets no more of it than is worth them. With room for all of 262,144 elements, a count of 5
came out as 4; a row that is picked out of 32,000 by its number lost all but 3 dB to room for the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.moves import KEEPING
from pipeline.graph.ir.reductions import reduced_axes
from pipeline.graph.quantization.bounds.whole_numbers import whole_values
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.operand_rules import moves_data

MOST_SUMMED = 256
"""The most that a sum of fractions gets room for, and in multiples of what was measured what is computed of counts: of
65536 steps a value that is near 1 needs some hundred."""
MOST_COUNTED = 65535 // 4
"""The most that a sum of whole numbers gets room for. Each has four steps then: HTP's sums may be a step off. A sum
that samples drive further has room for `MOST_GROWN` times as much; where samples stay below 65535, so does the room,
and each whole number has a step at least."""
MOST_GROWN = 4
"""In multiples of what was measured: what sums of what is masked, and large counts, get room for. It costs 2 bits
at most: a mean by a mask that was given went from 80.3 to 79.3 dB, with 4 of 4096 at most in the samples."""
_STEPS = 65535
_SMALL = 4096
"""Elements of a constant that is looked into."""
_SHARE = Range(0.0, 1.0)


def known_bounds(index: GraphIndex, ranges: Mapping[str, Range] | None = None) -> dict[str, Range]:
    """The bounds of float values of a graph whose nodes are in topological order; of large sums, what gets room.

    `ranges` are the measured ones. They tell which integers are masks (those that are 0 or 1 in all samples), and how
    far sums went.
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
        self._counts = set[str]()
        """Those that are of sums, but for fractions."""
        self._whole = whole_values(index)
        self.bounds: dict[str, Range] = {}
        for node in index.model.graph.node:
            bound = self._bound(node) if node.output else None
            if bound is not None:
                self.bounds |= dict.fromkeys(map(str, node.output), bound)
                if not self._fractions.isdisjoint(node.input) or is_op(node, "Exp"):
                    self._fractions.update(map(str, node.output))
                elif not self._counts.isdisjoint(node.input) or is_op(node, "ReduceSum"):
                    self._counts.update(map(str, node.output))

    def with_room(self, name: str) -> Range:
        """The bound of a value, and of sums no more than is worth its steps."""
        bound, seen = self.bounds[name], self._ranges.get(name)
        if name in self._fractions:
            return Range(bound.low, min(bound.high, MOST_SUMMED))
        if name not in self._counts:
            return bound
        width = bound.with_zero().width
        measured = seen.with_zero().width if seen is not None else 0.0
        if name in self._whole:
            most = max(MOST_COUNTED, MOST_GROWN * measured)
            most = min(most, _STEPS) if measured <= _STEPS else most
            if width <= most:
                return bound
            return Range(*(math.trunc(end / width * most) for end in (bound.low, bound.high)))
        share = min(1.0, MOST_SUMMED * measured / width) if measured > 0 and width > 0 else 1.0
        return Range(bound.low * share, bound.high * share)

    def sums_of_masked(self) -> Iterator[tuple[str, Range]]:
        """The sums of what is masked, grown as a mask may: from the most that samples had of it to all, or to a limit.

        Only masks that the model is given grow. One that is computed of data, as a row that is chosen by its number, is
        as full as it was in the samples.
        """
        counts: dict[str, float] = {}
        for name, bound in self.bounds.items():
            maker, seen = self._index.maker(name, "ReduceSum"), self._ranges.get(name)
            mask = self._given_mask(str(maker.input[0])) if maker is not None else None
            if mask is not None and seen is not None and seen.high > 0:
                counts[mask] = min(bound.high / seen.high, MOST_GROWN)
        for node in self._index.model.graph.node if counts else ():
            product = self._index.maker(self._moved(str(node.input[0])), "Mul") if is_op(node, "ReduceSum") else None
            seen = self._ranges.get(str(node.output[0])) if product is not None else None
            if product is None or seen is None or node.output[0] in self.bounds:
                continue
            masks = (self._given_mask(str(given)) for given in product.input)
            grown = max(counts.get(mask, 1.0) if mask is not None else 1.0 for mask in masks)
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
        if not any(name in self.bounds for name in node.input):
            return None
        numbers = [self._number(str(name)) for name in node.input]
        known = [number for number in numbers if number is not None]
        return _computed(node, known) if len(known) == len(numbers) else None

    def _number(self, name: str) -> Range | None:
        """The bound of a value, or a small constant of one number. Weights are not read."""
        constant = self._index.initializers.get(name)
        if constant is None or math.prod(constant.dims) > _SMALL:
            return self.bounds.get(name)
        number = self._index.scalar(name)
        return Range(number, number) if number is not None and math.isfinite(number) else None

    def _moved(self, name: str) -> str:
        """The value whose elements one has."""
        while (node := self._index.makers.get(name)) is not None and moves_data(self._index, node):
            name = str(node.input[0])
        return name

    def _given_mask(self, name: str) -> str | None:
        """The input of the model that a value is, but for moves and its type; None if it is computed.

        Integers that are cast to booleans are compared with zero by then (`compare_casts`).
        """
        index = self._index
        while (node := index.makers.get(name)) is not None:
            compared = index.maker(str(node.input[0]), "Equal") if is_op(node, "Not") else None
            if compared is not None and self._number(str(compared.input[1])) == Range(0, 0):
                node = compared
            elif not is_op(node, *KEEPING):
                return None
            name = str(node.input[0])
        return name if name not in index.initializers else None


_MONOTONE: Mapping[str, Callable[[float], float]] = {
    "Ceil": math.ceil, "Floor": math.floor, "Relu": lambda value: max(value, 0.0), "Round": round,
}  # fmt: skip
"""Functions of one value that keep the order of values."""


def _computed(node: NodeProto, given: Sequence[Range]) -> Range | None:
    """The range of an operator's result, of the ranges that it is given."""
    first, *others = given
    if is_op(node, "Sqrt") and first.low >= 0:
        return Range(math.sqrt(first.low), math.sqrt(first.high))
    if node.op_type in _MONOTONE and is_op(node, node.op_type):
        return Range(_MONOTONE[node.op_type](first.low), _MONOTONE[node.op_type](first.high))
    if is_op(node, "Neg"):
        return Range(-first.high, -first.low)
    if is_op(node, "Max", "Min"):
        return reduce(_larger if is_op(node, "Max") else _smaller, given)
    if is_op(node, "Clip") and others:
        return reduce(_smaller, others[1:], _larger(first, others[0]))
    if is_op(node, "Add", "Sum", "Mean"):
        parts = len(given) if is_op(node, "Mean") else 1
        return Range(sum(each.low for each in given) / parts, sum(each.high for each in given) / parts)
    if len(others) != 1:
        return None
    (second,) = others
    if is_op(node, "Sub"):
        return Range(first.low - second.high, first.high - second.low)
    if is_op(node, "Div") and second.low == second.high != 0:
        return Range(*sorted((first.low / second.low, first.high / second.low)))
    if is_op(node, "Mul"):
        ends = [one * other for one in (first.low, first.high) for other in (second.low, second.high)]
        return Range(min(ends), max(ends))
    return None


def _larger(first: Range, second: Range) -> Range:
    return Range(max(first.low, second.low), max(first.high, second.high))


def _smaller(first: Range, second: Range) -> Range:
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
