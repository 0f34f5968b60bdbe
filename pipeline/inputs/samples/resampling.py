"""Brings sound to another rate, with the same result on every host.

The filter is a windowed sinc (https://ccrma.stanford.edu/~jos/resample/) whose coefficients are rounded to multiples of
2**-30. It is applied tap by tap in float64: single products and additions round alike on every host, sums of a library
need not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_ZEROS = 16
"""How many zero crossings the sinc has on each side."""
_BETA = 8.6
"""The parameter of the Kaiser window: the stop band is about 90 dB below the pass band."""
_GRID = float(1 << 30)
MOST_PHASES = 4096
"""The largest number in the ratio of two rates in lowest terms; for 44.1 and 16 kHz the ratio is 441 to 160."""


def resampled(values: NDArray[np.float64], rate: int, wanted: int) -> NDArray[np.float64]:
    """Resample `values`, float64 ``[samples]``, from `rate` to `wanted`, both in Hz.

    Returns float64 ``[ceil(samples * wanted / rate)]``.

    Raises:
        ValueError: the ratio of the rates has a number larger than :data:`MOST_PHASES`.
    """
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    if up == down:
        return values
    if max(up, down) > MOST_PHASES:
        raise ValueError(f"{rate} to {wanted} Hz is a ratio of {down} to {up}")
    cutoff = min(1.0, up / down)
    reach = math.ceil(_ZEROS / cutoff)
    count = -(-values.size * up // down)
    places = np.arange(count, dtype=np.int64) * down
    first, phases = places // up, places % up
    padded = np.pad(values, (reach, reach + 1))
    out = np.zeros(count)
    for tap in range(-reach, reach + 1):
        table = _coefficients(tap, up, cutoff, reach)
        out += padded[first + tap + reach] * table[phases]
    return out


def _coefficients(tap: int, up: int, cutoff: float, reach: int) -> NDArray[np.float64]:
    """The coefficients of one tap, one for each phase: how far an output is behind an input, in parts of a sample."""
    distance = tap - np.arange(up) / up
    inside = np.clip(1 - (distance / reach) ** 2, 0, None)
    window = np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
    window[np.abs(distance) >= reach] = 0
    return np.asarray(np.round(cutoff * np.sinc(cutoff * distance) * window * _GRID) / _GRID)
