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
class TooManyDims(Contract):
    """A value of more `dims` than the `most` that HTP takes, in no precision.

    `at` is the node, or the input or output of the model, that has it, and `value` what it is there, with its shape. Of
    such nodes there are so many (`nodes`); a component could end at `ends`, before this one.
    """

    at: str
    value: str
    dims: int
    most: int
    nodes: int = 0
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts(Signature):
    """`applied` has the number of places that each rewrite changed; `too_many_dims` is what only the CPU has."""

    nodes: int
    applied: Mapping[str, int]
    too_many_dims: TooManyDims | None = left_out()
