"""The contract of `rewrite`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Params(Contract):
    """What not every model asks for."""

    middles: bool | None = left_out()
    """Whether products by weights of 4 bits with minima are separated, for a scheme with blocks of 4 bits."""
    cpu_nodes: bool | None = left_out()
    """Whether nodes may be left to the CPU, so that what HTP has no form for is no reason to refuse a model."""
    in_float: bool | None = left_out()
    """Whether the component is in float16, so that nothing quantizes what is made."""


@dataclass(frozen=True)
class Facts(Signature):
    """`applied` has the number of places that each rewrite changed."""

    nodes: int
    applied: Mapping[str, int]
