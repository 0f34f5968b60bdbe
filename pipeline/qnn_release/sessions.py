"""The sessions of a release. Each is made when it is first needed, after the hashes of its files were checked."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .contents import Contents
from .errors import ClosedError, FallbackWarning, LoadError, ReleaseError, spelled
from .index import Bucket, Component, Context
from .placement import CPU, EMULATOR, NPU, Placement
from .report import SessionReport

if TYPE_CHECKING:
    import onnxruntime as ort

    from .provider import Configure

SHARE = "ep.share_ep_contexts"
STOP_SHARING = "ep.stop_share_ep_contexts"

_LOADING_PACK = threading.Lock()
"""A pack is several contexts in one binary. The QNN EP passes the contexts of a pack between the sessions of a process
by their names alone, so all sessions of a pack are loaded together, and no other pack meanwhile."""

_left_over: list[str] = []
"""Packs that failed half-way. The EP may still hold their contexts, and take them for those of another release."""


@dataclass
class Slot:
    """One component in one bucket; `session` is None until it is loaded."""

    component: Component
    bucket: Bucket
    session: ort.InferenceSession | None = None
    provider: str = ""
    model: str = ""
    load_s: float = 0.0
    fallback: str = ""
    runs: int = 0
    valid: float = 0.0
    repeated: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def name(self) -> str:
        """The name in messages, of the component and the bucket."""
        return f"{self.component.name} at {spelled(self.bucket.axes)}"

    def count(self, valid_share: float) -> None:
        """Note a run, and the share of it, 0 to 1, that was no padding."""
        with self.lock:
            self.runs += 1
            self.valid += valid_share

    def repeat(self) -> None:
        """Note a run that is repeated, as the device was lost."""
        with self.lock:
            self.repeated += 1

    def report(self) -> SessionReport:
        """What the component did in this bucket so far."""
        with self.lock:
            padding = 1 - self.valid / self.runs if self.runs else 0.0
            return SessionReport(
                self.component.name,
                dict(self.bucket.axes),
                self.provider,
                self.model,
                self.load_s,
                self.runs,
                round(padding, 6),
                self.fallback,
                self.repeated,
            )


@dataclass(frozen=True)
class _Loaded:
    session: ort.InferenceSession
    provider: str
    model: str
    load_s: float
    fallback: str = ""

    def use(self, slot: Slot) -> None:
        slot.provider, slot.model, slot.load_s, slot.fallback = self.provider, self.model, self.load_s, self.fallback
        slot.session = self.session  # last: who sees it uses it


class Sessions:
    """All sessions of a release on one device. Safe to use from several threads."""

    def __init__(
        self,
        contents: Contents,
        placement: Placement,
        *,
        refuse: bool,
        options: Mapping[str, str],
        configure: Configure | None,
    ) -> None:
        self._contents = contents
        self._placement = placement
        self._refuse = refuse
        self._options = dict(options)
        self._configure = configure
        self._loading = threading.Lock()
        self._closed = False
        self.slots = {
            name: [Slot(component, bucket) for bucket in component.buckets]
            for name, component in contents.index.components.items()
        }

    def session(self, component: str, bucket: int) -> ort.InferenceSession:
        """The session of a bucket, which is loaded now if it was not before.

        Raises:
            DamagedError: a file is not the one that release.json names.
            LoadError: it can't be loaded, and running on the CPU instead is refused or impossible.
            ClosedError: the sessions were closed.
        """
        slot = self.slots[component][bucket]
        session = slot.session
        if session is None:
            with self._loading:
                if self._closed:
                    raise ClosedError(
                        "the release is closed",
                        where=str(self._contents.folder),
                        next="use it inside its 'with', or open it anew",
                    )
                if slot.session is None:  # another thread may have loaded it meanwhile
                    self._load(slot)
                session = slot.session
        assert session is not None
        return session

    def renewed(self, component: str, bucket: int, lost: ort.InferenceSession) -> ort.InferenceSession:
        """A session in place of `lost`, whose device restarted, or the one that another thread put there before.

        Raises what :meth:`session` raises.
        """
        slot = self.slots[component][bucket]
        with self._loading:
            if slot.session is lost:
                for other in self._same_binary(slot):
                    other.session = None
        return self.session(component, bucket)

    def on_cpu(self, component: str, bucket: int, lost: ort.InferenceSession, error: Exception) -> ort.InferenceSession:
        """The QDQ model on the CPU in place of `lost`, whose device failed again after it was made anew.

        Raises:
            LoadError: running on the CPU is refused or impossible. The next run tries the device again.
            ClosedError: the sessions were closed.
        """
        slot = self.slots[component][bucket]
        with self._loading:
            if slot.session is lost and not self._closed:
                slot.session = None
                self._fall_back([slot], f"the device failed again after its session was made anew: {error}", error)
        return self.session(component, bucket)

    def _same_binary(self, slot: Slot) -> list[Slot]:
        """The slots whose contexts are loaded with that of `slot`, which is among them."""
        target = self._placement.target
        context = slot.bucket.contexts.get(target.name) if target else None
        if target is None or context is None or context.packing != "buckets":
            return [slot]
        return [
            other
            for other in self.slots[slot.component.name]
            if target.name in other.bucket.contexts and other.bucket.contexts[target.name].binaries == context.binaries
        ]

    def close(self) -> None:
        """Let go of all sessions. Afterwards none can be made."""
        with self._loading:
            self._closed = True
            for slots in self.slots.values():
                for slot in slots:
                    slot.session = None

    def _load(self, slot: Slot) -> None:
        target = self._placement.target
        if target is None:
            self._load_cpu(slot, "")
            return
        context = slot.bucket.contexts.get(target.name)
        if context is None:
            self._fall_back([slot], f"the release has no context of it for {target.name}")
        elif self._placement.device == EMULATOR and context.packing != "separate":
            shared = {"buckets": "buckets", "socs": "targets"}[context.packing]
            self._fall_back([slot], f"its binary is shared by {shared}, which QNN's emulator can't load")
        elif context.packing == "buckets":
            self._load_pack(slot, context, target.name)
        else:
            try:
                self._context_session(slot, context, {}).use(slot)
            except ReleaseError:
                raise
            except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
                self._fall_back([slot], f"QNN can't load {context.model}: {self._reason(error)}", error)

    def _load_pack(self, slot: Slot, context: Context, target: str) -> None:
        """Load every bucket whose context is in the same binary, so that the weights are in memory once."""
        pack = [(other, other.bucket.contexts[target]) for other in self._same_binary(slot) if other.session is None]
        self._contents.verify(name for _, each in pack for name in (each.model, *each.binaries))  # not half-way
        with _LOADING_PACK:
            if _left_over:
                why = f"{_left_over[0]} failed half-way in this process, so no other pack can be loaded safely"
                self._fall_back([other for other, _ in pack], why)
                return
            try:
                made = []
                for number, (other, each) in enumerate(pack):
                    last = {STOP_SHARING: "1"} if number == len(pack) - 1 else {}
                    made.append((other, self._context_session(other, each, {SHARE: "1", **last})))
                for other, loaded in made:
                    loaded.use(other)
            except BaseException as error:  # an interrupt, too, leaves contexts behind
                _left_over.append(f"{self._contents.index.model}, {', '.join(context.binaries)}")
                if isinstance(error, ReleaseError) or not isinstance(error, Exception):
                    raise
                why = f"QNN can't load {', '.join(context.binaries)}: {self._reason(error)}"
                self._fall_back([other for other, _ in pack], why, error)

    def _context_session(self, slot: Slot, context: Context, settings: Mapping[str, str]) -> _Loaded:
        from . import provider  # imports onnxruntime

        target = self._placement.target
        assert target is not None
        self._contents.verify((context.model, *context.binaries))
        options = provider.emulated(target) if self._placement.device == EMULATOR else {}
        started = time.perf_counter()
        session = provider.qnn_session(
            self._contents.path(context.model),
            self._placement.ep_device,
            {**target.options, **options, **self._options},
            settings,
            self._configure,
        )
        return _Loaded(session, provider.EP, context.model, time.perf_counter() - started)

    def _reason(self, error: Exception) -> str:
        """What QNN said. On a device it also names an old driver, the usual cause, which QNN does not tell."""
        target = self._placement.target
        sdk = target.minimum_driver_sdk if target and self._placement.device == NPU else ""
        return _first_line(error) + (f"; it needs an NPU driver of {sdk} or newer" if sdk else "")

    def _fall_back(self, slots: list[Slot], why: str, cause: Exception | None = None) -> None:
        """Load QDQ models for the CPU instead, if that is allowed."""
        for slot in slots:
            if self._refuse or slot.bucket.qdq is None:
                reason = "fallback='refuse'" if self._refuse else "the release has no QDQ model of it for the CPU"
                raise LoadError(
                    f"{slot.name} can't run on {_spelled(self._placement)}",
                    where=str(self._contents.folder),
                    why=f"{why}; {reason}",
                    next=_remedy(self._contents.folder, self._refuse),
                ) from cause
        for slot in slots:
            warnings.warn(f"{slot.name} runs on the CPU: {why}", FallbackWarning, stacklevel=5)
            self._load_cpu(slot, why)

    def _load_cpu(self, slot: Slot, fallback: str) -> None:
        from . import provider  # imports onnxruntime

        qdq = slot.bucket.qdq
        if qdq is None:
            raise LoadError(
                f"{slot.name} can't run on the CPU",
                where=str(self._contents.folder),
                why="the release has no QDQ model of it",
                next="run it on a target of the release, or package it with QDQ models",
            )
        self._contents.verify(dict.fromkeys((qdq.model, *qdq.files)))
        started = time.perf_counter()
        try:
            session = provider.cpu_session(self._contents.path(qdq.model), self._configure)
        except Exception as error:  # as above
            raise LoadError(
                f"{slot.name} can't be loaded for the CPU",
                where=qdq.model,
                why=_first_line(error),
                next="use the onnxruntime that the release names, or a newer one",
            ) from error
        _Loaded(session, provider.CPU, qdq.model, time.perf_counter() - started, fallback).use(slot)


def _spelled(placement: Placement) -> str:
    device = {NPU: "the NPU", EMULATOR: "QNN's emulator", CPU: "the CPU"}[placement.device]
    return f"{device} as {placement.target.name}" if placement.target else device


def _remedy(folder: Path, refused: bool) -> str:
    if not str(folder).isascii():
        return "unpack the release under a path of ASCII characters: QNN fails on others on Windows"
    return "allow the CPU with fallback='cpu'" if refused else "package the release with QDQ models"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
