"""Traits of operators: the families that rules, encodings and figures ask for."""

from __future__ import annotations

VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Those whose result has every element of their input, in the same order."""

KEEPING = (*VIEWS, "Cast", "Expand", "Transpose")
"""Those whose result has every element of their input, in another type or order at most."""

MOVES_FIRST = (*VIEWS, "Expand", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Tile", "Transpose")
"""Operators that move elements of their first input: a property of all input elements holds for the result."""

MOVES = (*MOVES_FIRST, "Concat")
"""Operators that move elements of their inputs, without loss in one encoding."""

LOOKUPS = ("Gather", "GatherElements", "GatherND")
"""Operators that take elements by computed places."""

ORDERINGS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
"""Comparisons of the order of two numbers."""

COMPARISONS = ("Equal", *ORDERINGS)
"""Comparisons of two numbers."""

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Sums of products with weights."""

ROUNDINGS = ("Ceil", "Floor", "Round")
"""Operators that round floats to integers."""

SOFTMAXES = ("Softmax", "LogSoftmax")
"""Normalizations of exponentials."""
