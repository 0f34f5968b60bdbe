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
    """`thresholds` has the least SQNR in dB of a right value of the compile rung, `state_db` that of a right state.

    A state is compared with the original's. `quiet` is as in :class:`pipeline.contracts.blame.Params`.
    """

    target: HtpTarget
    thresholds: Mapping[str, float]
    state_db: float
    quiet: bool = True


@dataclass(frozen=True)
class Facts(Contract):
    """The `sample` that was run (None: there is none), how many `values` were measured, and the first wrong by rung.

    `inputs_db` is the SQNR if only the float inputs are rounded to float16, given if that explains the error. `edge_db`
    is the SQNR of a state if only an input is rounded as a chip takes it, to float16 or 16 bit integers. It is given if
    it is less than a state must have: no precision reaches more.
    If whole numbers go wrong first, the model could end at the values `ends` before them, and `starts` are the values
    that its part of whole numbers hands to the rest; None if there are none.
    If the model has a TopK or NonMaxSuppression, which may order differently what rounded inputs give, `choices` are
    the values to end the model at before it: empty if the model's file does not name them, None without such a node.
    """

    sample: str | None
    values: int
    first_wrong: Mapping[str, tuple[RowFacts, ...]]
    inputs_db: float | None = left_out()
    edge_db: float | None = left_out()
    ends: tuple[str, ...] | None = left_out()
    starts: tuple[str, ...] | None = left_out()
    choices: tuple[str, ...] | None = left_out()
