"""The contract of `emulate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.language import LanguageFigures
from pipeline.contracts.measures import Measured, Measuring, Score, Subject
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(Measuring):
    """`last` is the rung that the model is which was compiled; `score` the name of the user's function.

    `max_samples` None is as many as `max_seconds` allow. `twin` has the axes of the small graph that is emulated in
    place of a language model's, `parts` into how many that is split, as of `context`.
    """

    target: HtpTarget
    max_samples: int | None
    max_seconds: int
    last: Literal["rewrite", "quantization"]
    score: str | None
    twin: Mapping[str, int] | None = left_out()
    parts: int | None = left_out()


@dataclass(frozen=True)
class SecondOpinion(Contract):
    """What QNN gave for one sample without ONNX Runtime, by the binary's own names and encodings.

    `disagreements` with the context model, or with what ONNX Runtime gave, are sentences. `not_asked` says why not.
    """

    graphs: int
    disagreements: tuple[str, ...] = ()
    not_asked: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """The ladder's last rung: `compile` against the rung above, `outputs` against the original.

    `samples` of the held-out set were run `of` that many; what was `emulated` is the context, or a plain compile of
    the same model where the emulator does not take the context. None: nothing was. `quiet` has the figures of `outputs`
    on `quiet_samples` that are quieter than those that were given, where a logarithm hears that. Of a language model,
    `language` has the figures of `compile` against the original; what was emulated is its small `twin`.
    """

    samples: int
    of: int
    emulated: Literal["context", "plain compile"] | None = left_out()
    rungs: Mapping[str, Measured]
    outputs: Measured
    score: Score | None
    subjects: Mapping[str, Subject] = field(default_factory=dict)
    second_opinion: SecondOpinion | None = None
    language: Mapping[str, LanguageFigures] = field(default_factory=dict)
    twin: str | None = left_out()
    quiet: Measured = field(default_factory=dict)
    quiet_samples: int = 0


UNMEASURED = Facts(samples=0, of=0, rungs={}, outputs={}, score=None)
"""The facts of a bucket that no sample fits."""
