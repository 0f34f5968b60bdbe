"""Floors of divisors that their encoding does not hold are raised to one step of it.

Before, where the division computes in integers and the floor is a constant above 0 and below a step::

    Div(a, Max(b, floor))      Div(a, Clip(b, floor))      Div(a, b + floor)            Div(a, Sqrt(b + floor))

After, with the step of the divisor's encoding; below a root, its square or the sum's own, whichever is more::

    Div(a, Max(b, step))       Div(a, Clip(b, step))       Div(a, Max(b, step))         Div(a, Sqrt(Max(b, step)))

Such floors are what keeps silence from being divided by itself: the norm of zeros is 0, and 0 / 1e-12 is 0. Rounded to
steps, the divisor is 0, and HTP (2.51, emulated) gives the largest number that the quotient's encoding has for 0 / 0:
every element of an L2-normalized row of zeros became 0.76, though rows that were not zero were right. A step that is
added to 0 is lost too, as HTP rounds it to the scale of the sum: so a sum becomes the larger of the two, which is less
than a step from it.

Left alone: a divisor that others read, too, on the way from its floor; a sum that may be below 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, numpy_helper

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.moves import MOVES_FIRST
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.passes.raise_floors import floor_at
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment
from pipeline.graph.quantization.qdq.value_encodings import ValueEncodings

_DIVISOR = {"Div": 1, "Reciprocal": 0}


def raise_divisors(
    index: GraphIndex, assignment: Assignment, values: ValueEncodings, ranges: Mapping[str, Range]
) -> int:
    """Do so in the float model of `index`, which is stale then; returns how often."""
    quantized = [
        node
        for node in index.model.graph.node
        if is_op(node, *_DIVISOR) and is_float(index, _divisor(node)) and assignment.computes_in(node) != FLOAT
    ]
    return sum(_raise(index, node, assignment, values, ranges) for node in quantized)


def _divisor(division: NodeProto) -> str:
    return str(division.input[_DIVISOR[division.op_type]])


def _raise(
    index: GraphIndex,
    division: NodeProto,
    assignment: Assignment,
    values: ValueEncodings,
    ranges: Mapping[str, Range],
) -> bool:
    name, reader = _divisor(division), division
    if name in index.initializers:
        return False
    least = values.encoding(name, assignment.computes_in(division)).scale
    while index.sole_reader(name, reader.op_type) is not None:
        maker = index.maker(name, *MOVES_FIRST, "Sqrt", "Max", "Clip", "Add")
        if maker is None:
            break
        kind = assignment.stored_in(name)
        least = max(least, values.encoding(name, kind).scale if kind != FLOAT else 0.0)
        if is_op(maker, "Max", "Clip", "Add"):
            return (maker.op_type != "Add" or ranges[name].low >= 0) and _floor_raised(index, maker, least)
        if maker.op_type == "Sqrt":
            least **= 2
        name, reader = str(maker.input[0]), maker
    return False


def _floor_raised(index: GraphIndex, bound: NodeProto, least: float) -> bool:
    """Raise the constant floor of a node to `least`, if it has one below."""
    place = floor_at(index, bound)
    floor = index.scalar(bound.input[place]) if place is not None else None
    if place is None or floor is None or not 0 < floor < least:
        return False
    name = index.unused(f"{bound.output[0]}_floor")
    dims = tuple(index.initializers[bound.input[place]].dims)
    index.model.graph.initializer.append(numpy_helper.from_array(np.full(dims, least, np.float32), name))
    bound.input[place] = name
    if bound.op_type == "Add":
        bound.op_type = "Max"
    return True
