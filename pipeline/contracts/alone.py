"""The contract of `alone`. Its facts are those of `context`."""

from __future__ import annotations

from pipeline.contracts.codec import left_out
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """One bucket, for one target; `parts` says into how many a language model is split, as of `context`."""

    target: HtpTarget
    parts: int | None = left_out()
