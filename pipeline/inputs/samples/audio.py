"""Reader `audio`: reads a folder of sounds as waveforms, whole or in windows, in order if the model keeps a state.

No features are computed: a model that takes spectrograms needs a reader with code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pipeline.contracts.samples import SOUNDS, AudioReading
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.cpu import load_session
from pipeline.inputs.samples.conform import Interface
from pipeline.inputs.samples.found_files import found_files
from pipeline.inputs.samples.request import Call, ReadRequest, Sample
from pipeline.inputs.samples.sound_files import read_sound
from pipeline.plain_text import did_you_mean
from pipeline.qnn_release.sound_features import resampled

_SHORTEST = 80
"""The fewest audio samples that an input of fixed size takes if it is a waveform: 5 ms at 16 kHz."""


def read(request: ReadRequest) -> Iterator[Call]:
    """The calls of each file, with files in the order of their paths. The name of a file's folder is its label.

    Raises:
        CalibrationError: there are no sounds, one is broken or has another rate, or an input can't be made from them.
    """
    reading = request.calibration.audio
    if reading is None:
        raise CalibrationError("calibration.rate is not set", remedy="write the model's rate, such as rate: 16000")
    folder = request.existing(request.samples, "folder")
    component, form = _form(request, reading)
    stream = _Stream(request, component, reading)
    paths = found_files(folder, SOUNDS, "sound")
    for index, path in enumerate(itertools.islice(paths, request.calibration.max_samples)):
        name = path.relative_to(folder).as_posix()
        label = path.parent.name if path.parent != folder else None
        wave = _waveform(path, name, reading)
        windows = list(_windows(wave, form, reading))
        cut = form.window is None and wave.size > form.longest
        sample = Sample(index, name, label=label, cut=cut)
        kept = _spread(len(windows), reading.max_windows)
        stream.start()
        for number, window in enumerate(windows):
            call = request.call(component, {**form.arrays(window), **stream.states}, sample)
            if number in kept:
                yield call
            if number < max(kept):
                stream.advance(call)


@dataclass(frozen=True)
class _Form:
    """What a component takes of a waveform: `window` audio samples at a time or, if that is None, up to `longest`."""

    wave: TensorSpec
    interface: Interface
    window: int | None
    longest: float
    length: TensorSpec | None
    mask: TensorSpec | None

    def arrays(self, values: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The inputs for some audio samples, float64 [samples]."""
        found: dict[str, NDArray[Any]] = {
            self.wave.name: _cast(values, self.wave, _long_dim(self.wave, self.interface))
        }
        if self.length is not None:
            shape = [1] * len(self.length.shape)
            found[self.length.name] = np.full(shape, values.size, self.length.dtype)
        if self.mask is not None:
            found[self.mask.name] = _cast(np.ones(values.size), self.mask, _long_dim(self.mask, self.interface))
        return found


class _Stream:
    """The inputs that are fed from outputs: zeros for a file's first window, then the outputs for the window before."""

    def __init__(self, request: ReadRequest, component: str, reading: AudioReading) -> None:
        self._request, self._component = request, component
        self._interface = request.interfaces[component]
        self._fed_by: Mapping[str, str] = reading.states
        self._session: ort.InferenceSession | None = None
        self.states: Mapping[str, NDArray[Any]] = {}
        known = {spec.name: spec for spec in self._interface.inputs}
        self._zeros = {name: np.zeros(self._shape(known[name]), known[name].dtype) for name in self._fed_by}

    def start(self) -> None:
        """Forget the last file."""
        self.states = self._zeros

    def advance(self, call: Call) -> None:
        """Run the original model on a call, and keep the outputs that the next call is fed from."""
        if not self._fed_by:
            return
        if self._session is None:
            self._session = load_session(self._request.models[self._component])
            outputs = [output.name for output in self._session.get_outputs()]
            for name in self._fed_by.values():
                if name not in outputs:
                    raise CalibrationError(
                        f"calibration.states names no output of {self._component}: {name!r}"
                        f"{did_you_mean(name, outputs)}",
                        why=f"its outputs are {', '.join(outputs)}",
                        remedy="write each as <input>: <the output that it is fed from>",
                    )
        values = self._session.run([*self._fed_by.values()], dict(call.arrays))
        self.states = dict(zip(self._fed_by, values, strict=True))

    def _shape(self, spec: TensorSpec) -> list[int]:
        return [dim if isinstance(dim, int) else self._interface.longest(str(dim)) for dim in spec.shape]


