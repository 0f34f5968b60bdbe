"""The contract of `rewrite`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Params(Contract):
    """None."""


@dataclass(frozen=True)
class Facts(Signature):
    """`applied` has the number of places that each rewrite changed."""

    nodes: int
    applied: Mapping[str, int]
