"""The contract of `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import OverBuckets, SamplePart
from pipeline.frozen import dataclass

MethodName = Literal["minmax", "percentile", "entropy", "mse"]


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`method` turns the values that were seen into ranges; `percentile`, in percent, is set for that method only.

    `quiet` says whether a model that takes a logarithm of what scales with an input is run on quieter samples as well.
    """

    padding: Mapping[str, float]
    part: SamplePart
    method: MethodName
    percentile: float | None = left_out()
    quiet: bool = True


@dataclass(frozen=True)
class Facts(Contract):
    """`samples` has for each bucket how many samples it is the smallest for. One without any takes the others' ranges.

    `tensors` is how many values have a range. `narrowed` has, by the bits of an encoding such as "8", for how many of
    them the method chose a range narrower than what was seen. `seen` has the range of each float input, rounded.
    """

    samples: Mapping[str, int]
    tensors: int
    narrowed: Mapping[str, int]
    seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)
