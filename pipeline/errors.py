"""Every error a user can meet, each with the exit code it ends the process with.

A message says what went wrong, where, why, and what to do next. Code raises one of these; only
:mod:`pipeline.tasks` and :mod:`pipeline.build.worker` turn them into text and exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pipeline.plain_text import printable

_LONGEST = 8000  # characters of a part: what a file or a user's function says may have no end


class PipelineError(Exception):
    """What went wrong (`what`), where, why, and the next thing to do (`remedy`); each but `what` may be empty."""

    exit_code: ClassVar[int] = 1
    of_machine: bool = False
    """Whether a disk or a limit of the machine is at fault, so that another machine may do the same work."""
    of_process: bool = False
    """Whether a process died, or was ended as it took too much, so that other work of the kind may be done."""

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  {label}: {_cut(text)}" for label, text in self.parts() if text]
        return printable("\n".join(lines))

    def but(self, *, where: str | None = None, why: str | None = None, remedy: str | None = None) -> Self:
        """The same error with other parts, and all else that it carries."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__ |= self.__dict__  # copy() has reducers that others install: Dask's gives both one __dict__
        other.where = self.where if where is None else where
        other.why = self.why if why is None else why
        other.remedy = self.remedy if remedy is None else remedy
        return other

    def at(self, where: str) -> Self:
        """The same error, saying where if it didn't yet."""
        return self.but(where=self.where or where)

    def parts(self) -> tuple[tuple[str, str], ...]:
        """The labelled parts after `what`, in the order they are printed."""
        return (("where", self.where), ("why", self.why), ("next", self.remedy))


class UsageError(PipelineError):
    """The command line can't be understood. Nothing was looked at for it, and nothing has run."""

    exit_code = 3


class ConfigError(PipelineError):
    """A config file is wrong: unknown key, bad value, target that does not exist. Nothing has run."""

    exit_code = 10


class SourceError(PipelineError):
    """The model could not be had: hub repo, revision or file not found, gated, offline, hash mismatch."""

    exit_code = 11


class ModelError(PipelineError):
    """The ONNX model can't be built: corrupt, dynamic where it must not be, already quantized."""

    exit_code = 12


class CalibrationError(PipelineError):
    """The calibration set is empty, unreadable, or does not fit the model."""

    exit_code = 13


class QuantizationError(PipelineError):
    """The model can't be quantized as asked."""

    exit_code = 14


class CompileError(PipelineError):
    """QNN did not produce the context binary that was asked for."""

    exit_code = 15


class VerificationError(PipelineError):
    """An artifact was produced and does not do what it should."""

    exit_code = 16


class StoreError(PipelineError):
    """The store or the artifacts folder can't be read or written, or holds something that is not ours."""

    exit_code = 17


class WorkerError(PipelineError):
    """A worker process died, hung, or ran out of memory; or a stage has a bug."""

    exit_code = 18


class WaitingError(PipelineError):
    """A step may not run on this host, and no store has its output. `hosts` are those that may, each in words.

    `of_cluster`: it waits for a worker of a cluster, and this host was to run none.
    """

    exit_code = 19
    of_cluster: bool = False

    def __init__(
        self, what: str, *, where: str = "", why: str = "", remedy: str = "", hosts: Sequence[str] = (), step: str = ""
    ) -> None:
        super().__init__(what, where=where, why=why, remedy=remedy)
        self.hosts = tuple(hosts)
        self.step = step


class DeviceError(PipelineError):
    """A device can't be reached, or has not what it takes to run a release."""

    exit_code = 20


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


BY_NAME: dict[str, type[PipelineError]] = {
    cls.__name__: cls
    for cls in (
        PipelineError,
        ConfigError,
        SourceError,
        ModelError,
        CalibrationError,
        QuantizationError,
        CompileError,
        VerificationError,
        StoreError,
        WorkerError,
        WaitingError,
        DeviceError,
    )
}
