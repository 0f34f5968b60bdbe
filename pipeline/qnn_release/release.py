"""An open release: give a component its inputs, get its outputs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import archive, contents
from .chat import Chat
from .contents import Contents
from .domains import Domains
from .errors import (
    ArgumentError,
    FallbackWarning,
    FormatError,
    InputError,
    LoadError,
    ReleaseError,
    RunError,
    TargetError,
    TooLongError,
)
from .fitting import Arrays, Fitting, Lengths
from .index import Component, Index
from .open_chat import open_chat
from .placement import Placement, place
from .report import Report
from .sessions import Sessions, Slot
from .splitting import Splitter
from .transcription import FILES, Segment, SpeechSetting, Task, Transcriber, Transcript

if TYPE_CHECKING:
    from typing import Self

    from onnxruntime import InferenceSession

    from .provider import Configure

_FILES = "files"


class Release:
    """A release on one device. Safe to use from several threads; a context manager that closes it."""

    def __init__(self, held: Contents, placement: Placement, sessions: Sessions) -> None:
        self._contents = held
        self._placement = placement
        self._sessions = sessions
        self._fittings = {name: Fitting(component) for name, component in held.index.components.items()}
        self._domains = {name: Domains(component) for name, component in held.index.components.items()}
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

        Without `target`, the QNN execution provider picks the target whose contexts fit the NPU here. `device` is
        "npu", "emulator" (QNN's emulator of an NPU, on x86_64; slow) or "cpu". Without it, the release runs on the NPU
        or, on an x86_64 host with a `target` given, on the emulator. A component that can't run there runs as QDQ model
        on the CPU, with a :class:`FallbackWarning`, or is an error with `fallback="refuse"`. `options` are further
        options of the QNN execution provider, such as `{"htp_performance_mode": "burst"}`; `configure` changes the
        options of each session.

        Hashes are checked when a file is first needed, before it is loaded.

        Raises:
            FormatError: this is no release.
            DamagedError: a file is missing, or a file of the archive is not the one that release.json names.
            TargetError: no target fits, and running on the CPU is refused or impossible.
            ArgumentError: an argument is not as described above.
            ReleaseError: the archive can't be unpacked.
        """
        _check_arguments(path=path, target=target, fallback=fallback, cache=cache, options=options, configure=configure)
        folder, index = opened(Path(path), Path(cache) if cache is not None else None)
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
        """The folder with the files of the release."""
        return self._contents.folder

    @property
    def components(self) -> Mapping[str, Component]:
        """The components, by name, with their inputs, outputs and buckets."""
        return self._contents.index.components

    def run(self, component: str, inputs: Mapping[str, ArrayLike], *, splitter: Splitter | None = None) -> Arrays:
        """Run a component in the smallest bucket that holds the inputs; its outputs by name, cut back to the inputs.

        Arrays must have the types and shapes that the component declares; outputs may be views of larger arrays. With a
        `splitter`, inputs longer than the largest bucket are run in its pieces.

        A float input with numbers beyond all that the build saw is a :class:`RangeWarning`, once for each input.

        Raises:
            InputError: the inputs are not the component's, or hold a NaN or an infinity that it does not take.
            TooLongError: they fit no bucket.
            DamagedError, LoadError: the session, made at the first use of a bucket, can't be made.
            RunError: the model failed, its device was lost twice, or its outputs are not those that the release names.
            ClosedError: the release was closed.
            ReleaseError: the splitter returned no pieces, or no outputs.
        """
        fitting = self._fittings.get(component) if isinstance(component, str) else None
        if fitting is None:
            raise self._unknown(component)
        try:
            arrays = {
                name: array if isinstance(array, np.ndarray) else np.asarray(array) for name, array in inputs.items()
            }
        except Exception as error:  # whatever classes of arrays raise that numpy can't read
            raise InputError(
                f"the inputs of {component} can't be made arrays",
                where=component,
                why=str(error),
                next="give a dict of arrays by the names of the inputs",
            ) from error
        lengths = fitting.lengths(arrays)
        try:
            bucket = fitting.bucket(lengths)
        except TooLongError:
            if splitter is None:
                raise
            return self._run_pieces(component, arrays, splitter)
        self._domains[component].check(arrays)
        return self._run_in(component, arrays, lengths, bucket)

    def _run_in(self, component: str, arrays: Arrays, lengths: Lengths, bucket: int) -> Arrays:
        fitting = self._fittings[component]
        names, feeds = fitting.output_names, fitting.pad(arrays, bucket)
        session = self._sessions.session(component, bucket)
        slot = self._sessions.slots[component][bucket]
        try:
            outputs = session.run(names, feeds)
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            if not _device_lost(error):
                raise _failed(slot, error) from error
            slot.repeat()
            outputs = self._run_anew(component, bucket, session, feeds)
        slot.count(fitting.valid_share(lengths, bucket))
        return fitting.crop(outputs, lengths, bucket)

    def _run_anew(self, component: str, bucket: int, lost: InferenceSession, feeds: Arrays) -> list[NDArray[Any]]:
        """The outputs of a run whose device was lost: on a new session, and if that is lost, too, on the CPU."""
        names = self._fittings[component].output_names
        slot = self._sessions.slots[component][bucket]
        session = self._sessions.renewed(component, bucket, lost)
        try:
            try:
                return list(session.run(names, feeds))
            except Exception as error:  # as in _run_in
                if not _device_lost(error) or self._placement.target is None:
                    raise
                session = self._sessions.on_cpu(component, bucket, session, error)
            return list(session.run(names, feeds))
        except ReleaseError:
            raise
        except Exception as error:
            raise _failed(slot, error) from error

    def chat(self, *, engine: Literal["genai", "numpy"] | None = None) -> Chat:
        """A conversation with the release's language model.

        Without `engine`, onnxruntime-genai answers if it is installed and can run the contexts, else a numpy loop over
        the sessions of :meth:`run`.

        Raises:
            LoadError: the release has no language model, or the engine can't run it here.
            DamagedError: a file is not the one that release.json names.
            ArgumentError: there is no such engine.
            ClosedError: the release was closed.
        """
        return open_chat(self._contents, self._placement, self._sessions, engine)

    def transcribe(
        self,
        samples: ArrayLike,
        rate: int,
        *,
        language: str = "",
        task: Task = "transcribe",
    ) -> Transcript:
        """What the release's speech model hears in a sound, with its segments; :meth:`listen` gives these as they come.

        `samples` are floats from -1 to 1 or int16, [samples] or [samples, channels], `rate` is in Hz. `language` is
        that of the speech, such as "en"; without it, a model of several languages hears which it is.

        Raises:
            InputError: the samples are no sound.
            ArgumentError: the model does not know the language or the task.
            LoadError: the release has no speech model, or it can't be loaded.
            ReleaseError: as of :meth:`run`, or a file that says how the model is used was not packaged.
        """
        return self._transcriber().transcribe(samples, rate, language=language, task=task)

    def listen(
        self,
        samples: ArrayLike,
        rate: int,
        *,
        language: str = "",
        task: Task = "transcribe",
    ) -> Iterator[Segment]:
        """The segments of :meth:`transcribe`, each as soon as it is known."""
        return self._transcriber().segments(samples, rate, language=language, task=task)

    def _transcriber(self) -> Transcriber:
        decoder = self.components.get("decoder")
        if decoder is None or "encoder" not in self.components:
            raise LoadError(
                "the release has no speech model",
                where=str(self.folder),
                why=f"it has {', '.join(self._fittings)}",
                next="open a release of a config with speech_model",
            )
        setting = SpeechSetting({name: self.file(name) for name in FILES})
        past = {
            tensor.name: [dim.size or 0 for dim in tensor.dims]
            for tensor in decoder.inputs
            if tensor.name.startswith("past_")
        }
        return Transcriber(setting, partial(self._part, "encoder"), partial(self._part, "decoder"), past)

    def _part(self, component: str, arrays: Arrays) -> Arrays:
        """A run of a part of the speech model, whose inputs are of its own making: no range of them is remarked on."""
        lengths = self._fittings[component].lengths(arrays)
        return self._run_in(component, arrays, lengths, self._fittings[component].bucket(lengths))

    def load(self, component: str | None = None, axes: Mapping[str, int] | None = None) -> None:
        """Make the sessions of a component, or of all, now; with `axes`, those of the bucket that has these lengths.

        Raises what :meth:`run` raises for a session.
        """
        if component is not None and not (isinstance(component, str) and component in self._fittings):
            raise self._unknown(component)
        for name, slots in self._sessions.slots.items():
            if component in (None, name):
                for bucket, slot in enumerate(slots):
                    if axes is None or slot.bucket.axes == axes:
                        self._sessions.session(name, bucket)

    def verify(self) -> None:
        """Hash every file of the release; raises DamagedError for the first that is wrong."""
        self._contents.verify(self._contents.index.files)

    def file(self, name: str) -> Path:
        """The path of a file that was packaged beside the models, such as `tokenizer.json`, with its hash checked."""
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
        """What the release did so far: where it runs and why, and the sessions with their runs."""
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
            beyond=tuple(found for domains in self._domains.values() for found in domains.report()),
        )

    def close(self) -> None:
        """Let go of all sessions. Afterwards :meth:`run` and :meth:`load` raise ClosedError; the rest still works."""
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run_pieces(self, component: str, inputs: Arrays, splitter: Splitter) -> Arrays:
        pieces = splitter.split(inputs, self.components[component].limits)
        if not isinstance(pieces, Iterable):
            raise _split_wrong(splitter, f"split() returned {_short(pieces)}, which is no list of pieces")
        outputs = [self.run(component, piece) for piece in pieces]
        if not outputs:
            raise _split_wrong(splitter, "split() returned no piece")
        joined = splitter.join(outputs, inputs)
        if not isinstance(joined, Mapping):
            raise _split_wrong(splitter, f"join() returned {_short(joined)}, which is no dict of outputs")
        with self._lock:
            self._split += 1
        return dict(joined)

    def _unknown(self, component: object) -> InputError:
        return InputError(
            f"the release has no component {component!r}",
            where=str(self.folder),
            why=f"it has {', '.join(self._fittings)}",
            next="name one of these",
        )


