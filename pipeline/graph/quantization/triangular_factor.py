"""A triangular factor of correlations that comes out the same on every processor.

Libraries of linear algebra add up in another order on each instruction set, and rounding that looks at the data takes
a different turn at the first bit that differs. Here all numbers lie on a grid that is so coarse that no sum of products
needs more than the 53 bits of a float64: whatever the order, and with or without fused operations, nothing is rounded.
What is rounded is rounded by single operations of IEEE 754, which are the same everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GRID = 2.0**26
"""Entries of the factor are multiples of its inverse. Rows of the factor have a length of at most 1, so that a sum of
products is at most 1, in steps of 2^-52."""
_PANEL = 64
_LEAST_PIVOT = 2.0**-16
_MORE = (0.0, 0.1, 1.0)
"""What is added to the damping where the correlations are no sums of squares, as they were rounded."""


def upper_factor(correlations: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """``U``, upper triangular, with ``U @ U.T`` equal to ``(correlations + damping * identity) / (1 + damping)``.

    `correlations` is [inputs, inputs], symmetric, with ones on its diagonal; what is below that is read.
    """
    for more in _MORE:
        lower = _lower_factor(correlations, damping + more)
        if lower is not None:
            return lower[::-1, ::-1]
    return np.eye(len(correlations))  # nothing is known, and all is rounded to the nearest


def _lower_factor(given: NDArray[np.float64], damping: float) -> NDArray[np.float64] | None:
    """The factor of Cholesky of what is given in the reverse order, panel by panel; None where a pivot is too small."""
    size = len(given)
    lower, turned = np.zeros((size, size)), given[::-1, ::-1]
    for start in range(0, size, _PANEL):
        end = min(start + _PANEL, size)
        panel = turned[start:end, start:] * (_GRID / (1 + damping))  # a row for each column
        np.rint(panel, out=panel)
        panel /= _GRID
        panel[np.arange(end - start), np.arange(end - start)] = 1.0
        panel -= lower[start:end, :start] @ lower[start:, :start].T
        for number, column in enumerate(panel):
            column[number:] -= panel[:number, number] @ panel[:number, number:]
            pivot = column[number]
            if pivot < _LEAST_PIVOT:
                return None
            head = np.rint(np.sqrt(pivot) * _GRID) / _GRID
            column[:number] = 0.0
            column[number:] = np.rint(column[number:] / head * _GRID) / _GRID
            column[number] = head
        lower[start:, start:end] = panel.T
    return lower
