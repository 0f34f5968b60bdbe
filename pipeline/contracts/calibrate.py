"""The contract of `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import OverBuckets, SamplePart
from pipeline.frozen import dataclass

MethodName = Literal["minmax", "percentile", "entropy", "mse"]


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`method` makes ranges of what was seen; `percentile`, in percent, is there with the method of that name.

    `quiet`: where a logarithm is taken of what scales with an input, quieter samples are seen as well.
    """

    padding: Mapping[str, float]
    part: SamplePart
    method: MethodName
    percentile: float | None = left_out()
    quiet: bool = True


@dataclass(frozen=True)
class Facts(Contract):
    """`samples` that each bucket is the smallest for: one without any has the ranges of the others.

    `tensors` have a range; `narrowed` says for how many of them the method chose a narrower one, by bits.
    """

    samples: Mapping[str, int]
    tensors: int
    narrowed: Mapping[str, int]
