"""What measuring a bucket on held-out samples takes, and the figures that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

SamplePart = Literal[
    "all", "kept", "held out", "calibrated", "searched", "not searched",
    "kept by length", "held out by length", "calibrated by length", "searched by length",
]  # fmt: skip
"""A part of a set of samples: see :mod:`pipeline.inputs.samples.sample_set`."""

Truth = Literal["unpadded", "padded", "exact"]
"""What a bucket is compared with: the original on unpadded samples; on samples that are padded as the bucket pads them,
since the application always pads; or on unpadded samples of exactly the bucket's lengths, leaving out all others."""

Buckets = Mapping[str, Mapping[str, int]]
"""Axes of each bucket of a component, by the bucket's name."""


@dataclass(frozen=True, kw_only=True)
class OverBuckets(Contract):
    """The parameters of every step over several buckets of a component."""

    component: str
    buckets: Buckets


@dataclass(frozen=True, kw_only=True)
class Measuring(OverBuckets):
    """The parameters of every measurement of one bucket. `padding` has the value to fill an input with, if not 0."""

    bucket: str
    axes: Mapping[str, int]
    padding: Mapping[str, float]
    part: SamplePart
    truth: Truth = "unpadded"


@dataclass(frozen=True)
class Declared(Contract):
    """How the config wants an output to be judged: by a `slice` of it, or by what is chosen along the axis `choice`.

    If `output` is None, the label is the output's name, or there is only one output. Choices nearer to each other than
    `tie`, in units of the output, count as equal.
    """

    output: str | None = left_out()
    slice: str | None = left_out()
    choice: int | None = left_out()
    tie: float | None = left_out()


@dataclass(frozen=True)
class Subject(Contract):
    """What is judged by itself: an output, its part `slice`, or what remains of it `without` the slices.

    It is judged `by` its values; by the equality of integers; or by the choice of the largest along `axis`, except
    where the original's runner-up is nearer than `tie`. For integers that an ArgMax makes, `chosen_from` is the value
    that it chooses from. With `places`, as for a TopK, any place is right at which that value is nearer than `tie` to
    the one at the right place. `bounded` says that the output lies between 0 and 1 by construction, `state` that it is
    handed to the next run. With `zero`, the integers are rounded numbers that are judged by their values, and `zero`
    is the integer for 0.

    `reads` is what an application reads off the values, as far as can be told: the `likeliest` of probabilities along
    `axis` or the `largest` of scores, where the runner-up is not nearer than `tie`, or the `level` between 0 and 1.
    """

    output: str
    slice: str = ""
    without: tuple[str, ...] = ()
    by: Literal["values", "equality", "choice"] = "values"
    axis: int | None = left_out()
    tie: float | None = left_out()
    chosen_from: str | None = left_out()
    places: bool | None = left_out()
    bounded: bool = False
    state: bool = False
    reads: Literal["likeliest", "largest", "level"] | None = left_out()
    zero: float | None = left_out()


@dataclass(frozen=True)
class Outlier(Contract):
    """A value outside of the original's range over all samples, `low` to `high`, by `times` the width of that range.

    None stands for what is no finite number.
    """

    sample: str
    value: float | None
    low: float
    high: float
    times: float | None


@dataclass(frozen=True)
class Agreement(Contract):
    """How far an application reads the same from both: the `share` that is alike of `of` choices, or of the levels.

    `worst` is the share in the sample named `worst_sample`. `flips` is the share of choices that are expected to differ
    on other inputs, by the margins of the choices and the errors; None if there are too few choices to tell.
    """

    share: float
    of: int
    worst: float
    worst_sample: str
    flips: float | None = left_out()


@dataclass(frozen=True)
class Figures(Contract):
    """How far a subject is from what it should be, over all samples. A figure that is no number is None.

    `sqnr_db` is the SQNR of all samples pooled, `median_db` the median of the samples' own, `worst_db` the least, that
    of `worst_sample`. The SQNR of a sample is that of its error and of its own signal or the mean one, whichever is
    more. `outlier` is the value furthest outside of the original's range; None if there is none. `agreement` is about
    what an application reads off the values; None if that is not known.
    """

    sqnr_db: float | None
    median_db: float | None
    worst_db: float | None
    worst_sample: str
    cosine: float | None
    max_abs_error: float | None
    outlier: Outlier | None = None
    agreement: Agreement | None = left_out()


Measured = Mapping[str, Figures]
"""Figures by the label of their subject."""


@dataclass(frozen=True)
class Score(Contract):
    """The figure of the user's score function on the same samples: for the original (`fp32`), and for one other model.

    That is the QDQ model (`qdq`), the rewritten one of a component in float, or what ran on the emulator (`htp`).
    """

    name: str
    fp32: float
    qdq: float | None = left_out()
    rewritten: float | None = left_out()
    htp: float | None = left_out()

    @property
    def made(self) -> tuple[str, float]:
        """Which other model was scored, and its score."""
        kinds = {"qdq": self.qdq, "rewritten": self.rewritten, "htp": self.htp}
        return next((kind, value) for kind, value in kinds.items() if value is not None)


@dataclass(frozen=True)
class Reason(Contract):
    """Why a value went wrong, by a name that docs/accuracy.md explains."""

    name: str
    text: str
