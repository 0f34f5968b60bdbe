"""The contract of `packing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass

Form = Literal["separate", "buckets", "socs"]
"""What may share a context binary: nothing, all buckets for one target, or all targets of one bucket."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`forms` to choose from, the plainest first."""

    forms: tuple[Form, ...]
    targets: tuple[HtpTarget, ...]


@dataclass(frozen=True)
class PackingChoice(Contract):
    """The form that was chosen: all that `context` is told."""

    chosen: Form


@dataclass(frozen=True)
class Facts(PackingChoice):
    """Why it was, and the `estimates` of all binaries in bytes by form; None where the targets can't take it."""

    why: str
    estimates: Mapping[Form, int | None]
