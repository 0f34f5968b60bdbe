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
    """`forms` are the ones to choose from, the simplest first."""

    forms: tuple[Form, ...]
    targets: tuple[HtpTarget, ...]


@dataclass(frozen=True)
class PackingChoice(Contract):
    """The form that was chosen. `context` is told this alone, so that other estimates do not rerun it."""

    chosen: Form


@dataclass(frozen=True)
class Facts(PackingChoice):
    """The choice, `why` it was made, and for each form the estimated bytes of all binaries.

    An estimate is None if the targets can't take the form.
    """

    why: str
    estimates: Mapping[Form, int | None]
