"""The parts of a norm that exporters spell out: squares, and the division by the root of their mean."""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex

_TOLERANCE = 1e-6


def squared(index: GraphIndex, name: str) -> str | None:
    """The x of x * x, or of Pow(x, 2)."""
    node = index.maker(name, "Pow", "Mul")
    if node is None:
        return None
    square = index.scalar(node.input[1]) == 2 if node.op_type == "Pow" else node.input[0] == node.input[1]
    return node.input[0] if square else None


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
