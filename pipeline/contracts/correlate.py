"""The contract of `correlate`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract
from pipeline.contracts.measures import OverBuckets, SamplePart
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """The part of the calibration set to go by, and how inputs are padded."""

    padding: Mapping[str, float]
    part: SamplePart


@dataclass(frozen=True)
class Facts(Contract):
    """`samples` that were run in each bucket; how many `weights` are known by their inputs, in how many `matrices`.

    `doubtful` counts those that are left out, as float64 is not to be had for what they read.
    """

    samples: Mapping[str, int]
    weights: int
    matrices: int
    doubtful: int
