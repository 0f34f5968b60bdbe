"""Inputs that say themselves what is not there: what is far below 0 is masked by the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import GraphProto, NodeProto, TensorProto

_FAR = -100.0
"""Numbers up to here are compared with to find out what is no number of a sample."""
_LEAST = -60000.0
"""What float16 has."""
_COMPARES = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def absent(graph: GraphProto, constants: Mapping[str, int | float]) -> dict[str, float]:
    """The limits, far below 0, that inputs of floats are compared with; of several the lowest."""
    origins = {value.name: value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    found: dict[str, float] = {}
    for node in graph.node:
        if node.op_type in _VIEWS and node.input[0] in origins:
            origins[node.output[0]] = origins[node.input[0]]
        elif node.op_type in _COMPARES:
            for name, limit in _compared(node, constants):
                if name in origins and limit <= _FAR:
                    found[origins[name]] = min(limit, found.get(origins[name], limit))
    return found


def filler(limit: float) -> float:
    """A number that is well below a limit, so that a softmax makes 0 of it, too."""
    return max(10 * limit, _LEAST) if limit > _LEAST else 10 * limit


def _compared(node: NodeProto, constants: Mapping[str, int | float]) -> Iterator[tuple[str, float]]:
    for value, other in (node.input, reversed(node.input)):
        if other in constants:
            yield str(value), float(constants[other])
