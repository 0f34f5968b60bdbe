"""What a graph that normalizes pictures itself takes for pixels: numbers up to 255, or up to 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto

from pipeline.graph.ir.traverse import input_at
from pipeline.propose.small_constants import small_constants

_VIEWS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_CHANNELS = 4
_OF_BYTES, _OF_FRACTIONS = 1 / 16, 1.5
"""Factors: up to the first, 255 becomes a number that networks take; from the second on, 1 does."""
_BEYOND_FRACTIONS = 2
"""What is taken from a pixel, in its own units, and would leave nothing of a fraction."""


def largest_pixel(graph: GraphProto, name: str) -> int | None:
    """255 or 1 for an input that only a scale and an offset read, one behind the other; None where neither says it.

    Networks are trained on numbers near 1: a factor of 1/127.5 makes them of bytes, one of 1/0.225 of fractions.
    """
    constants = _small(graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for given in {*node.input}:
            readers.setdefault(given, []).append(node)
    factor, offset = 1.0, 0.0
    while len(reading := readers.get(name, [])) == 1:
        (node,) = reading
        if node.op_type not in _VIEWS:
            step = _step(node, name, constants)
            if step is None:
                break
            offset = max(offset, step[1] / factor)
            factor *= step[0] or 1
        name = node.output[0]
    if factor <= _OF_BYTES or offset > _BEYOND_FRACTIONS:
        return 255
    return 1 if factor >= _OF_FRACTIONS else None


def _step(node: NodeProto, name: str, constants: dict[str, NDArray[np.float64]]) -> tuple[float, float] | None:
    """What a node multiplies a value by, and adds before, as means over channels; None for what does neither."""
    first, second = input_at(node, 0), input_at(node, 1)
    other = constants.get(second if first == name else first)
    match node.op_type:
        case "Add" | "Sub" if other is not None:
            return 1.0, float(np.abs(other).mean())
        case "Mul" if other is not None:
            return float(np.abs(other).mean()), 0.0
        case "Div" if other is not None and second != name and other.all():
            return float(np.abs(1 / other).mean()), 0.0
        case "BatchNormalization" if (scale := constants.get(second)) is not None:
            variance, mean = constants.get(input_at(node, 4)), constants.get(input_at(node, 3))
            if variance is not None and mean is not None:
                return float(np.abs(scale / np.sqrt(np.abs(variance) + 1e-5)).mean()), float(np.abs(mean).mean())
    return None


def _small(graph: GraphProto) -> dict[str, NDArray[np.float64]]:
    """The constants of a number for each channel, or of one for all."""
    known = small_constants(graph, _CHANNELS)
    return {name: values.astype(np.float64) for name, values in known.items() if values.dtype.kind == "f"}
