"""What a climb tells of the precisions it tried."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract
from pipeline.contracts.scheme import Scheme
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Attempt(Contract):
    """One precision: `label`, the step whose gate it missed and why (empty: it keeps to all of them).

    `sqnr_db` has the least figure of each rung over buckets, targets and outputs, None for what is no number;
    `weight_bytes` is what its weights take, those that stay in float in 16 bits.
    """

    label: str
    missed: str
    why: str
    sqnr_db: Mapping[str, float | None]
    weight_bytes: int

    def line(self) -> str:
        """In one line, for a log or a message."""
        shown = {rung: "no number" if db is None else f"{db:.1f} dB" for rung, db in self.sqnr_db.items()}
        figures = ", ".join(f"{rung} {db}" for rung, db in shown.items())
        size = f", weights {self.weight_bytes / 1e6:.1f} MB" if self.weight_bytes else ""
        return f"{self.label}: {figures or 'nothing measured'}{size}" + (f"; {self.why}" if self.missed else "")


@dataclass(frozen=True)
class Facts(Contract):
    """The scheme that keeps to the gates, and all that was tried, in that order."""

    quantization: Scheme
    attempts: tuple[Attempt, ...]
