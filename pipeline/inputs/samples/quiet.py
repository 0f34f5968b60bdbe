"""Makes samples quieter: a model that takes a logarithm of its input goes wrong on such samples first.

Recordings fade, pause, and have other levels than a few held-out samples. So the loudest samples are made again in two
variants, fading in four steps along their longest axis, and quieter as a whole; and one is made silent::

    fading     each quarter of the length is multiplied by 1, 1/16, 1/256 and 0
    quiet      all is multiplied by 1/64: 36 dB less
    silent     all is 0
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
"""How many of the loudest samples are made quieter."""


def quieter(samples: Sequence[ScoredSample], inputs: Collection[str]) -> list[ScoredSample]:
    """Quieter variants of the loudest samples, in which only the arrays of `inputs` differ. None if all are silent."""
    loudest = loudest_of(samples, inputs)
    made = [_changed(sample, inputs, "fading", _faded) for sample in loudest]
    made += [_changed(sample, inputs, "quiet", lambda array: _times(array, _QUIET)) for sample in loudest]
    made += [_changed(sample, inputs, "silent", lambda array: _times(array, 0.0)) for sample in loudest[:1]]
    return made


def loudest_of(samples: Sequence[ScoredSample], inputs: Collection[str]) -> list[ScoredSample]:
    """The samples to make quieter, the loudest first, without silent ones. Equally loud ones stay in their order."""
    loudness = [_peak(sample, inputs) for sample in samples]
    ranked = sorted(range(len(samples)), key=lambda place: (-loudness[place], place))
    return [samples[place] for place in ranked[:_LOUDEST] if loudness[place] > 0]


def is_silent(sample: ScoredSample, inputs: Collection[str]) -> bool:
    """Whether the arrays of these inputs are all zeros in a sample."""
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
