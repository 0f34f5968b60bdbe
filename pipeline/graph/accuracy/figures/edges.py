"""How near each sample comes to the edges of a model's operators: what few samples touch, and where chips differ.

Of every value the least, the largest, and what is nearest to zero from either side; and of operators that decide, how
near a decision comes to a tie. Gathered while the CPU runs a sample; four numbers a value, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from pipeline.graph.cpu import Arrays
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.ops import COMPARISONS
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.ranges import Range

Criteria = Mapping[str, float]
"""How far one sample stays from each edge, by a name for the edge; the least comes nearest."""

_STEPS = ("Cast", "Ceil", "Floor")
_SINGULAR = ("Div", "Log", "Pow", "Reciprocal", "Sign", "Sqrt")
"""Operators that do something of their own at zero."""

EDGE, ZERO, EXTREME = "edge", "zero", "extreme"
_LEAST, _LARGEST = f"{EXTREME} least ", f"{EXTREME} largest "
KINDS = (EDGE, ZERO, EXTREME)
"""The subjects of criteria; the name of a criterion begins with one."""


def criteria(observer: Observer, feeds: Arrays) -> dict[str, float]:
    """How far one sample stays from the edges of a static float model, which computes it for this."""
    index = observer.index
    nodes = [node for node in index.model.graph.node if is_op(node, *_DISTANCES)]
    wanted = {name for node in nodes for name in node.input}
    singular = {
        name: node.op_type
        for node in index.model.graph.node
        if is_op(node, *_SINGULAR)
        for name in (node.input[1:] if is_op(node, "Div") else node.input[:1])
    }
    found: dict[str, float] = {}
    kept: dict[str, NDArray[Any]] = {}
    for name, array in observer.arrays(feeds):
        if array.size:
            nearest = EDGE if name in singular else ZERO
            found |= dict(_of_value(name, array, nearest))
        if name in wanted:
            kept[name] = array
    for node in nodes:
        inputs = [_array(index, kept, name) for name in node.input]
        if inputs[0] is not None and inputs[0].size:
            for number, distance in enumerate(_DISTANCES[node.op_type](node, inputs)):
                found[f"{EDGE} {number} {node.op_type} {node.output[0]}"] = distance
    return found


def ranges_of(samples: Sequence[Criteria]) -> dict[str, Range]:
    """The range over all samples of every value that :func:`criteria` looked at."""
    found: dict[str, Range] = {}
    for sample in samples:
        for criterion, least in sample.items():
            name = criterion.removeprefix(_LEAST)
            if name != criterion:
                seen = Range(least, -sample[_LARGEST + name])
                found[name] = found.get(name, seen) | seen
    return {name: seen.rounded() for name, seen in found.items()}


def _of_value(name: str, array: NDArray[Any], nearest: str) -> Iterator[tuple[str, float]]:
    least, largest = float(array.min()), float(array.max())
    yield f"{_LEAST}{name}", least
    yield f"{_LARGEST}{name}", -largest
    above, below = around_zero(array)
    if above is not None:
        yield f"{nearest} above {name}", above
    if below is not None:
        yield f"{nearest} below {name}", below


def around_zero(array: NDArray[Any]) -> tuple[float | None, float | None]:
    """The least distance from zero of what lies above it, and of what lies below or is -0; None for what there is not.

    Read off the bits, which are in the order of the numbers: to choose the numbers by their signs takes ten times as
    long. Where one of them is NaN, whose bits are in no order, they are chosen all the same.
    """
    if np.isnan(array.min()):
        negative = np.signbit(array)
        sides = array[~negative & (array != 0)], -array[negative]
        above, below = (float(side.min()) if side.size else None for side in sides)
        return above, below
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    sign = bits.dtype.type(1 << 8 * array.itemsize - 1)
    one = bits.dtype.type(1)
    above_bits = (bits - one).min()  # of 0 it is the largest there is, and of -0 the largest of a number
    below_bits = (bits ^ sign).min()

    def distance(found: np.unsignedinteger[Any]) -> float:
        return float(np.array(found).view(array.dtype))

    above = distance(above_bits + one) if above_bits < sign - one else None
    below = distance(below_bits) if below_bits < sign else None
    return above, below


def _array(index: GraphIndex, kept: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any] | None:
    if name in kept:
        return kept[name]
    return index.constant(name) if name in index.initializers else None


def _least(distances: NDArray[Any]) -> Iterator[float]:
    finite = distances[np.isfinite(distances)]
    if finite.size:
        yield float(finite.min())


def _of_comparison(node: NodeProto, inputs: list[NDArray[Any] | None]) -> Iterator[float]:
    left, right = inputs[:2]
    if left is not None and right is not None:
        with np.errstate(invalid="ignore"):  # masks hold infinities
            yield from _least(np.abs(left.astype(np.float64) - right))


def _of_clip(node: NodeProto, inputs: list[NDArray[Any] | None]) -> Iterator[float]:
    for end in inputs[1:]:
        if end is not None and inputs[0] is not None:
            yield from _least(np.abs(inputs[0].astype(np.float64) - end))


def _of_round(node: NodeProto, inputs: list[NDArray[Any] | None]) -> Iterator[float]:
    assert inputs[0] is not None
    yield from _least(np.abs(np.abs(inputs[0] - np.trunc(inputs[0])) - 0.5))


def _of_step(node: NodeProto, inputs: list[NDArray[Any] | None]) -> Iterator[float]:
    assert inputs[0] is not None
    if inputs[0].dtype.kind == "f" and not _is_to_float(node):
        yield from _least(np.abs(inputs[0] - np.rint(inputs[0])))


def _of_knees(node: NodeProto, inputs: list[NDArray[Any] | None]) -> Iterator[float]:
    assert inputs[0] is not None
    yield from _least(np.abs(np.abs(inputs[0]) - 3))  # of HardSwish, and of HardSigmoid as it is mostly used


def _of_choice(node: NodeProto, inputs: list[NDArray[Any] | None]) -> Iterator[float]:
    default = -1 if is_op(node, "TopK") else 0
    assert inputs[0] is not None
    yield from _least(margins(inputs[0], integer(node, "axis", default)))


def margins(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """By how much the largest along an axis is larger than the second, the axis kept with one entry.

    Infinite where there is no second.
    """
    if array.shape[axis] < 2:
        return np.full_like(np.take(array, [0], axis), np.inf)
    highest = np.partition(array, -2, axis)
    return np.asarray(np.take(highest, [-1], axis) - np.take(highest, [-2], axis))


def _is_to_float(node: NodeProto) -> bool:
    return is_op(node, "Cast") and np.issubdtype(helper.tensor_dtype_to_np_dtype(integer(node, "to")), np.floating)


_DISTANCES: Mapping[str, Callable[[NodeProto, list[NDArray[Any] | None]], Iterator[float]]] = {
    **dict.fromkeys(COMPARISONS, _of_comparison),
    **dict.fromkeys(_STEPS, _of_step),
    **dict.fromkeys(("ArgMax", "TopK"), _of_choice),
    **dict.fromkeys(("HardSigmoid", "HardSwish"), _of_knees),
    "Clip": _of_clip,
    "Round": _of_round,
}
"""How near one sample comes to each edge of an operator."""
