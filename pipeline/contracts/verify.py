"""The contract of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.language import LanguageFigures
from pipeline.contracts.measures import Declared, Measured, Measuring, Score, Subject, Truth
from pipeline.contracts.reading import ReadingResult
from pipeline.frozen import dataclass

REFERENCES = "references.npz"
"""The file of outputs that those of the emulator are compared with."""


@dataclass(frozen=True, kw_only=True)
class Params(Measuring):
    """`score` is the name of the user's function; `outputs` has by label what the config says of single outputs.

    `quiet` says whether a model that takes a logarithm of what scales with an input is judged on quieter samples too.
    """

    score: str | None
    outputs: Mapping[str, Declared] = field(default_factory=dict)
    quiet: bool = True


@dataclass(frozen=True)
class Facts(Contract):
    """The ladder on the CPU: `rungs` has each rung against the one above, `outputs` the last against the original.

    Of the `samples` that were run (0: nothing was measured), `shorter` belong to smaller buckets. Figures are given by
    the label of a subject; `subjects` has these, and `spans` the range of the original's values. `lengths` has for each
    of the bucket's axes the lengths of all samples of the set, also of other buckets and of calibration; the same place
    of all axes is one combination, and each is there once. `order` has the samples' places in the order in which to
    emulate them, `sample_s` the CPU seconds that one is estimated to take there. `silent` are outputs between 0 and 1
    that never get near 1, so that nothing shows whether they say yes when they should. `forecasts` is what HTP will
    compute wrongly of a model that stays in float, told from these samples; for a QDQ model, `quantize` tells it from
    calibration. For a language model, `language` has the figures of each rung against the original in place of these.

    `heard` are inputs of whose scale a logarithm is taken. `quiet` has the figures of `outputs` on quieter samples
    (:mod:`pipeline.inputs.samples.quiet`), and `quiet_order` their places, the worst first.

    `reading` and the rung of that name come from the step `reading`, once the facts of both are shown.
    """

    samples: int
    shorter: int
    rungs: Mapping[str, Measured]
    outputs: Measured
    score: Score | None
    truth: Truth = "unpadded"
    subjects: Mapping[str, Subject] = field(default_factory=dict)
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    sample_s: float = 0.0
    silent: tuple[str, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    language: Mapping[str, LanguageFigures] = field(default_factory=dict)
    heard: tuple[str, ...] = ()
    quiet: Measured = field(default_factory=dict)
    quiet_order: tuple[int, ...] = ()
    reading: ReadingResult | None = left_out()


@dataclass(frozen=True)
class Basis(Contract):
    """The facts of a bucket that decide how many samples of it, and of the other buckets, are emulated."""

    samples: int
    sample_s: float


UNMEASURED = Facts(samples=0, shorter=0, rungs={}, outputs={}, score=None)
"""The facts of a bucket that no held-out sample fits."""
