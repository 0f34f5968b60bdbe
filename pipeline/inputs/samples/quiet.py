"""Samples that are quieter than those that were given: what a model that takes a logarithm goes wrong on first.

Recordings fade, pause, and are made at other levels than those that a few held-out samples have. So of the loudest ones
some are made again, fading in four steps along their longest axis, and as a whole at a 64th; and one is silent::

    fading     1, 1/16, 1/256 and 0 times what it was, a quarter of the length each
    quiet      1/64 times what it was: 36 dB less
    silent     0
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.inputs.samples.held_out import ScoredSample

_FADES = (1.0, 2.0**-4, 2.0**-8, 0.0)
_QUIET = 2.0**-6
_LOUDEST = 3
"""Samples that are made quieter."""


def quieter(samples: Sequence[ScoredSample], inputs: Collection[str]) -> list[ScoredSample]:
    """The loudest of some samples, with what they have for these inputs made quieter; none of what is silent."""
    loudest = loudest_of(samples, inputs)
    made = [_changed(sample, inputs, "fading", _faded) for sample in loudest]
    made += [_changed(sample, inputs, "quiet", lambda array: _times(array, _QUIET)) for sample in loudest]
    made += [_changed(sample, inputs, "silent", lambda array: _times(array, 0.0)) for sample in loudest[:1]]
    return made


def loudest_of(samples: Sequence[ScoredSample], inputs: Collection[str]) -> list[ScoredSample]:
    """The samples that are made quieter, the loudest first, of equals the first; none that is silent."""
    loudness = [_peak(sample, inputs) for sample in samples]
    ranked = sorted(range(len(samples)), key=lambda place: (-loudness[place], place))
    return [samples[place] for place in ranked[:_LOUDEST] if loudness[place] > 0]


def is_silent(sample: ScoredSample, inputs: Collection[str]) -> bool:
    """Whether there is nothing in these inputs of a sample."""
    return not _peak(sample, inputs)


def _peak(sample: ScoredSample, inputs: Collection[str]) -> float:
    return max((float(np.abs(sample.inputs[name]).max(initial=0)) for name in inputs), default=0.0)


def _changed(
    sample: ScoredSample, inputs: Collection[str], how: str, change: Callable[[NDArray[Any]], NDArray[Any]]
) -> ScoredSample:
    arrays = {name: change(array) if name in inputs else array for name, array in sample.inputs.items()}
    return replace(sample, name=f"{sample.name}, {how}", inputs=arrays)


def _times(array: NDArray[Any], factor: float) -> NDArray[Any]:
    return np.asarray(array * np.asarray(factor, array.dtype), array.dtype)


def _faded(array: NDArray[Any]) -> NDArray[Any]:
    if not array.ndim:
        return array
    axis = int(np.argmax(array.shape))
    parts = np.array_split(array, len(_FADES), axis)
    return np.concatenate([_times(part, factor) for part, factor in zip(parts, _FADES, strict=True)], axis)
