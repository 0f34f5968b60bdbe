"""A context that is emulated in rounds: some samples first, more where those are a reason for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from pipeline.contracts.context import CompiledModel, PartFacts
from pipeline.contracts.emulate import SecondOpinion
from pipeline.contracts.target import HtpTarget
from pipeline.model import StageInput
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn.emulate import TimeLimit, can_emulate
from pipeline.qnn.second_opinion import second_opinion

Arrays = Mapping[str, NDArray[Any]]

_PATIENCE = 4
"""By how much the estimate may be wrong before fewer samples are run than were planned."""
_LEAST_S = 30


@dataclass(frozen=True)
class Emulated:
    """A context model in `folder`; `kind` says whether it is what ships, or a plain compile of the same model."""

    folder: Path
    made: CompiledModel
    kind: Literal["context", "plain compile"]
    target: HtpTarget
    work: Path

    def run(self, feeds: Sequence[Arrays], sample_s: float) -> list[dict[str, NDArray[Any]]]:
        """The outputs for each of `feeds`, by name; for fewer if they take far more than `sample_s` CPU seconds each.

        Raises:
            VerificationError: the context can't be run.
        """
        names = [output.name for output in self.made.outputs]
        limit = TimeLimit(max(_LEAST_S, sample_s * len(feeds)) * _PATIENCE)
        with tempfile.TemporaryDirectory(dir=self.work) as work:
            ran = run_apart(self.folder, self.made.context_model, self.target, feeds, Path(work), limit)
        return [dict(zip(names, result, strict=True)) for result in ran]

    def opinion(self, feed: Arrays, outputs: Arrays) -> SecondOpinion:
        """What QNN gives for `feed` without ONNX Runtime, held against the `outputs` with it."""
        with tempfile.TemporaryDirectory(dir=self.work) as work:
            return second_opinion(self.folder, self.made.context_model, self.target, feed, outputs, Path(work))


@contextmanager
def emulation(model: Path, given: StageInput | None, target: HtpTarget, beside: Path) -> Iterator[Emulated]:
    """The context that was `given`, or the model compiled plainly where it can't be emulated.

    What is exchanged with the emulator is in folders of their own in `beside`.

    Raises:
        CompileError: the model can't be compiled.
    """
    compiled = PartFacts.from_json(given.facts) if given else None
    with tempfile.TemporaryDirectory(dir=beside) as plain, tempfile.TemporaryDirectory(dir=beside) as work:
        if given and compiled and can_emulate(given.folder, compiled.context_model):
            yield Emulated(given.folder, compiled, "context", target, Path(work))
        else:
            made = compile_apart(model, "plain", target, Path(plain))
            yield Emulated(Path(plain), made, "plain compile", target, Path(work))
