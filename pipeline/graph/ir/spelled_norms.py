"""The parts of a norm that exporters spell out: squares, their mean, and the division by the root of it."""

from __future__ import annotations

import math

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.reductions import reduced_axes
from pipeline.graph.ir.traverse import other_input

_TOLERANCE = 1e-6


def squared(index: GraphIndex, name: str) -> str | None:
    """The x of x * x, or of Pow(x, 2)."""
    node = index.maker(name, "Pow", "Mul")
    if node is None:
        return None
    square = index.scalar(node.input[1]) == 2 if node.op_type == "Pow" else node.input[0] == node.input[1]
    return node.input[0] if square else None


def kept_mean(index: GraphIndex, reduction: NodeProto) -> str | None:
    """The mean that a ReduceMean or ReduceSum is part of, with the axes that it reduces one long; None if it is none.

    A sum is divided by the number of its elements, and axes that were dropped come back by a Reshape or Unsqueeze.
    Nothing else reads what is in between.
    """
    axes = reduced_axes(index, reduction)
    if axes is None:
        return None
    dims = shape_of(index.types[reduction.input[0]])
    mean: str | None = reduction.output[0]
    if is_op(reduction, "ReduceSum"):
        mean = _divided_by(index, reduction.output[0], math.prod(dims[axis] for axis in axes))
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(dims))
    if mean is None or shape_of(index.types[mean]) == kept:
        return mean
    restored = index.sole_reader(mean, "Reshape", "Unsqueeze")
    return restored.output[0] if restored is not None and shape_of(index.types[restored.output[0]]) == kept else None


def _divided_by(index: GraphIndex, total: str, count: int) -> str | None:
    """The quotient of a value that only its division by this number reads."""
    division = index.sole_reader(total, "Div", "Mul")
    if division is None or (division.op_type == "Div" and division.input[0] != total):
        return None
    factor, right = index.scalar(other_input(division, total)), count if division.op_type == "Div" else 1 / count
    return division.output[0] if factor is not None and abs(factor - right) <= _TOLERANCE * right else None


def divided(index: GraphIndex, variance: str) -> NodeProto | None:
    """The node that divides something by sqrt(variance), if nothing else reads what is in between.

    It is a Div whose second input is the root, or a Mul by the inverse of it.
    """
    root = index.sole_reader(variance, "Sqrt", "Pow")
    if root is None:
        return None
    exponent = 0.5 if root.op_type == "Sqrt" else index.scalar(root.input[1])
    if exponent == -0.5:
        return index.sole_reader(root.output[0], "Mul")
    if exponent != 0.5:
        return None
    division = index.sole_reader(root.output[0], "Div", "Reciprocal")
    if division is None or (division.op_type == "Div" and division.input[1] != root.output[0]):
        return None
    is_inverse = division.op_type == "Reciprocal" or _is_one(index, division.input[0])
    return index.sole_reader(division.output[0], "Mul") if is_inverse else division


def _is_one(index: GraphIndex, name: str) -> bool:
    value = index.scalar(name)
    return value is not None and abs(value - 1) <= _TOLERANCE
