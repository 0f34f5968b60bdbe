"""Emulates a context in rounds: some samples first, more if those give a reason."""

from __future__ import annotations

import os
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
from pipeline.graph.files.model_file import load_graph
from pipeline.model import StageInput
from pipeline.processes.memory import budget_bytes, granted_bytes, peak_bytes, run_at_once
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn.format.context_model import binary_names
from pipeline.qnn.running.emulate import TimeLimit, can_emulate
from pipeline.qnn.running.second_opinion import beside, second_opinion

Arrays = Mapping[str, NDArray[Any]]

_PATIENCE = 4
"""The factor by which samples may take longer than estimated before fewer are run than planned."""
_LEAST_S = 30
_EMULATOR_BYTES, _TIMES_BINARY = 320 << 20, 16
"""The memory of an emulator: so many bytes, and so many times the context. It took 0.3 to 1.2 GB with contexts of up to
60 MB."""


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

    def run_twice(
        self, feeds: Sequence[Arrays], sample_s: float
    ) -> tuple[list[dict[str, NDArray[Any]]], SecondOpinion]:
        """Run as :meth:`run`, and compare the first result with what QNN gives without ONNX Runtime.

        Both run at once, each in a process of its own, if the step may use the memory for it: a sample of a large model
        takes minutes.

        Raises:
            VerificationError: the context can't be run.
            CompileError: a binary can't be read.
        """
        if not fit_at_once(2, _binary_bytes(self.folder, self.made)):
            results = self.run(feeds, sample_s)
            with tempfile.TemporaryDirectory(dir=self.work) as work:
                opinion = second_opinion(*self._named, feeds[0], results[0], Path(work))
            return results, opinion
        run_at_once(2)
        with (
            tempfile.TemporaryDirectory(dir=self.work) as work,
            beside(*self._named, feeds[0], Path(work)) as alone,
        ):
            results = self.run(feeds, sample_s)
            return results, alone().against(results[0])

    @property
    def _named(self) -> tuple[Path, str, HtpTarget]:
        return self.folder, self.made.context_model, self.target


def fit_at_once(count: int, binary_bytes: int) -> bool:
    """Whether `count` emulators of a context may run at once in the memory that this step may use.

    Free memory alone does not tell, as other steps see it, too: the build counts some of it for this step.
    """
    wanted = peak_bytes() + count * (_EMULATOR_BYTES + _TIMES_BINARY * binary_bytes)
    return wanted <= granted_bytes(os.environ) and wanted <= budget_bytes(os.environ)


def _binary_bytes(folder: Path, made: CompiledModel) -> int:
    return sum((folder / name).stat().st_size for name in binary_names(load_graph(folder / made.context_model)))


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
