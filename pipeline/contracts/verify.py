"""The contract of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.language import LanguageFigures
from pipeline.contracts.measures import Declared, Measured, Measuring, Score, Subject, Truth
from pipeline.frozen import dataclass

REFERENCES = "references.npz"
"""The file of outputs that the emulator's are held against."""


@dataclass(frozen=True, kw_only=True)
class Params(Measuring):
    """`score` is the name of the user's function; `outputs` has what the config says of single ones, by label.

    `quiet`: where a logarithm is taken of what scales with an input, quieter samples are judged as well.
    """

    score: str | None
    outputs: Mapping[str, Declared] = field(default_factory=dict)
    quiet: bool = True


@dataclass(frozen=True)
class Facts(Contract):
    """The ladder on the CPU: each rung against the one above, `outputs` of the last rung against the original.

    Of `samples` (0: nothing was measured), `shorter` belong to smaller buckets. Figures are of `subjects`, by label;
    `spans` has the range of the original's values. `lengths` has those of all samples of the set, of other buckets and
    calibration too, on the bucket's axes, each combination of them in one place. `order` has the samples' places in the
    order to emulate them in; each takes some `sample_s` CPU seconds there, by an estimate.
    `silent` are those between 0 and 1 that never get near 1: that they say yes where they should is then not shown.
    `forecasts` is what HTP will compute wrongly of a model that stays in float, told from these samples; that of a QDQ
    model comes from calibration (`quantize`). Of a language model, `language` has the figures of each rung against the
    original in place of all those.

    `heard` are inputs of whose scale a logarithm is taken. `quiet` has the figures of `outputs` on quieter samples
    (:mod:`pipeline.inputs.samples.quiet`), `quiet_order` the places of those, the worst first.
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


@dataclass(frozen=True)
class Basis(Contract):
    """What of a bucket's facts decides how many samples of it, and of the others, are emulated."""

    samples: int
    outputs: Measured
    sample_s: float


UNMEASURED = Facts(samples=0, shorter=0, rungs={}, outputs={}, score=None)
"""The facts of a bucket that no sample fits."""
