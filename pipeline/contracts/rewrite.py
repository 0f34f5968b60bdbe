"""The contract of `rewrite`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Params(Contract):
    """Rewrites that few models need."""

    middles: bool | None = left_out()
    """Whether products by weights of 4 bits with minima are separated, for a scheme with blocks of 4 bits."""
    in_float: bool | None = left_out()
    """Whether the component is in float16, so that nothing quantizes what is made."""


@dataclass(frozen=True)
class TooManyDims(Contract):
    """A value of more `dims` than HTP takes in any precision, `most`.

    `at` is the node, or the input or output of the model, that has the value; `value` says what it is there, with its
    shape. `nodes` is how many such nodes there are. A component could end at the values `ends`, before this one.
    """

    at: str
    value: str
    dims: int
    most: int
    nodes: int = 0
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts(Signature):
    """`applied` has the number of places that each rewrite changed.

    `takes_nan` has the inputs in which the model itself replaces a NaN. `too_many_dims` is the first value with more
    dims than HTP takes, so that only the CPU can compute it.
    """

    nodes: int
    applied: Mapping[str, int]
    too_many_dims: TooManyDims | None = left_out()
    takes_nan: tuple[str, ...] | None = left_out()
