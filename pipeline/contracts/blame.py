"""The contract of `blame`, and the rows that `probe` has too."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Measuring, Reason
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(Measuring):
    """`thresholds` has the SQNR in dB that a value of each rung must have; `quiet`: quieter samples count."""

    thresholds: Mapping[str, float]
    quiet: bool = True


OF_INTEGERS = "integers"
"""The reason of whole numbers that are computed of whole numbers, and go wrong: no precision changes them."""


@dataclass(frozen=True)
class EncodingFacts(Contract):
    """The encoding of a value, and the range it covers."""

    dtype: str
    scale: float
    zero_point: int
    low: float
    high: float


@dataclass(frozen=True)
class RowFacts(Contract):
    """What was measured at one value: see :class:`pipeline.graph.accuracy.blame.Row`. dB are None for no number."""

    value: str
    node: str
    op: str
    sqnr_db: float | None
    own_db: float | None
    weights_db: float | None
    encoding: EncodingFacts | None
    observed: tuple[float, float]
    calibrated: tuple[float, float] | None
    reason: Reason | None
    local: Reason | None


@dataclass(frozen=True)
class Facts(Contract):
    """`samples` were run of as many as `of`, or one that was made `quiet`, by its name.

    With the `worst` rows of the quantization rung, and the first wrong by rung.
    """

    samples: int
    of: int
    worst: tuple[RowFacts, ...]
    first_wrong: Mapping[str, tuple[RowFacts, ...]]
    quiet: str | None = left_out()