_LOST = ("EngineError", "DeviceReset")
"""The classes of onnxruntime's errors for a device that restarted or was reset, by name: onnxruntime before 1.23 lacks
them. QNN EP 2.7 loads the context anew by itself when the NPU's subsystem restarts, and raises EngineError if the NPU
crashes again or the context cannot be loaded ("NPU crashed again after SSR recovery.")."""


def _device_lost(error: Exception) -> bool:
    return type(error).__name__ in _LOST


def _failed(slot: Slot, error: Exception) -> RunError:
    lost = _device_lost(error)
    return RunError(
        f"{slot.name} failed to run",
        where=slot.model,
        why=f"the device was lost, and again on a new session: {error}" if lost else str(error),
        next="see release.report(); if it stays, "
        + ("restart the device, or allow the CPU with fallback='cpu'" if lost else "open the release anew"),
    )


def _check_arguments(
    *, path: object, target: object, fallback: object, cache: object, options: object, configure: object
) -> None:
    """Raise ArgumentError for arguments of other types, as a caller without a type checker may give them."""
    if not isinstance(path, (str, PathLike)):
        raise _argument("path", path, "the path of a folder or an archive")
    if not (target is None or isinstance(target, str)):
        raise _argument("target", target, "the name of a target, or left out")
    if not (isinstance(fallback, str) and fallback in ("cpu", "refuse")):
        raise _argument("fallback", fallback, "'cpu' or 'refuse'")
    if not (cache is None or isinstance(cache, (str, PathLike))):
        raise _argument("cache", cache, "the path of a folder, or left out")
    texts = [*options.keys(), *options.values()] if isinstance(options, Mapping) else []
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(text, str) for text in texts)):
        raise _argument("options", options, "a dict from names to values, both strings")
    if not (configure is None or callable(configure)):
        raise _argument("configure", configure, "a function of SessionOptions, or left out")


