"""Operators that move data and compute nothing."""

from __future__ import annotations

KEEPING = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Those whose result has every element of their input, in another type at most."""

MOVES = (
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
)  # fmt: skip
"""Those that give elements of their input as they are: in the same encoding, nothing is lost by it."""
