"""What an artifact must keep to before it ships, by default: figures of the accuracy ladder, and what runs on the CPU.

No stage may import this: a default that changes would run every measurement again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.limits import WORST_BELOW_DB, Limits, OutputLimits
from pipeline.frozen import dataclass

WISHED_DB = 30.0
"""What a default aims at where neither a precision nor a threshold is written: an error of a thirtieth of the signal.

Between 20 and 30 dB it depends on the application whether an artifact is right: of nine trained models that were built
so, four were wrong in their applications (docs/adr/0028-a-default-aims-higher-than-its-gates.md); of eleven above 30
dB none was.
"""

WISHED_CHOICES, WISHED_OVERLAP = 0.999, 0.985
"""What a default aims at of what an application reads: of a thousand clear choices one may differ, and what lies
between 0 and 1 may differ by a seventieth. A text of 40 steps is read wrongly by one choice that flips; a text detector
at 0.97 had boxes with an IoU of 0.9.
"""

WISHED_FLIPS = 1 - WISHED_CHOICES
"""The same of choices that other inputs will lead to: held-out samples are often too few to show one in a thousand."""

WISHED_FEATURES_DB, SMALL_BYTES = 36.0, 4 << 20
"""What a default aims at where an output is no decision but goes into something else, and the weights are few.

Twice of a few bytes are few, and what is behind may ask for much: an embedding for wake words at 23 dB took 11 of 840
decisions with it and 0.43 of a probability; an error of a thirtieth would still be 0.2, of a sixtieth 0.1.
"""


@dataclass(frozen=True)
class Thresholds(Limits):
    """The limits of one component with their defaults, and those that are about no figure of the ladder."""

    padding_db: float = 60.0
    rewrite_db: float = 60.0
    quantization_db: float = 20.0
    compile_db: float = 20.0
    total_db: float = 20.0
    worst_db: float = 20.0 - WORST_BELOW_DB
    outside: float = 1.0
    probability_error: float = 0.02
    cosine: float | None = None
    choices: float = 0.99
    flips: float | None = None
    overlap: float = 0.9
    scores: bool = False
    outputs: Mapping[str, OutputLimits] = field(default_factory=dict)
    score_change: float | None = None
    kl: float = 0.03
    top1: float = 0.9
    perplexity: float = 0.03
    max_cpu_nodes: int = 0
    max_partitions: int = 1
