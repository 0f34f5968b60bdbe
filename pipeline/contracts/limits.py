"""The limits that the figures of one component must keep to. The defaults are in the configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

WORST_BELOW_DB = 10.0
"""By how many dB the worst sample may fall below the limit for all samples together, if the config says nothing.

With a limit of 20 dB, 10 are left: an error of a third of the signal. Below that the sample is noise.
"""

READING_DB = 60.0
"""The least SQNR of the model that was read against the file itself, if the config says nothing: the sums of float32
in another order are at 100 dB and more."""

STATE_DB = 20.0
"""By how many dB more a state that a recurrent layer hands to its next run must have, if the config says nothing.

The error of each run adds to those of all later runs. Measured with a voice detector (16 kHz, LSTM of 128): a state at
28 dB changed 3 of 279 decisions, and one probability by 0.31.
"""

FEW_DB = WORST_BELOW_DB
"""By how many dB more one emulated sample of very many is judged: as much as one sample may be worse than all."""

_AT_DB = 20.0
"""The limit in dB for which `probability_error` is given."""


@dataclass(frozen=True)
class OutputLimits(Contract):
    """The limits of one output, or of a slice of one. What is None is as for the component.

    With `max_abs_error`, the output is judged by its largest error, and by dB only if a limit in dB is given here too.
    """

    max_abs_error: float | None = left_out()
    reading_db: float | None = left_out()
    padding_db: float | None = left_out()
    rewrite_db: float | None = left_out()
    quantization_db: float | None = left_out()
    compile_db: float | None = left_out()
    total_db: float | None = left_out()
    worst_db: float | None = left_out()
    outside: float | None = left_out()
    cosine: float | None = left_out()

    def of(self, rung: str) -> float | None:
        """The least SQNR on a rung in dB, None if it is not given; `rung` may be `total`."""
        found: float | None = getattr(self, f"{rung}_db")
        return found


_PRECISION = ("quantization", "compile", "total")
"""The rungs that depend on the precision, and `total`."""
_NOTHING_SAID = OutputLimits()


@dataclass(frozen=True)
class Limits(Contract):
    """Limits of one component. SQNR in dB, pooled over samples and valid elements of an output.

    `reading_db` to `compile_db` are the least of each rung against the rung above, `total_db` that of the last measured
    rung against the original model, and `worst_db` that of its worst sample; without a `rewrite_db` a rewrite is a
    means, and judged as the total. `outside` is how far a value may lie outside of the original's range, in widths of
    that range. `probability_error` is the largest error that suffices in place of 20 dB for an output between 0 and 1.
    `choices` is the least share of clear choices that must be the same, `flips` the largest share of choices that may
    be expected to differ on other inputs (None: any), and `overlap` the least share of what an output between 0 and 1
    covers that must be covered by both. `scores` says whether scores that are no probabilities must lead to the same
    choices, too; otherwise only their dB count. `outputs` has by label what differs for an output or a slice.
    """

    reading_db: float
    padding_db: float
    rewrite_db: float | None
    quantization_db: float
    compile_db: float
    total_db: float
    worst_db: float
    outside: float
    probability_error: float
    cosine: float | None
    choices: float
    flips: float | None
    overlap: float
    scores: bool
    outputs: Mapping[str, OutputLimits]

    def of(self, rung: str) -> float:
        """The least SQNR of a rung against the rung above, in dB, or of `total` against the original."""
        found: float | None = getattr(self, f"{rung}_db")
        return self.total_db if found is None else found

    def least_db(self, label: str, rung: str, *, state: bool = False) -> float:
        """The least SQNR of one output or slice on a rung, in dB; `state` says that it is handed to the next run."""
        own = self._own(label).of(rung)
        if own is not None:
            return own
        if rung == "rewrite" and self.rewrite_db is None:
            return self.least_db(label, "total", state=state)
        return self.of(rung) + (STATE_DB if state and rung in _PRECISION else 0.0)

    def most_error(self, label: str, rung: str, *, bounded: bool) -> float | None:
        """The largest error that suffices on a rung, None if the dB must be kept to whatever the error is.

        For `bounded` outputs, those between 0 and 1, it is `probability_error`, scaled from 20 dB to the rung's limit:
        40 dB more leave a hundredth. It does not suffice for an output for which a limit in dB is given.
        """
        given, least = self._own(label).max_abs_error, self.least_db(label, rung)
        if given is not None:
            return given * min(1.0, _amplitude(self.least_db(label, "total") - least))
        if self._own(label).of(rung) is not None:
            return None
        return self.probability_error * _amplitude(_AT_DB - least) if bounded else None

    def declares_error(self, label: str) -> bool:
        """Whether the config gives a largest error for an output or slice."""
        return self._own(label).max_abs_error is not None

    def asks_db(self, label: str, rung: str) -> bool:
        """Whether the SQNR of an output or slice is judged on a rung."""
        return not self.declares_error(label) or self._own(label).of(rung) is not None

    def worst_sample_db(self, label: str, *, state: bool = False) -> float:
        """The least SQNR of an output's or slice's worst sample, in dB."""
        own = self._own(label)
        if own.worst_db is not None:
            return own.worst_db
        more = STATE_DB if state and own.total_db is None else 0.0
        return more + (self.worst_db if own.total_db is None else min(self.worst_db, own.total_db - WORST_BELOW_DB))

    def most_outside(self, label: str) -> float:
        """How far a value of an output or slice may lie outside of the original's range, in widths of that range."""
        own = self._own(label).outside
        return self.outside if own is None else own

    def least_cosine(self, label: str) -> float | None:
        """The least cosine similarity of an output or slice with the original, None if it isn't judged."""
        own = self._own(label).cosine
        return self.cosine if own is None else own

    def _own(self, label: str) -> OutputLimits:
        return self.outputs.get(label, _NOTHING_SAID)


def few_db(samples: int, of: int, one_db: float = FEW_DB) -> float:
    """By how many dB more the rung is judged that is known of `samples` alone of `of`; 0 if it is known of all.

    It is `one_db` for one sample of very many. The standard error of a mean falls with the root of the samples, and of
    the share that is left (ADR 68).
    """
    return math.ceil(10 * one_db * math.sqrt((1 - samples / of) / samples)) / 10 if 0 < samples < of else 0.0


def _amplitude(db: float) -> float:
    return float(10 ** (db / 20))
