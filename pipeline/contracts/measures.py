"""What is measured of a bucket on held-out samples: what it takes, and the figures that come of it."""

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
"""What a bucket is held against: the original on samples as they come; on samples that are padded as the bucket pads
them, since the application always pads; or on samples that have exactly its lengths, and on no others."""

Buckets = Mapping[str, Mapping[str, int]]
"""Axes of each bucket of a component, by the bucket's name."""


@dataclass(frozen=True, kw_only=True)
class OverBuckets(Contract):
    """What every step over several buckets of a component takes."""

    component: str
    buckets: Buckets


@dataclass(frozen=True, kw_only=True)
class Measuring(OverBuckets):
    """What every measurement of one bucket takes. `padding` has the value that an input is filled with, if not 0."""

    bucket: str
    axes: Mapping[str, int]
    padding: Mapping[str, float]
    part: SamplePart
    truth: Truth = "unpadded"


@dataclass(frozen=True)
class Declared(Contract):
    """How a config wants an output to be judged: a slice of it, or what is chosen along an axis.

    `output` None: the label is the output's name, or there is one output. `tie` is in units of the output.
    """

    output: str | None = left_out()
    slice: str | None = left_out()
    choice: int | None = left_out()
    tie: float | None = left_out()


@dataclass(frozen=True)
class Subject(Contract):
    """What is judged by itself: an output, or a slice of one (`slice`), or what no slice has (`without` them).

    By its `values`; by the `equality` of integers; or by the `choice` of the largest along `axis`, except where the
    runner-up of the original is nearer than `tie`. For integers that an ArgMax makes, `chosen_from` is what it chose
    from; with `places`, as of a TopK, any place will do where that is nearer than `tie` to what it should be.
    `bounded`: it lies between 0 and 1 by construction. `state`: it is handed to the next run. `zero`: its integers are
    rounded numbers, judged by their values, and this one stands for 0.

    `reads` is what an application reads off its values, as far as can be told: the `likeliest` of probabilities along
    `axis`, or the `largest` of scores, where the runner-up is not nearer than `tie`; or the `level` between 0 and 1.
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
    """A value that lies outside of the original's range over all samples, by `times` the width of that range.

    None stands for what is no finite number.
    """

    sample: str
    value: float | None
    low: float
    high: float
    times: float | None


@dataclass(frozen=True)
class Agreement(Contract):
    """How far an application reads the same: the `share` of all `of` choices, or of what levels cover, that is alike.

    `worst` is the share of the sample named `worst_sample`. `flips` is the share of choices that other inputs are
    expected to have made otherwise, by margins and errors; None where choices are too few to tell.
    """

    share: float
    of: int
    worst: float
    worst_sample: str
    flips: float | None = left_out()


@dataclass(frozen=True)
class Figures(Contract):
    """How far a subject is from what it should be, over all samples; None for what is no number.

    SQNR in dB: of all samples pooled, the median of the samples, and that of the worst, which is named. A sample's
    error is held against its own signal or the mean one, whichever is more. `outlier` is the value furthest outside of
    the original's range; None if none is. `agreement` is about what is read off the values; None where that is not
    known.
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
"""Figures by the label of what they are of."""


@dataclass(frozen=True)
class Score(Contract):
    """The user's figure of merit on the same samples: of the original (`fp32`), and of what was made, of one kind."""

    name: str
    fp32: float
    qdq: float | None = left_out()
    rewritten: float | None = left_out()
    htp: float | None = left_out()

    @property
    def made(self) -> tuple[str, float]:
        """The kind of what was made, and its score."""
        kinds = {"qdq": self.qdq, "rewritten": self.rewritten, "htp": self.htp}
        return next((kind, value) for kind, value in kinds.items() if value is not None)


@dataclass(frozen=True)
class Reason(Contract):
    """Why a value went wrong, by a name that docs/accuracy.md explains."""

    name: str
    text: str
