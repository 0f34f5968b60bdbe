"""The contract of `reading`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.language import LanguageFigures
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
class LanguageReading(Contract):
    """What llama.cpp, of the package's `version`, made of a language model's file.

    It split `texts` texts into tokens and wrote `chats` conversations by the chat template. `ids` and `template` say
    where it first gave something else; None where it gave the same. `figures` are those of the logits. `own_db` is the
    SQNR that its own rounding leaves of the logits, as computed, and `rounded_db` that of the logits with this rounding
    against llama.cpp's; None where it rounds nothing. In a deep model the two are as low as each other: numbers on the
    edge between two steps are rounded apart, and later layers spread that.
    """

    ROOM_DB: ClassVar[float] = 6.0
    """An error of up to twice what rounding explains passes, as both are seen at few places."""

    version: str
    texts: int
    chats: int
    figures: LanguageFigures
    own_db: float | None = left_out()
    rounded_db: float | None = left_out()
    ids: str | None = left_out()
    template: str | None = left_out()

    def least_db(self, asked_db: float) -> float:
        """The least SQNR that the logits must have where `asked_db` is asked for."""
        return asked_db if self.own_db is None else min(asked_db, self.own_db - self.ROOM_DB)


@dataclass(frozen=True, kw_only=True)
class ReadingResult(Contract):
    """How far the file itself was run: on `samples` samples, `by` an engine, or not, for the reason `why`.

    With `own rounding`, the file rounds as it runs, and each of its operators, on the file's own inputs to it, gives
    what was read within half a step; the figures of the rung are then those of the whole file. With `differs`, `why`
    names the first operator that gives something else.

    Of a language model, `samples` are places in texts, and with `own rounding` the error of the logits is no larger
    than llama.cpp's rounding explains.
    """

    shown: Shown
    samples: int = 0
    by: Literal["onnxruntime", "onnx.reference", "llama.cpp"] | None = left_out()
    why: str | None = left_out()
    language: LanguageReading | None = left_out()


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """The rung's `figures`: what `ingest` made of the file, against the file itself, by the label of a subject.

    Of a language model the subject is `logits`.
    """

    reading: ReadingResult
    figures: Measured = field(default_factory=dict)
    subjects: Mapping[str, Subject] = field(default_factory=dict)
