"""The default limits that an artifact must keep to: figures of the accuracy ladder, and what may run on the CPU.

No stage may import this: a default that changes would run every measurement again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from pipeline.contracts.limits import FEW_DB, READING_DB, WORST_BELOW_DB, Limits, OutputLimits, few_db
from pipeline.frozen import dataclass

EXACT_REWRITE_DB = 60.0
"""A rewrite that is further from the model is remarked on: most only reorder sums, which leaves more than 100 dB."""

WISHED_DB = 30.0
"""What a default precision aims at if the config gives no threshold: an error of a thirtieth of the signal.

Between 20 and 30 dB it depends on the application whether an artifact is right. Of nine trained models built with such
figures, four were wrong in their applications; of eleven above 30 dB, none was
(docs/adr/0028-a-default-aims-higher-than-its-gates.md).
"""

WISHED_CHOICES, WISHED_OVERLAP = 0.999, 0.985
"""What a default precision aims at in what an application reads: one of a thousand clear choices may differ, and the
overlap of outputs between 0 and 1 may miss a seventieth. One choice that flips spoils a text of 40 steps; a text
detector with an overlap of 0.97 had boxes with an IoU of 0.9.
"""

WISHED_FLIPS = 1 - WISHED_CHOICES
"""The share of choices that may be expected to differ on other inputs: held-out samples are often too few to show one
in a thousand."""

WISHED_FEATURES_DB, SMALL_BYTES = 36.0, 4 << 20
"""What a default precision aims at, in dB, for a model of at most so many bytes of weights whose output is no decision
but goes into another model. Twice the bytes of a small model are still few, and the next model may need exact inputs:
an embedding for wake words at 23 dB changed 11 of 840 decisions, and one probability by 0.43. With an error of a
thirtieth that would still be 0.2, with a sixtieth 0.1.
"""


@dataclass(frozen=True)
class Thresholds(Limits):
    """The limits of one component with their defaults, and limits that are not about figures of the ladder.

    `reading_required` says that a component may not ship if no engine ran its file. `few_db` is how much more is asked
    of the compile rung of one emulated sample of many. `score_change` is the most that the score may change, None for
    any. `kl` (in nats), `top1` and `perplexity` are for
    :class:`pipeline.contracts.language.LanguageFigures`.
    """

    reading_db: float = READING_DB
    padding_db: float = 60.0
    rewrite_db: float | None = None
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
    few_db: float = FEW_DB
    score_change: float | None = None
    kl: float = 0.03
    top1: float = 0.9
    perplexity: float = 0.03
    words: float = 0.01
    max_cpu_nodes: int = 0
    max_partitions: int = 1
    reading_required: bool = False

    def for_few(self, samples: int, of: int) -> Thresholds:
        """The limits for a compile rung that was measured on `samples` of `of` alone."""
        return replace(self, compile_db=self.compile_db + few_db(samples, of, self.few_db))
