"""The contract of `correlate`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract
from pipeline.contracts.measures import OverBuckets, SamplePart
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`part` is the part of the calibration set to run, `padding` the value that an input is filled with, if not 0."""

    padding: Mapping[str, float]
    part: SamplePart


@dataclass(frozen=True)
class Facts(Contract):
    """How many `samples` were run in each bucket, and for how many `weights` the inputs are known.

    Weights that read the same value share one of the `matrices`. `doubtful` counts the weights that are left out, as
    what they read can't be computed in float64.
    """

    samples: Mapping[str, int]
    weights: int
    matrices: int
    doubtful: int
