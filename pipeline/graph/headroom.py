"""Room beyond the measured range, for values that unseen inputs drive further than any calibration sample did.

An encoding of 16 bits has steps to spare, and a value beyond its end is cut off. The steps of a range that is half as
wide again cost 4 dB of 90; a few residual values cut off cost 15 of the 40 that 8 bit weights leave.

The right operand of a product of two computed values gets less room: HTP rounds it to 8 bits whatever its encoding.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.graph.encodings import Range, Ranges
from pipeline.graph.index import GraphIndex, is_op
from pipeline.graph.operands import moves_data

ROOM = 0.25
"""As part of the range's width, at each end that isn't zero."""

ROOM_OF_RIGHT_OPERANDS = 0.1

_BITS = 16
_BOUNDED = ("Clip", "HardSigmoid", "Softmax", "Sigmoid", "Tanh", "Erf", "Sin", "Cos")
"""Operators whose results end where they end; a Clip may leave that to the encoding."""


def with_headroom(index: GraphIndex, ranges: Mapping[str, Range]) -> Ranges:
    """`ranges`, with wider ones for the 16 bit encodings of values for which calibration chose none."""
    chosen = dict(ranges.chosen) if isinstance(ranges, Ranges) else {}
    already = chosen.get(_BITS, {})
    right = _right_operands(index)
    wider = {
        name: _wider(measured, ROOM_OF_RIGHT_OPERANDS if name in right else ROOM)
        for name, measured in ranges.items()
        if name not in already and name not in index.initializers and not _is_bounded(index, name)
    }
    return Ranges(ranges, {**chosen, _BITS: {**wider, **already}})


def _wider(measured: Range, room: float) -> Range:
    more = room * measured.width
    return Range(
        measured.low - more if measured.low < 0 else measured.low,
        measured.high + more if measured.high > 0 else measured.high,
    )


def _is_bounded(index: GraphIndex, name: str) -> bool:
    return index.maker(name, *_BOUNDED) is not None


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
