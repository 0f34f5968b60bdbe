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
    """`last` is the rung of the model that was compiled; `score` is the name of the user's function.

    With `max_samples` None, as many samples are run as fit into `max_seconds`. `twin` has the axes of the small graph
    that is emulated in place of a language model's; `parts` is as in :class:`pipeline.contracts.context.Params`.
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
    """Whether QNN without ONNX Runtime, by the binary's own names and encodings, gives the same for one sample.

    `graphs` is how many were run. `disagreements` are sentences about differences from the context model or from
    ONNX Runtime's outputs. `not_asked` is the reason if nothing was run.
    """

    graphs: int
    disagreements: tuple[str, ...] = ()
    not_asked: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """The ladder's last rung: `rungs` has `compile` against the rung above, `outputs` are against the original.

    `samples` of the `of` held-out ones were run. `emulated` is the context, or a plain compile of the same model if the
    emulator does not take the context; None if nothing was emulated. For a model that takes a logarithm of what scales
    with an input, `quiet` has the figures of `outputs` on `quiet_samples` that were made quieter. For a language model,
    `language` has the figures of `compile` against the original, and `twin` names the small graph that was emulated.
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
"""The facts of a bucket that no held-out sample fits."""
