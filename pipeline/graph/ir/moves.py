"""Operators that move data and compute nothing, in families that others are made of."""

from __future__ import annotations

VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Those whose result has every element of their input, in the same order."""

KEEPING = (*VIEWS, "Cast", "Expand", "Transpose")
"""Those whose result has every element of their input, in another type or order at most."""

MOVES_FIRST = (*VIEWS, "Expand", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Tile", "Transpose")
"""Those that give elements of their first input as they are: what all of them are, those of the result are."""

MOVES = (*MOVES_FIRST, "Concat")
"""Those that give elements of their inputs as they are: in the same encoding, nothing is lost by it."""
