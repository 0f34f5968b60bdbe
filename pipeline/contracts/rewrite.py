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
    in_float: bool | None = left_out()
    """Whether the component is in float16, so that nothing quantizes what is made."""


@dataclass(frozen=True)
class Beyond(Contract):
    """What HTP has no form for, in no precision, as the parts of an error tell it."""

    what: str
    where: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Facts(Signature):
    """`applied` has the number of places that each rewrite changed; `beyond` what only the CPU could compute."""

    nodes: int
    applied: Mapping[str, int]
    beyond: Beyond | None = left_out()