def _form(request: ReadRequest, reading: AudioReading) -> tuple[str, _Form]:
    said = {reading.length, reading.mask, *reading.states}
    found = [
        (component, spec)
        for component, interface in request.interfaces.items()
        for spec in interface.inputs
        if (spec.name == reading.input if reading.input else is_wave(spec) and spec.name not in said)
    ]
    if len(found) != 1:
        inputs = ", ".join(str(spec) for interface in request.interfaces.values() for spec in interface.inputs)
        raise CalibrationError(
            f"the model has no input {reading.input!r}"
            if reading.input and not found
            else f"{'more than one' if found else 'no'} input takes waveforms",
            why=f"its inputs are {inputs or 'none'}",
            remedy="name the right one as calibration.input, those that the model hands to itself under"
            " calibration.states, or make the samples yourself with reader: python",
        )
    component, wave = found[0]
    interface = request.interfaces[component]
    names = {spec.name for spec in interface.inputs}
    for name in reading.states:
        if name not in names:
            raise CalibrationError(
                f"calibration.states names no input of {component}: {name!r}{did_you_mean(name, names)}",
                remedy="write each as <input>: <the output that it is fed from>",
            )
    others = {spec.name: spec for spec in interface.inputs if spec.name not in (wave.name, *reading.states)}
    length, mask = (_other(name, key, others) for name, key in ((reading.length, "length"), (reading.mask, "mask")))
    if others:
        raise CalibrationError(
            f"the audio reader can't make input {str(next(iter(others.values())))!r}",
            where=f"component {component!r}",
            remedy="say what it is: 'length' or 'mask' under 'calibration', a state under 'calibration.states', a value"
            " that never changes under 'constants'; or make the samples yourself with reader: python",
        )
    dim = wave.shape[_long_dim(wave, interface)]
    size = dim if isinstance(dim, int) else None
    if size is not None and reading.window not in (None, size):
        raise CalibrationError(
            f"calibration.window is {reading.window}, and input {str(wave)!r} takes {size} samples",
            remedy="leave calibration.window out",
        )
    named = isinstance(dim, str) and (dim in interface.fixed or any(dim in axes for axes in interface.buckets.values()))
    longest = float(interface.longest(str(dim))) if named else math.inf
    fixed = interface.fixed.get(str(dim)) if isinstance(dim, str) else None
    return component, _Form(wave, interface, reading.window or size or fixed, longest, length, mask)


def _other(name: str | None, key: str, others: dict[str, TensorSpec]) -> TensorSpec | None:
    if name is None:
        return None
    if name not in others:
        raise CalibrationError(
            f"calibration.{key} names no input: {name!r}{did_you_mean(name, others)}", remedy="correct its name"
        )
    return others.pop(name)


def is_wave(spec: TensorSpec) -> bool:
    """Whether an input could take a waveform: numbers in which one dim is long and all others are 1 or a batch."""
    if spec.dtype not in ("float32", "float16", "int16") or not spec.shape or len(spec.shape) > 3:
        return False
    *_, last = spec.shape
    if last == 1 and len(spec.shape) == 3:  # [batch, samples, 1]
        last = spec.shape[1]
        return not isinstance(last, int) or last >= _SHORTEST
    return all(dim == 1 for dim in spec.shape[1:-1]) and (not isinstance(last, int) or last >= _SHORTEST)


def _long_dim(spec: TensorSpec, interface: Interface) -> int:
    """The position of the dim that counts samples: the last that is not 1."""
    sizes = [dim if isinstance(dim, int) else interface.longest(str(dim)) for dim in spec.shape]
    free = [position for position, size in enumerate(sizes) if size != 1]
    return free[-1] if free else len(sizes) - 1


def _cast(values: NDArray[np.float64], spec: TensorSpec, position: int) -> NDArray[Any]:
    shape = [1] * len(spec.shape)
    shape[position] = values.size
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = np.clip(np.round(values), info.min, info.max)
    return values.astype(dtype).reshape(shape)


def _waveform(path: Path, name: str, reading: AudioReading) -> NDArray[np.float64]:
    """The waveform of a file in one channel, at the model's rate and scale: float64 [samples]."""
    sound = read_sound(path, name)
    values = sound.values[:, 0]
    for channel in range(1, sound.values.shape[1]):  # one addition after the other, in an order of its own
        values = values + sound.values[:, channel] if reading.channels == "mix" else values
    if reading.channels == "mix":
        values = values / sound.values.shape[1]
    if sound.rate != reading.rate:
        wrong = CalibrationError(
            f"the sound {name} has {sound.rate} Hz, and the model takes {reading.rate}",
            where=name,
            remedy="write resample: true under 'calibration', or save the file again at the model's rate",
        )
        if not reading.resample:
            raise wrong
        try:
            values = resampled(values, sound.rate, reading.rate)
        except ValueError as error:
            raise wrong.but(why=str(error), remedy="save the file again at the model's rate") from None
    return values * reading.scale


def _windows(wave: NDArray[np.float64], form: _Form, reading: AudioReading) -> Iterator[NDArray[np.float64]]:
    """The windows of a waveform, each with `context` audio samples of the window before at its front.

    What remains at the end and fills no window is left out.
    """
    if form.window is None:
        yield wave[: int(form.longest)] if form.longest < math.inf else wave
        return
    new = form.window - reading.context
    if new < 1:
        raise CalibrationError(
            f"calibration.context is {reading.context}, and a window has {form.window} samples",
            remedy="give less context than a window has samples",
        )
    padded = np.pad(wave, (reading.context, max(0, new - wave.size)))
    for start in range(0, padded.size - form.window + 1, reading.hop or new):
        yield padded[start : start + form.window]


def _spread(count: int, most: int) -> set[int]:
    """At most `most` of the numbers from 0 to `count` - 1, evenly spread."""
    return set(range(count)) if count <= most else {number * count // most for number in range(most)}
