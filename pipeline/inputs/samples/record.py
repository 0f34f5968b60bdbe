"""Reader `record`: a function runs the float components as the application does, and every run becomes a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import CalibrationError
from pipeline.graph.cpu import load_session
from pipeline.inputs.samples.lines import read_lines
from pipeline.inputs.samples.request import Call, ReadRequest, Sample
from pipeline.inputs.samples.user_code import UserFunction, seed
from pipeline.plain_text import did_you_mean


@dataclass(frozen=True)
class RecordedSample:
    """What `run(sessions, sample)` is given: one line of the calibration file.

    `source` is the folder with the model's fetched files: tokenizer, voices, whatever `files` in the config names.
    `rng` is seeded with `index`, so that noise from it is the same in every run.
    """

    index: int
    text: str
    label: str | None
    source: Path
    rng: np.random.Generator


class Session:
    """A component's original float model, used like an ``onnxruntime.InferenceSession``; every run is recorded."""

    def __init__(self, component: str, recording: Sessions) -> None:
        self._component = component
        self._recording = recording
        self._session: ort.InferenceSession = load_session(recording.request.models[component])

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, ArrayLike]) -> list[NDArray[Any]]:
        """The outputs named in `output_names`, in that order, or all outputs if it is None.

        Raises:
            CalibrationError: the feed doesn't fit the model, or is longer than the largest bucket.
        """
        arrays = self._recording.record(self._component, input_feed)
        outputs: list[NDArray[Any]] = self._session.run(output_names, arrays)
        return outputs

    def __call__(self, **feeds: ArrayLike) -> dict[str, NDArray[Any]]:
        """All outputs by name, for inputs that are given by name."""
        names = [output.name for output in self.get_outputs()]
        return dict(zip(names, self.run(names, feeds), strict=True))

    def get_inputs(self) -> list[ort.NodeArg]:
        """The model's inputs: name, type, shape."""
        return list(self._session.get_inputs())

    def get_outputs(self) -> list[ort.NodeArg]:
        """The model's outputs: name, type, shape."""
        return list(self._session.get_outputs())


class Sessions(Mapping[str, Session]):
    """The components of the model by name, as ``sessions["encoder"]`` or ``sessions.encoder``; loaded when first used.

    The user's function must run the model through these: nothing else is recorded.
    """

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self._open: dict[str, Session] = {}
        self._calls: list[Call] = []
        self._sample = Sample(0, "")

    def start(self, sample: Sample) -> None:
        """Record the calls from now on as those of `sample`."""
        self._sample = sample
        self._calls = []

    def record(self, component: str, feeds: Mapping[str, ArrayLike]) -> Mapping[str, NDArray[Any]]:
        """Note a call. Returns its arrays, checked and in the model's dtypes."""
        call = self.request.call(component, feeds, self._sample)
        self._calls.append(call)
        return call.arrays

    def recorded(self) -> list[Call]:
        """The calls since :meth:`start`, in order."""
        return self._calls

    def __getitem__(self, component: str) -> Session:
        if component not in self.request.models:
            raise CalibrationError(
                f"the model has no component {component!r}{did_you_mean(component, self.request.models)}",
                why=f"it has {', '.join(self.request.models)}",
            )
        if component not in self._open:
            self._open[component] = Session(component, self)
        return self._open[component]

    def __getattr__(self, component: str) -> Session:
        if component.startswith("_"):
            raise AttributeError(component)
        return self[component]

    def __iter__(self) -> Iterator[str]:
        return iter(self.request.models)

    def __len__(self) -> int:
        return len(self.request.models)


def read(request: ReadRequest) -> Iterator[Call]:
    """Every call that ``run(sessions, sample)`` makes for each line of the calibration file, loop steps included.

    Raises:
        CalibrationError: the function raises, or feeds a component what it doesn't take.
    """
    function = UserFunction(request.existing(request.code, "run"), request.calibration.run or "run")
    sessions = Sessions(request)
    lines = calls = 0
    for line in read_lines(request.existing(request.samples, "file"), request.calibration.max_samples):
        sessions.start(line)
        seed(line.index)
        rng = np.random.default_rng(line.index)
        given = RecordedSample(line.index, line.text or "", line.label, request.source, rng)
        with function.explained(f"{function.name}() failed on {line.name}"):
            function.call(sessions, given)
        yield from sessions.recorded()
        lines, calls = lines + 1, calls + len(sessions.recorded())
    if lines and not calls:
        raise CalibrationError(
            f"{function.name}() ran none of the model's components",
            where=function.shown,
            why="only what goes through 'sessions' is recorded",
            remedy="run the model with sessions['<component>'].run(None, {...}), and return instead of yielding",
        )
