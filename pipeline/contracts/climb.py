"""The result of a climb: which precisions were tried to keep to the gates, and which one a component ended with."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract
from pipeline.contracts.scheme import Scheme
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Attempt(Contract):
    """One precision that was tried, `label`. `missed` is the step whose gate it missed, "" if it missed none.

    `why` is the reason. `sqnr_db` has for each rung the least figure over buckets, targets and outputs, None for what
    is no number. `weight_bytes` are the bytes of the weights, 2 for each number that stays in float.
    """

    label: str
    missed: str
    why: str
    sqnr_db: Mapping[str, float | None]
    weight_bytes: int

    def line(self) -> str:
        """The attempt in one line, for a log or a message."""
        shown = {rung: "no number" if db is None else f"{db:.1f} dB" for rung, db in self.sqnr_db.items()}
        figures = ", ".join(f"{rung} {db}" for rung, db in shown.items())
        size = f", weights {self.weight_bytes / 1e6:.1f} MB" if self.weight_bytes else ""
        return f"{self.label}: {figures or 'nothing measured'}{size}" + (f"; {self.why}" if self.missed else "")


@dataclass(frozen=True)
class Facts(Contract):
    """The scheme that the climb ended with, and all attempts in the order in which they were made."""

    quantization: Scheme
    attempts: tuple[Attempt, ...]
