"""Sound at another rate, the same on every host.

A windowed sinc (https://ccrma.stanford.edu/~jos/resample/) whose coefficients are rounded to 2**-30, applied tap by tap
in float64: additions and products of single values round alike everywhere, which sums of a library need not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_ZEROS = 16
"""Zero crossings of the sinc on each side."""
_BETA = 8.6
"""Of the Kaiser window: about 90 dB below the pass band."""
_GRID = float(1 << 30)
MOST_PHASES = 4096
"""Rates whose ratio in lowest terms is larger are refused; 44.1 to 16 kHz is 441 to 160."""


def resampled(values: NDArray[np.float64], rate: int, wanted: int) -> NDArray[np.float64]:
    """`values`, float64 ``[samples]`` at `rate`, at the rate that is `wanted`: ceil(samples * wanted / rate) of them.

    Raises:
        ValueError: the two rates have no small ratio.
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
    """Of one tap for every phase: how far the output lies behind the input, in parts of the input's distance."""
    distance = tap - np.arange(up) / up
    inside = np.clip(1 - (distance / reach) ** 2, 0, None)
    window = np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
    window[np.abs(distance) >= reach] = 0
    return np.asarray(np.round(cutoff * np.sinc(cutoff * distance) * window * _GRID) / _GRID)
