"""Operators that hand on values of their inputs as they are: what they do is the same before and after quantization."""

from __future__ import annotations

from collections.abc import Mapping

MOVERS: Mapping[str, int] = {
    "Concat": 0,
    "DepthToSpace": 1,
    "Expand": 1,
    "Flatten": 1,
    "Gather": 1,
    "GatherElements": 1,
    "GatherND": 1,
    "Identity": 1,
    "MaxPool": 1,
    "Pad": 1,
    "Reshape": 1,
    "Resize": 1,
    "Slice": 1,
    "SpaceToDepth": 1,
    "Split": 1,
    "Squeeze": 1,
    "Tile": 1,
    "Transpose": 1,
    "Unsqueeze": 1,
}
"""How many of the first inputs are values, 0 for all; the others are indices and sizes, and what a Pad fills with."""
