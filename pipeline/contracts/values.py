"""The inputs and outputs of a model."""

from __future__ import annotations

from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class TensorSpec(Contract):
    """An input or output. `dtype` is numpy's name; a dim is a size, an axis, an expression of axes, or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        kind = "string" if self.dtype == "object" else self.dtype  # as numpy has them
        return f"{self.name}: {kind} [{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


@dataclass(frozen=True)
class Signature(Contract):
    """The inputs and outputs of a model, in the model's order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
