"""The contract of `shape`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Params(Contract):
    """Sizes of the `axes` that inputs are padded on, and of those that are `fixed`."""

    axes: Mapping[str, int]
    fixed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts(Signature):
    """Dims are sizes. `folded` nodes were computed away.

    `stale_outputs` is what the source declares of its outputs and they are not; `neutral_pads` are paddings within the
    model that no longer see the bucket's.
    """

    nodes: int
    folded: int
    stale_outputs: tuple[str, ...]
    neutral_pads: int
