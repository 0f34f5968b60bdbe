"""Room beyond the measured range, for values that unseen inputs drive further than any calibration sample did.

An encoding of 16 bits has steps to spare, and a value beyond its end is cut off. The steps of a range that is half as
wide again cost 4 dB of 90; a few residual values cut off cost 15 of the 40 that 8 bit weights leave.

The right operand of a product of two computed values gets less room: HTP rounds it to 8 bits whatever its encoding.
What a mean over a mask has would take most of those, so there it has none, but where products are wide.

**A decision gets all of its range**: an output that a Sigmoid makes may be anything from 0 to 1, and what the Sigmoid
is taken of as far above 0 as below. A detector of rare events is calibrated on samples without any: a wake word model
whose logits were below 0 in all of them could not say more than 0.4979, and never heard its word. So does what ends
somewhere by what computes it (:mod:`pipeline.graph.quantization.bounds.known_bounds`) or by the table that it is looked
up in (:mod:`pipeline.graph.quantization.bounds.embedding_indices`), and a mean over a mask that may be short
(:mod:`pipeline.graph.quantization.bounds.grown_means`), whatever range calibration chose for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.contracts.scheme import ROOM
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.recursion import Recursive
from pipeline.graph.quantization.bounds.embedding_indices import looked_up
from pipeline.graph.quantization.bounds.grown_means import grown_means
from pipeline.graph.quantization.bounds.known_bounds import known_bounds
from pipeline.graph.quantization.calibration.ranges import Range, Ranges
from pipeline.graph.quantization.operand_rules import moves_data

_OF_RIGHT_OPERANDS = 0.4
"""The share of the room that the right operand of a product gets."""

_BITS = 16
_SHARE, _ANY = Range(0, 1), Range(-math.inf, math.inf)
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "Cos": (-1, 1), "Erf": (-1, 1), "HardSigmoid": (0, 1), "Sigmoid": (0, 1), "Sin": (-1, 1), "Softmax": (0, 1),
    "Tanh": (-1, 1),
}  # fmt: skip
"""Where the results of an operator end whatever it is given."""


def with_headroom(
    index: GraphIndex, ranges: Mapping[str, Range], room: float = ROOM, *, wide_products: bool = False
) -> Ranges:
    """`ranges`, with wider ones for the 16 bit encodings of values for which calibration chose none.

    `room` is a part of a range's width, at each end that isn't zero. With `wide_products` both operands of a product
    have 16 bits.
    """
    chosen = dict(ranges.chosen) if isinstance(ranges, Ranges) else {}
    already, bounds = chosen.get(_BITS, {}), _bounds(index)
    right = _right_operands(index)
    wider = {
        name: _wider(measured, room * (_OF_RIGHT_OPERANDS if name in right else 1), bounds(name))
        for name, measured in ranges.items()
        if name not in already and name not in index.initializers
    }
    for name, known in _decisions(index).items():
        if name in wider:
            wider[name] |= known if known.low == 0 else Range(-wider[name].high, -wider[name].low)
    for found in (known_bounds(index, ranges), looked_up(index)):
        for name, known in found.items():
            if name in wider:
                wider[name] |= known
    encoded = {**wider, **already}
    for name, grown in grown_means(index, ranges, encoded, () if wide_products else right).items():
        low, high = bounds(name)
        encoded[name] |= Range(max(grown.low, low), min(grown.high, high))
    return Ranges(ranges, {**chosen, _BITS: encoded})


def with_padding(index: GraphIndex, ranges: Mapping[str, Range]) -> Ranges:
    """`ranges`, in which what a Pad reads holds what it pads with.

    HTP (2.51, emulated) takes that for an integer of the encoding of what is padded: of -1 to 1, padded with -30000, an
    encoding of 8 bits made 0, one of 16 -1.4.
    """
    wider = dict(ranges)
    chosen = {bits: dict(each) for bits, each in ranges.chosen.items()} if isinstance(ranges, Ranges) else {}
    for node in index.model.graph.node:
        value = index.scalar(node.input[2]) if is_op(node, "Pad") and len(node.input) > 2 else None
        if value is not None and math.isfinite(value):
            name = str(node.input[0])
            while (maker := index.makers.get(name)) is not None and moves_data(index, maker):
                name = str(maker.input[0])  # whose encoding it has
            for each in (wider, *chosen.values()):
                if name in each:
                    each[name] |= Range(value, value)
    return Ranges(wider, chosen)


def _wider(measured: Range, room: float, bounds: tuple[float, float]) -> Range:
    more = room * measured.width
    # No bound takes away what was measured, zero included.
    low = min(measured.low, max(measured.low - more, bounds[0])) if measured.low < 0 else measured.low
    high = max(measured.high, min(measured.high + more, bounds[1])) if measured.high > 0 else measured.high
    return Range(low, high)


_Ends = tuple[float, float]


def _bounds(index: GraphIndex) -> Recursive[_Ends]:
    """Where values end. That of a Clip may be left to its encoding, so it is where the Clip says, not beyond.

    So does what moves or joins such values alone: in an encoding of its own, HTP would lose the Clip. A logarithm ends
    at that of the floor below what it is taken of. Encodings of 16 bits make 0 of floors such as 1e-12: the logarithm
    is minus infinity then, and becomes the end of its encoding, which has to be the floor's.
    """

    def find(name: str) -> _Ends:
        node = index.makers.get(name)
        if node is None:
            return -math.inf, math.inf
        if moves_data(index, node):
            return found(str(node.input[0]))
        if is_op(node, "Concat"):
            each = [found(given) for given in node.input if given not in index.initializers]
            return min((low for low, _ in each), default=0.0), max((high for _, high in each), default=0.0)
        if is_op(node, "Log"):
            floor = _floor(index, str(node.input[0]))
            return math.log(floor) if floor > 0 else -math.inf, math.inf
        if is_op(node, *_BOUNDS):
            return _BOUNDS[node.op_type]
        if not is_op(node, "Clip", "Relu"):
            return -math.inf, math.inf
        least, most = found(str(node.input[0]))
        given = [*node.input[1:], "", ""][:2]
        low = (index.scalar(given[0]) or 0.0) if given[0] else 0.0 if is_op(node, "Relu") else -math.inf
        high = (index.scalar(given[1]) or 0.0) if given[1] else math.inf
        return min(max(least, low), high), min(max(most, low), high)

    found = Recursive(find)
    return found


def _floor(index: GraphIndex, name: str) -> float:
    """The least that a Max or a Clip leaves of a value; 0 where neither is there, or it is not known."""
    node = index.maker(name, "Max", "Clip")
    if node is None:
        return 0.0
    among = node.input if node.op_type == "Max" else node.input[1:2]
    known = (index.scalar(each) for each in among if each in index.initializers)
    return max((each for each in known if each is not None), default=0.0)


def _decisions(index: GraphIndex) -> dict[str, Range]:
    """The outputs that a Sigmoid makes, from 0 to 1, and what they are taken of, which is as large on either side."""
    found: dict[str, Range] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in index.outputs]
    seen = set[tuple[str, tuple[str, ...]]]()
    while waiting:
        name, moved = waiting.pop()
        node = index.makers.get(name)
        if node is None or (name, moved) in seen:
            continue
        seen.add((name, moved))
        if is_op(node, "Sigmoid"):
            found |= dict.fromkeys(moved, _SHARE)
            found |= dict.fromkeys(_taken_of(index, str(node.input[0])), _ANY)
        elif is_op(node, "Concat"):
            waiting += [(str(given), (str(given),)) for given in node.input]
        elif moves_data(index, node):
            waiting.append((str(node.input[0]), (*moved, str(node.input[0]))))
    return found


def _taken_of(index: GraphIndex, name: str) -> list[str]:
    """A value, and those that it is before it is moved, bounded, or a constant is added to it or multiplied with it."""
    found = [name]
    while (node := index.makers.get(name)) is not None:
        computed = [str(given) for given in node.input if given and given not in index.initializers]
        shifted = is_op(node, "Add", "Sub", "Mul", "Div") and len(computed) == 1
        if not shifted and not is_op(node, "Clip") and not moves_data(index, node):
            break
        name = computed[0] if shifted else str(node.input[0])
        found.append(name)
    return found


def _right_operands(index: GraphIndex) -> set[str]:
    """The values whose elements a MatMul has on its right."""
    found: set[str] = set()
    for node in index.model.graph.node:
        if not is_op(node, "MatMul"):
            continue
        name = node.input[1]
        maker = index.makers.get(name)
        found.add(name)
        while maker is not None and moves_data(index, maker):
            name = maker.input[0]
            maker = index.makers.get(name)
            found.add(name)
    return found
