"""Opens a chat with the language model of a release: finds its files, and an engine that can answer here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from numpy.typing import NDArray

from .chat import Chat, installed
from .chat_engines import CONFIG, INPUTS, TABLE, Arrays, ChatConfig, ChatEngine, GenaiEngine, LoopEngine, Run
from .contents import Contents
from .errors import ArgumentError, LoadError, ReleaseError, RunError
from .index import Bucket, Component
from .placement import EMULATOR, NPU, Placement
from .sessions import Sessions

GENAI, NUMPY = "genai", "numpy"
_PACKAGE = "onnxruntime_genai"


def open_chat(held: Contents, placement: Placement, sessions: Sessions, engine: str | None) -> Chat:
    """A chat with the release's language model by the engine `genai` or `numpy`, or the first that can run here.

    Raises:
        ArgumentError: there is no such engine.
        LoadError: the release has no language model, or the engine can't run it here.
        DamagedError: a file is not the one that release.json names.
    """
    if engine not in (None, GENAI, NUMPY):
        raise ArgumentError("there is no such engine for a chat", where=f"engine={engine!r}", next="'genai' or 'numpy'")
    return _Opening(held, placement, sessions).chat(engine)


class _Opening:
    def __init__(self, held: Contents, placement: Placement, sessions: Sessions) -> None:
        self._held, self._placement, self._sessions = held, placement, sessions
        self._component, self._folder = self._found()
        self._path = held.path(str(self._folder))

    def chat(self, engine: str | None) -> Chat:
        """As :func:`open_chat`."""
        # Whoever loads a binary checks its hash. Every engine reads the table of embeddings, so it is checked here.
        self._held.verify(str(name) for name in self._files() if name.suffix != ".bin" or name.name == TABLE)
        config = ChatConfig(self._path / CONFIG)
        why = self._no_genai()
        if engine == GENAI and why:
            raise LoadError("onnxruntime-genai can't answer here", where=str(self._path), why=why)
        if engine == GENAI or not (engine or why):
            self._held.verify(map(str, self._files()))
            made: ChatEngine = GenaiEngine(self._path, config)
            return Chat(made, config, self._path, self._device())
        made, runs_on = self._loop(config)
        return Chat(made, config, self._path, runs_on)

    def _found(self) -> tuple[Component, PurePosixPath]:
        """The language model, and the folder of its contexts for the target in use, or for any target on the CPU."""
        target = self._placement.target
        for component in self._held.index.components.values():
            for name, context in component.buckets[0].contexts.items():
                folder = PurePosixPath(context.model).parent
                if (target is None or name == target.name) and str(folder / CONFIG) in self._held.index.files:
                    return component, folder
        raise LoadError(
            "the release has no language model that could answer",
            where=str(self._held.folder),
            why=f"no folder of contexts has {CONFIG}",
            next="open a release of a config with language_model",
        )

    def _files(self) -> list[PurePosixPath]:
        paths = map(PurePosixPath, self._held.index.files)
        return [path for path in paths if path.parent == self._folder]

    def _ends(self) -> tuple[Bucket, Bucket]:
        """The buckets of decode and prefill for the longest context, which genai_config.json describes."""
        longest = max(sum(bucket.axes.values()) for bucket in self._component.buckets)
        ends = [bucket for bucket in self._component.buckets if sum(bucket.axes.values()) == longest]
        ends.sort(key=lambda bucket: bucket.axes["sequence"])
        return ends[0], ends[-1]

    def _no_genai(self) -> str:
        """Why onnxruntime-genai can't run the contexts here; "" if it can."""
        if not installed(_PACKAGE):
            return "the package onnxruntime-genai is not installed"
        if self._placement.device == EMULATOR:
            packed = {context.packing for bucket in self._ends() for context in bucket.contexts.values()}
            return "" if packed == {"separate"} else "the emulator can't load a binary that graphs share"
        return "" if self._placement.device == NPU else "it runs contexts, and the release runs on the CPU"

    def _loop(self, config: ChatConfig) -> tuple[LoopEngine, str]:
        decode, prefill = self._ends()
        places = [self._component.buckets.index(bucket) for bucket in (decode, prefill)]
        graphs = [self._graph(place) for place in places]
        slot = self._sessions.slots[self._component.name][places[0]]
        runs_on = f"the CPU, as QDQ model ({slot.fallback})" if slot.fallback else self._device()
        return LoopEngine(config, self._inputs(), graphs[0], graphs[1]), runs_on

    def _inputs(self) -> Run:
        from . import provider  # imports onnxruntime

        session = provider.cpu_session(self._path / INPUTS, None)
        return _runs(INPUTS, session)

    def _graph(self, place: int) -> tuple[int, Run]:
        session = self._sessions.session(self._component.name, place)
        slot = self._sessions.slots[self._component.name][place]
        run = _runs(slot.model, session)

        def counted(feed: dict[str, NDArray[Any]]) -> Arrays:
            slot.count(1.0)
            return run(feed)

        return slot.bucket.axes["sequence"], counted

    def _device(self) -> str:
        target = f" of {self._placement.target.name}" if self._placement.target else ""
        return {NPU: f"the NPU{target}", EMULATOR: f"QNN's emulator{target}"}.get(
            self._placement.device, "the CPU, as QDQ model"
        )


def _runs(name: str, session: Any) -> Run:
    outputs = [output.name for output in session.get_outputs()]
    inputs = [given.name for given in session.get_inputs()]

    def run(feed: dict[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            taken = {name: feed[name] for name in inputs if name in feed}
            return dict(zip(outputs, session.run(outputs, taken)))
        except ReleaseError:
            raise
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            raise RunError(f"{name} failed to run", where=name, why=str(error), next="open the release anew") from error

    return run
