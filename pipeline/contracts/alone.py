"""The contract of `alone`. Its facts are those of `context`."""

from __future__ import annotations

from pipeline.contracts.codec import left_out
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """The one bucket in `buckets`, for one target. `parts` is as in :class:`pipeline.contracts.context.Params`."""

    target: HtpTarget
    parts: int | None = left_out()
