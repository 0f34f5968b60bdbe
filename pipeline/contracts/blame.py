"""The contract of `blame`, and the rows that `probe` has too."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Measuring, Reason
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(Measuring):
    """`thresholds` has for each rung the least SQNR in dB of a value that counts as right.

    `quiet` says whether variants of the samples that were made quieter are looked at as well.
    """

    thresholds: Mapping[str, float]
    quiet: bool = True


OF_INTEGERS = "integers"
"""The name of the reason why whole numbers go wrong that come from whole numbers alone: no precision changes them."""


@dataclass(frozen=True)
class EncodingFacts(Contract):
    """The encoding of a value, `scale * (q - zero_point)`, and the range from `low` to `high` that it covers."""

    dtype: str
    scale: float
    zero_point: int
    low: float
    high: float


@dataclass(frozen=True)
class RowFacts(Contract):
    """The measurement of one value, see :class:`pipeline.graph.accuracy.blame.blame.Row`; None stands for no
    number.
    """

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
    """`samples` of the `of` held-out ones were run, or the one that was made quieter and whose name `quiet` is.

    `worst` has the worst rows of the quantization rung, `first_wrong` the values of each rung that go wrong first.
    """

    samples: int
    of: int
    worst: tuple[RowFacts, ...]
    first_wrong: Mapping[str, tuple[RowFacts, ...]]
    quiet: str | None = left_out()
