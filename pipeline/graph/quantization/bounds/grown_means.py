"""How far means over a mask go where the mask is short, whatever the samples show.

Of many tokens most averages out; of one token the mean is that token. Calibrated on full sentences alone, the mean of a
MiniLM ended at 0.8, and that of one token was 6.3: of its embedding 1.7 dB were left, where the held-out samples, full
as well, had 35. So a mean ends where what it is taken of does, and what is computed of it goes as much further: a norm,
squares, what a layer makes of it. What is divided by its own norm ends at 1. The steps that this takes cost full
sentences of that MiniLM nothing, with weights of 16 bits either (41.3 dB before and after), and those of a net that is
two layers around a mean 10 of 85 dB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.moves import KEEPING
from pipeline.graph.ir.spelled_norms import squared
from pipeline.graph.quantization.bounds.masked_means import masked_means
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.operand_rules import moves_data

MOST_OF_MEANS = 16
"""How many times as far as in the samples a mean gets room for: 4 of its 16 bits. A MiniLM's of 32 tokens takes 6."""
_MOST = MOST_OF_MEANS**2
"""The same for what is computed of it, as its squares."""
_MOST_POWER = 8.0
"""More than this is beyond `_MOST` from 2 times on."""
_SHARE, _UNIT = Range(0.0, 1.0), Range(-1.0, 1.0)
_SCALED = (
    "Abs", "Cast", "Conv", "ConvTranspose", "Elu", "Gelu", "Gemm", "HardSwish", "LeakyRelu", "Max", "Min",
    "Mish", "Neg", "PRelu", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Selu",
    "Softplus", "ThresholdedRelu",
)  # fmt: skip
"""Operators whose results are about as many times as large as what they are given first."""


def grown_means(
    index: GraphIndex, measured: Mapping[str, Range], ranges: Mapping[str, Range], kept: Collection[str] = ()
) -> dict[str, Range]:
    """The ranges of means over masks, and of what is computed of them, if a mask may be of one token.

    `ranges` are those `measured`, with room. Values in `kept` keep theirs. The graph is in topological order.
    """
    bounds: dict[str, Range] = {}
    for mean in masked_means(index, measured):
        for name in (mean.name, mean.total):
            if name in ranges and mean.of in ranges:
                most = MOST_OF_MEANS * _peak(ranges[name])
                bounds[name] = bounds.get(name, ranges[name]) | _limited(ranges[mean.of], most)
        if mean.share in ranges:
            bounds[mean.share] = _limited(_SHARE, _MOST * _peak(ranges[mean.share]))
    growth = _Growth(index, ranges)
    for node in index.model.graph.node if bounds else ():
        for name in map(str, node.output):
            if name in ranges and name not in kept:
                wider = bounds[name] if name in bounds else growth.of(node, name)
                if wider is not None:
                    growth.note(name, wider)
    return growth.found


