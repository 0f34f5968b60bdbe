"""A value with one of its axes from behind."""

from __future__ import annotations

from pipeline.graph.ir.node_builder import Additions


def from_behind(added: Additions, source: str, axis: int, stem: str) -> list[str]:
    """The inputs of a Slice of a value that takes an axis in steps of -1; QNN takes it of all types."""
    size = added.shape(source)[axis]
    bounds = (("start", size - 1), ("end", -size - 1), ("axis", axis), ("step", -1))
    return [source, *(added.integers(f"{stem}_{name}", value) for name, value in bounds)]
