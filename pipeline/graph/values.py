"""The float values of a graph: what encodings are for."""

from __future__ import annotations

from pipeline.graph.index import GraphIndex
from pipeline.graph.observe import FLOATS


def element_type(index: GraphIndex, name: str) -> int:
    """The element type of a value or constant, 0 if unknown."""
    if name in index.initializers:
        return int(index.initializers[name].data_type)
    kind = index.types.get(name)
    return int(kind.tensor_type.elem_type) if kind is not None else 0


def is_float(index: GraphIndex, name: str) -> bool:
    """Whether a value or constant is of a type that is quantized."""
    return element_type(index, name) in FLOATS
