"""Where values end by what computes them, whatever the samples show.

Confident samples give a LogSoftmax that is written out a sum of exponentials from 1 to 2.4 over eight classes; of equal
logits it is 8, and a sum that ends at 2.4 says -0.8 for -2.1. Known are what a boolean is cast to, exponentials of what
the largest was taken away from, sums and means of both, and logarithms of such sums.
"""

from __future__ import annotations

import math

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.reductions import reduced_axes
from pipeline.graph.quantization.operand_rules import moves_data
from pipeline.graph.quantization.ranges import Range

MOST_SUMMED = 256
"""The most that a sum gets room for: of 65536 steps one that is near 1 needs some hundred."""
_SHARE = Range(0.0, 1.0)


def known_bounds(index: GraphIndex) -> dict[str, Range]:
    """The bounds of float values of a graph whose nodes are in topological order; of large sums, what gets room."""
    found: dict[str, Range] = {}
    peaks: dict[str, tuple[int, ...]] = {}
    for node in index.model.graph.node:
        if not node.output or not is_float(index, str(node.output[0])):
            continue
        bound = _bound(index, node, found, peaks)
        if bound is not None:
            found[str(node.output[0])] = bound
    return {name: Range(bound.low, min(bound.high, MOST_SUMMED)) for name, bound in found.items()}


def _bound(
    index: GraphIndex, node: NodeProto, found: dict[str, Range], peaks: dict[str, tuple[int, ...]]
) -> Range | None:
    """The bound of a node's result; `peaks` has the axes along which exponentials are 1 once, and gets more of them."""
    given = str(node.input[0]) if node.input else ""
    if is_op(node, "Cast") and element_type(index, given) == TensorProto.BOOL:
        return _SHARE
    if is_op(node, "Exp"):
        axes = _largest_taken_away(index, given)
        if axes is not None:
            peaks[str(node.output[0])] = axes
        return _SHARE if axes is not None else None
    known = found.get(given)
    if known is None:
        return None
    if is_op(node, "ReduceSum"):
        summed = _size(index, given) / max(1, _size(index, str(node.output[0])))
        one = given in peaks and {*peaks[given]} <= {*(reduced_axes(index, node) or ())}
        return Range(1.0 if one else summed * known.low, summed * known.high)
    if is_op(node, "Log"):
        return Range(math.log(known.low), math.log(known.high)) if known.low > 0 else None
    return known if is_op(node, "ReduceMean", "ReduceMax", "ReduceMin") or moves_data(index, node) else None


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
