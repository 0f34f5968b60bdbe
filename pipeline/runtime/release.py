"""An open release: give a component its inputs, get its outputs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from . import archive, contents
from .contents import Contents
from .errors import FallbackWarning, FormatError, InputError, ReleaseError, RunError, TargetError, TooLongError
from .fitting import Arrays, Fitting
from .index import Component, Index
from .placement import Placement, place
from .report import Report
from .sessions import Sessions
from .splitting import Splitter

if TYPE_CHECKING:
    from .provider import Configure

_FILES = "files"


class Release:
    """A release on one device. Safe to use from several threads; a context manager that closes it."""

    def __init__(self, held: Contents, placement: Placement, sessions: Sessions) -> None:
        self._contents = held
        self._placement = placement
        self._sessions = sessions
        self._fittings = {name: Fitting(component) for name, component in held.index.components.items()}
        self._lock = threading.Lock()
        self._split = 0

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        target: str | None = None,
        device: str | None = None,
        fallback: Literal["cpu", "refuse"] = "cpu",
        cache: str | Path | None = None,
        options: Mapping[str, str] | None = None,
        configure: Configure | None = None,
    ) -> Self:
        """Open a release: a folder, or an archive, which is unpacked into `cache` if it was not before.

        Without `target`, it is the one whose contexts the QNN execution provider finds right for the NPU here. `device`
        is "npu", "emulator" (QNN's, of an NPU, on x86_64; slow) or "cpu"; without it, it is the NPU, or on an x86_64
        host the emulator of the `target` that was named. What can't run there runs as QDQ model on the CPU, with a
        :class:`FallbackWarning`, or with `fallback="refuse"` is an error. `options` are further options of the QNN
        execution provider, such as `{"htp_performance_mode": "burst"}`; `configure` changes options of each session.

        Hashes are checked when a file is first needed, before it is loaded.

        Raises:
            FormatError: this is no release.
            DamagedError: a file is missing, or a file of the archive is not the one that release.json names.
            TargetError: no target fits, and it may not or can't run on the CPU.
            ReleaseError: the archive can't be unpacked.
        """
        if fallback not in ("cpu", "refuse"):
            raise ValueError(f"fallback is 'cpu' or 'refuse', not {fallback!r}")
        folder, index = _opened(Path(path), Path(cache) if cache is not None else None)
        placement = place(index, target, device)
        refuse = fallback == "refuse"
        if placement.fell_back:
            _check_fallback(index, placement, str(path), refuse)
            hint = f"; {placement.remedy}" if placement.remedy else ""
            warnings.warn(f"{index.model} runs on the CPU: {placement.why}{hint}", FallbackWarning, stacklevel=2)
        held = Contents(folder, index)
        return cls(
            held, placement, Sessions(held, placement, refuse=refuse, options=options or {}, configure=configure)
        )

    @property
    def model(self) -> str:
        """The model's name."""
        return self._contents.index.model

    @property
    def version(self) -> str:
        """The release's version."""
        return self._contents.index.version

    @property
    def target(self) -> str | None:
        """The target whose contexts are run; None on the CPU."""
        return self._placement.target.name if self._placement.target else None

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._contents.folder

    @property
    def components(self) -> Mapping[str, Component]:
        """What can be run, with inputs, outputs and buckets."""
        return self._contents.index.components

    def run(self, component: str, inputs: Mapping[str, ArrayLike], *, splitter: Splitter | None = None) -> Arrays:
        """Run a component in the smallest bucket that holds the inputs; its outputs by name, cut back to the inputs.

        Arrays must have the types and shapes that the component declares; outputs may be views of larger arrays. What
        is longer than the largest bucket goes to `splitter`.

        Raises:
            InputError: the inputs are not the component's. TooLongError is one.
            DamagedError, LoadError: the session, made at the first use of a bucket, can't be had.
            RunError: it failed, or returned something else than the release says.
        """
        fitting = self._fittings.get(component)
        if fitting is None:
            raise self._unknown(component)
        arrays = {name: array if isinstance(array, np.ndarray) else np.asarray(array) for name, array in inputs.items()}
        lengths = fitting.lengths(arrays)
        try:
            bucket = fitting.bucket(lengths)
        except TooLongError:
            if splitter is None:
                raise
            return self._run_pieces(component, arrays, splitter)
        session = self._sessions.session(component, bucket)
        slot = self._sessions.slots[component][bucket]
        try:
            outputs = session.run(fitting.output_names, fitting.pad(arrays, bucket))
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            raise RunError(
                f"{slot.name} failed to run",
                where=slot.model,
                why=str(error),
                next="see release.report(); if it stays, open the release anew",
            ) from error
        slot.count(fitting.valid_share(lengths, bucket))
        return fitting.crop(outputs, lengths, bucket)

    def load(self, component: str | None = None) -> None:
        """Make the sessions of a component, or of all, now; raises what :meth:`run` raises for a session."""
        if component is not None and component not in self._fittings:
            raise self._unknown(component)
        for name, slots in self._sessions.slots.items():
            if component in (None, name):
                for bucket in range(len(slots)):
                    self._sessions.session(name, bucket)

    def verify(self) -> None:
        """Hash every file of the release; raises DamagedError for the first that is wrong."""
        self._contents.verify(self._contents.index.files)

    def file(self, name: str) -> Path:
        """A file that was packaged beside the models, such as `tokenizer.json`, its hash checked."""
        path = f"{_FILES}/{name}"
        if path not in self._contents.index.files:
            have = [
                each.removeprefix(f"{_FILES}/") for each in self._contents.index.files if each.startswith(f"{_FILES}/")
            ]
            raise ReleaseError(
                f"the release has no file {name!r}",
                where=str(self.folder),
                why=f"it has {', '.join(have) or 'none'}",
                next="name one of these, or package the release with it",
            )
        self._contents.verify([path])
        return self._contents.path(path)

    def report(self) -> Report:
        """What was done so far, and why."""
        index = self._contents.index
        return Report(
            model=index.model,
            version=index.version,
            digest=index.digest,
            folder=str(self.folder),
            device=self._placement.device,
            target=self.target,
            why=self._placement.why,
            verified=self._contents.verified,
            split=self._split,
            sessions=tuple(slot.report() for slots in self._sessions.slots.values() for slot in slots),
        )

    def close(self) -> None:
        """Let go of all sessions. A later call makes them anew."""
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run_pieces(self, component: str, inputs: Arrays, splitter: Splitter) -> Arrays:
        pieces = splitter.split(inputs, self.components[component].limits)
        outputs = [self.run(component, piece) for piece in pieces]
        with self._lock:
            self._split += 1
        return dict(splitter.join(outputs, inputs))

    def _unknown(self, component: str) -> InputError:
        return InputError(
            f"the release has no component {component!r}",
            where=str(self.folder),
            why=f"it has {', '.join(self._fittings)}",
            next="name one of these",
        )


def _opened(path: Path, cache: Path | None) -> tuple[Path, Index]:
    if path.is_dir():
        return path, contents.read_index(path)
    if not path.exists():
        raise FormatError("there is no such release", where=str(path), next="name a folder or an archive")
    return archive.unpack(path, archive.default_cache() if cache is None else cache)


def _check_fallback(index: Index, placement: Placement, path: str, refuse: bool) -> None:
    """Raise TargetError unless the CPU may be used, and can be."""
    possible = any(bucket.qdq for component in index.components.values() for bucket in component.buckets)
    if refuse or not possible:
        otherwise = "allow the CPU with fallback='cpu'" if possible else "package it with QDQ models for the CPU"
        raise TargetError(
            f"{index.model} can't run on an NPU here",
            where=path,
            why=placement.why + ("" if refuse else "; and the release has no QDQ models for the CPU"),
            next=f"{placement.remedy}; or {otherwise}" if placement.remedy else otherwise,
        )
