"""The contract of `bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """The contexts of these buckets, for one target."""

    target: HtpTarget


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """What was written for which engine: `configs` has the file that each begins with.

    `unwritten` says of an engine why there is nothing for it. `faults` are what the engines would not notice, in
    sentences. `pad` is the token that stands for none; `begins`: a text has to be given its first token, as the
    template does not write it.
    """

    configs: Mapping[str, str]
    unwritten: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    pad: int | None = left_out()
    begins: bool = False
