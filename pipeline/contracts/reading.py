"""The contract of `reading`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Measured, OverBuckets, SamplePart, Subject, Truth
from pipeline.frozen import dataclass

Shown = Literal["exact", "own rounding", "differs", "not proven"]
"""The result of the rung; `exact` and `differs` are by its figures and the default limit, gates judge by their own."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`file`, `cut` and `begin` are those of `ingest`; the others are as in `verify`."""

    padding: Mapping[str, float]
    part: SamplePart
    truth: Truth
    file: str
    cut: tuple[str, ...] = ()
    begin: tuple[str, ...] | None = left_out()


@dataclass(frozen=True)
class Looked(Contract):
    """The facts of `verify` that say which samples of a bucket are looked at, and how outputs are judged."""

    samples: int
    order: tuple[int, ...]
    subjects: Mapping[str, Subject]


@dataclass(frozen=True, kw_only=True)
class ReadingResult(Contract):
    """How far the file itself was run: on `samples` samples, `by` an engine, or not, for the reason `why`.

    With `own rounding`, the file rounds as it runs, and each of its operators, on the file's own inputs to it, gives
    what was read within half a step; the figures of the rung are then those of the whole file. With `differs`, `why`
    names the first operator that gives something else.
    """

    shown: Shown
    samples: int = 0
    by: Literal["onnxruntime", "onnx.reference"] | None = left_out()
    why: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """The rung's `figures`: what `ingest` made of the file, against the file itself, by the label of a subject."""

    reading: ReadingResult
    figures: Measured = field(default_factory=dict)
    subjects: Mapping[str, Subject] = field(default_factory=dict)
