"""What the figures of one component must keep to, without defaults: those are the configuration's."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

WORST_BELOW_DB = 10.0
"""By how much the worst sample may fall below what all together must keep to, if nothing is said: 20 dB leave it 10,
an error of a third of the signal, below which it is noise."""

STATE_DB = 20.0
"""What is asked for more of a state that a recurrent layer hands to its next run, if nothing is said of it.

The error of each run is met by all that follow. Measured with a voice detector (16 kHz, LSTM of 128): a state at 28 dB
took 3 of 279 decisions with it and 0.31 of a probability.
"""

_AT_DB = 20.0
"""What `probability_error` is for."""


@dataclass(frozen=True)
class OutputLimits(Contract):
    """What one output, or slice of one, must keep to; None is what the component's limits say.

    With `max_abs_error` it is judged by that, and by dB only where a figure in dB is given here too.
    """

    max_abs_error: float | None = left_out()
    padding_db: float | None = left_out()
    rewrite_db: float | None = left_out()
    quantization_db: float | None = left_out()
    compile_db: float | None = left_out()
    total_db: float | None = left_out()
    worst_db: float | None = left_out()
    outside: float | None = left_out()
    cosine: float | None = left_out()

    def of(self, rung: str) -> float | None:
        """The least SQNR on a rung in dB, if it is given; `rung` may be `total`."""
        found: float | None = getattr(self, f"{rung}_db")
        return found


_PRECISION = ("quantization", "compile", "total")
"""Rungs that a precision decides."""
_NOTHING_SAID = OutputLimits()


@dataclass(frozen=True)
class Limits(Contract):
    """Limits of one component. SQNR in dB, pooled over samples and valid elements of an output.

    `total_db` is for the last rung measured, against the original model; the rungs' own are against the one above.
    `worst_db` is for its worst sample. `outside` bounds how far a value may lie outside of the original's range, in
    widths of that. `probability_error` is the largest error that will do at 20 dB for what lies between 0 and 1.
    `choices` is the least share of clear choices that must be the same, `flips` the largest share that other inputs may
    be expected to have made otherwise (None: any), `overlap` how much of what lies between 0 and 1 must be covered
    alike. `scores` says whether scores that are no probabilities must lead to the same choices, too; only their dB
    count otherwise. `outputs` has what differs for an output or a slice, by label.
    """

    padding_db: float
    rewrite_db: float
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
        """The least SQNR of a rung against the one above, in dB; of `total`, against the original."""
        found: float = getattr(self, f"{rung}_db")
        return found

    def least_db(self, label: str, rung: str, *, state: bool = False) -> float:
        """The least SQNR of one output or slice on a rung, in dB; `state`: it is handed to the next run."""
        own = self._own(label).of(rung)
        if own is not None:
            return own
        return self.of(rung) + (STATE_DB if state and rung in _PRECISION else 0.0)

    def most_error(self, label: str, rung: str, *, bounded: bool) -> float | None:
        """The largest error that will do on a rung, None if an error won't do.

        Where 40 dB more are asked for, a hundredth of it.
        """
        given, least = self._own(label).max_abs_error, self.least_db(label, rung)
        if given is not None:
            return given * min(1.0, _amplitude(self.least_db(label, "total") - least))
        return self.probability_error * _amplitude(_AT_DB - least) if bounded else None

    def declares_error(self, label: str) -> bool:
        """Whether a largest error is given."""
        return self._own(label).max_abs_error is not None

    def asks_db(self, label: str, rung: str) -> bool:
        """Whether a figure in dB counts."""
        return not self.declares_error(label) or self._own(label).of(rung) is not None

    def worst_sample_db(self, label: str, *, state: bool = False) -> float:
        """The least SQNR of the worst sample, in dB."""
        own = self._own(label)
        if own.worst_db is not None:
            return own.worst_db
        more = STATE_DB if state and own.total_db is None else 0.0
        return more + (self.worst_db if own.total_db is None else min(self.worst_db, own.total_db - WORST_BELOW_DB))

    def most_outside(self, label: str) -> float:
        """How far a value may lie outside of the original's range."""
        own = self._own(label).outside
        return self.outside if own is None else own

    def least_cosine(self, label: str) -> float | None:
        """The least cosine, None if it isn't looked at."""
        own = self._own(label).cosine
        return self.cosine if own is None else own

    def _own(self, label: str) -> OutputLimits:
        return self.outputs.get(label, _NOTHING_SAID)


def _amplitude(db: float) -> float:
    return float(10 ** (db / 20))
