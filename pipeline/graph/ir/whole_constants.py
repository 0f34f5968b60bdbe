"""Float constants that are whole numbers, and stand for integers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.ir.index import GraphIndex

_LARGEST = 1 << 23
"""Beyond, floats skip halves: what is whole there may be so by chance."""
_MOST_ELEMENTS = 4096
"""Elements of a constant that is looked into."""


def whole_constant(index: GraphIndex, name: str) -> NDArray[np.float32] | None:
    """The value of a small float constant of whole numbers; None for anything else."""
    tensor = index.initializers.get(name)
    value = index.constant(name) if tensor is not None and math.prod(tensor.dims) <= _MOST_ELEMENTS else None
    if value is None or value.dtype.kind != "f" or value.size == 0 or not (np.abs(value) < _LARGEST).all():
        return None
    return value if (value == np.round(value)).all() else None
