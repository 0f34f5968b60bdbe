"""What an artifact must keep to before it ships: figures of the accuracy ladder and of what runs on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EXACT_DB = 100.0
"""The most that is reported: below that, outputs differ by the order of float32 sums, which varies with the CPU."""

RUNGS = ("padding", "rewrite", "quantization", "compile")
"""The rungs of the ladder below the original model, top down."""


@dataclass(frozen=True)
class Thresholds:
    """Limits of one component. SQNR in dB, pooled over samples and valid elements of an output.

    `total_db` is for the last rung measured, against the original model; the rungs' own are against the one above.
    """

    padding_db: float = 60.0
    rewrite_db: float = 60.0
    quantization_db: float = 20.0
    compile_db: float = 20.0
    total_db: float = 20.0
    cosine: float | None = None
    score_change: float | None = None
    max_cpu_nodes: int = 0
    max_partitions: int = 1

    def of(self, rung: str) -> float:
        """The least SQNR of a rung against the one above, in dB."""
        by_rung: Mapping[str, float] = {
            "padding": self.padding_db,
            "rewrite": self.rewrite_db,
            "quantization": self.quantization_db,
            "compile": self.compile_db,
        }
        return by_rung[rung]
