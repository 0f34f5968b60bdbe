"""The contract of `shape`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Params(Contract):
    """The sizes of the `axes` on which inputs are padded, and of the `fixed` ones, on which they are not."""

    axes: Mapping[str, int]
    fixed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts(Signature):
    """The signature, with sizes as dims. `folded` is how many nodes were computed and replaced by constants.

    `stale_outputs` are outputs that have another shape than the source declares. `neutral_pads` counts paddings inside
    the model that were changed so that they no longer read the bucket's padding.
    """

    nodes: int
    folded: int
    stale_outputs: tuple[str, ...]
    neutral_pads: int