class _Growth:
    """What grew so far, and how it makes more grow."""

    def __init__(self, index: GraphIndex, ranges: Mapping[str, Range]) -> None:
        self._index = index
        self._ranges = ranges
        self.found: dict[str, Range] = {}

    def note(self, name: str, wider: Range) -> None:
        """A value goes so far."""
        if (seen := self._ranges[name]) != (wider := seen | wider):
            self.found[name] = wider

    def of(self, node: NodeProto, name: str) -> Range | None:
        """How far a result of a node goes; None if nothing is known to make it go further than it did."""
        given = [str(name) for name in node.input]
        if self.found.keys().isdisjoint(given):
            return None
        if moves_data(self._index, node):
            return self.found.get(given[0])
        if is_op(node, "Clip"):
            return self._clipped(given) if given[0] in self.found else None
        if is_op(node, "Concat", "Where"):
            chosen = [self.found[each] for each in given[is_op(node, "Where") :] if each in self.found]
            return reduce(or_, chosen) if chosen else None
        if is_op(node, "Add", "Mean", "Sub", "Sum"):
            return self._shifted(node, given)
        if is_op(node, "LpNormalization") or (is_op(node, "Div") and self._is_norm(given[1], given[0])):
            return self._by(name, self._times(given[0]), _UNIT)
        if is_op(node, "Mul", "MatMul"):
            return self._by(name, self._times(given[0]) * self._times(given[1]))
        if is_op(node, "Sqrt", "Pow"):
            power = self._index.scalar(given[1]) if is_op(node, "Pow") else 0.5
            return self._by(name, self._times(given[0]) ** min(power, _MOST_POWER)) if power is not None else None
        return self._by(name, self._times(given[0])) if is_op(node, "Div", *_SCALED) else None

    def _by(self, name: str, times: float, bound: Range | None = None) -> Range:
        """The range of a value, so many times as far but for a bound."""
        seen, times = self._ranges[name], min(max(times, 1.0), _MOST)
        wider = Range(seen.low * times, seen.high * times).rounded()  # as powers of numbers differ between machines
        return Range(max(wider.low, bound.low), min(wider.high, bound.high)) if bound is not None else wider

    def _times(self, name: str) -> float:
        """How many times as far a value goes."""
        if name not in self.found or not _peak(self._ranges[name]):
            return 1.0
        return _peak(self.found[name]) / _peak(self._ranges[name])

    def _clipped(self, given: Sequence[str]) -> Range:
        """How far a value goes where a Clip doesn't end it: below zero, too, where the samples were above."""
        grown = self.found[given[0]]
        least, most = (self._index.scalar(each) if each else None for each in (*given[1:], "", "")[:2])
        low = grown.low if least is None else max(grown.low, min(least, 0.0))
        return Range(low, grown.high if most is None else min(grown.high, max(most, 0.0)))

    def _shifted(self, node: NodeProto, given: Sequence[str]) -> Range:
        """The range of a sum: what its parts go beyond their ranges is added to its own, within as many times as far.

        The parts grow together: where all are so many times as large, so is their sum, also where they cancel, as a
        variance of E[x^2] - E[x]^2 or what LayerNorm takes from its mean. What is added alone is the worst of each, and
        that of 24 layers 600 times as far where few tokens go 4. A part that doesn't grow cancels nothing of what one
        goes beyond: there a sum has as much room as a mean, at least.
        """
        name = str(node.output[0])
        seen, share = self._ranges[name], 1 / len(given) if is_op(node, "Mean") else 1.0
        low, high = seen.low, seen.high
        for place, part in enumerate(given):
            if part in self.found:
                before, after = self._ranges[part], self.found[part]
                below, above = (before.low - after.low) * share, (after.high - before.high) * share
                below, above = (above, below) if place and is_op(node, "Sub") else (below, above)
                low, high = low - below, high + above
        times = max(self._times(part) for part in given)
        if any(part not in self.found for part in given):
            times = max(times, MOST_OF_MEANS)
        most = min(times, _MOST) * _peak(seen)
        return _limited(Range(low, high), most)

    def _is_norm(self, name: str, of: str) -> bool:
        """Whether a value is the norm of another, or a floor below that: the square root of its sum of squares."""
        norm = self._index.maker(self._above_floor(name), "ReduceL1", "ReduceL2", "Sqrt")
        if norm is None or not is_op(norm, "Sqrt"):
            return norm is not None and norm.input[0] == of
        summed = self._index.maker(self._above_floor(str(norm.input[0])), "ReduceSum")
        return summed is not None and squared(self._index, summed.input[0]) == of

    def _above_floor(self, name: str) -> str:
        """What a value is where no floor bounds it, and before it is moved."""
        while (node := self._index.maker(name, *KEEPING, "Add", "Clip", "Max")) is not None:
            name = next((str(each) for each in node.input if each not in self._index.initializers), "")
        return name


def _limited(values: Range, most: float) -> Range:
    return Range(max(values.low, -most), min(values.high, most))


def _peak(values: Range) -> float:
    return max(-values.low, values.high)
