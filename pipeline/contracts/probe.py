"""The contract of `probe`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.blame import RowFacts
from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Measuring
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass

WORST = "worst.npz"
"""The file of `blame` and `probe` with one sample: arrays `input:NAME`, `expected:NAME` and `got:NAME`."""


@dataclass(frozen=True, kw_only=True)
class Params(Measuring):
    """`thresholds` has the SQNR in dB that a value of the compile rung must have, `state_db` is what a state must have
    against the original; `quiet`: quieter samples count.
    """

    target: HtpTarget
    thresholds: Mapping[str, float]
    state_db: float
    quiet: bool = True


@dataclass(frozen=True)
class Facts(Contract):
    """The `sample` that was run (None: there is none), how many values were measured, the first wrong by rung.

    `inputs_db` is the SQNR that is left where float inputs alone are rounded to float16, if that explains the error.
    `edge_db` is what is left of a state if an input alone is rounded as a chip takes it, in float16 or 16 bit integers,
    if that is less than is asked of a state: no precision has more.
    Where whole numbers go wrong first, `ends` are the values to end the model at before them, and `starts` those that
    its part of whole numbers hands to the rest; None where there are none.
    `choices` are the values to end the model at before a TopK or NonMaxSuppression, which may put what rounded inputs
    make in another order: none where the model's file does not name them, None where nothing chooses.
    """

    sample: str | None
    values: int
    first_wrong: Mapping[str, tuple[RowFacts, ...]]
    inputs_db: float | None = left_out()
    edge_db: float | None = left_out()
    ends: tuple[str, ...] | None = left_out()
    starts: tuple[str, ...] | None = left_out()
    choices: tuple[str, ...] | None = left_out()