def _argument(name: str, given: object, wanted: str) -> ArgumentError:
    return ArgumentError(
        f"{name} is not what a release can be opened with",
        where=f"{name}={_short(given)}",
        why=f"it is {wanted}",
        next="give that",
    )


def _split_wrong(splitter: object, why: str) -> ReleaseError:
    return ReleaseError(
        "the splitter does not do its part",
        where=type(splitter).__name__,
        why=why,
        next="have split() return at least one piece, each with all inputs, and join() a dict of the outputs",
    )


def _short(value: object) -> str:
    return repr(value)[:80]


def opened(path: Path, cache: Path | None) -> tuple[Path, Index]:
    """The folder of a release, and its index; an archive is unpacked if it was not before. Raises ReleaseError."""
    if path.is_dir():
        return path, contents.read_index(path)
    if not path.exists():
        raise FormatError("there is no such release", where=str(path), next="name a folder or an archive")
    return archive.unpack(path, archive.default_cache() if cache is None else cache)


def _check_fallback(index: Index, placement: Placement, path: str, refuse: bool) -> None:
    """Raise TargetError if the release would run on the CPU although that is refused or impossible."""
    possible = any(bucket.qdq for component in index.components.values() for bucket in component.buckets)
    if refuse or not possible:
        otherwise = "allow the CPU with fallback='cpu'" if possible else "package it with QDQ models for the CPU"
        raise TargetError(
            f"{index.model} can't run on an NPU here",
            where=path,
            why=placement.why + ("" if refuse else "; and the release has no QDQ models for the CPU"),
            next=f"{placement.remedy}; or {otherwise}" if placement.remedy else otherwise,
        )
