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
    """What was written for the engines: `configs` has for each engine the name of the file that it opens first.

    `unwritten` has for each engine without files the reason. `faults` are sentences about what an engine would accept
    and compute wrongly from. `pad` is the token for padding. `begins` says whether the token that begins every text has
    to be put before a conversation, as the chat template does not write it.
    """

    configs: Mapping[str, str]
    unwritten: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    pad: int | None = left_out()
    begins: bool = False
