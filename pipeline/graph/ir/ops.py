"""Traits of operators: the families that rules, encodings and figures ask for."""

from __future__ import annotations

VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Those whose result has every element of their input, in the same order."""

KEEPING = (*VIEWS, "Cast", "Expand", "Transpose")
"""Those whose result has every element of their input, in another type or order at most."""

MOVES_FIRST = (*VIEWS, "Expand", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Tile", "Transpose")
"""Those that give elements of their first input as they are: what all of them are, those of the result are."""

MOVES = (*MOVES_FIRST, "Concat")
"""Those that give elements of their inputs as they are: in the same encoding, nothing is lost by it."""

LOOKUPS = ("Gather", "GatherElements", "GatherND")
"""Those that take elements by computed places."""

ORDERINGS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
"""Those that compare which of two numbers is larger."""

COMPARISONS = ("Equal", *ORDERINGS)
"""Those that compare two numbers."""

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Those that add up products with weights."""

ROUNDINGS = ("Ceil", "Floor", "Round")
"""Those that make whole numbers of floats."""

SOFTMAXES = ("Softmax", "LogSoftmax")
"""Those that normalize exponentials."""
