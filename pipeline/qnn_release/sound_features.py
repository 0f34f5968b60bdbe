"""What a speech model takes of a waveform: 16 kHz in one channel, and the logarithm of its mel spectrum.

Brings sound to another rate, with the same result on every host.

The filter is a windowed sinc (https://ccrma.stanford.edu/~jos/resample/) whose coefficients are rounded to multiples of
2**-30. It is applied tap by tap in float64: single products and additions round alike on every host, sums of a library
need not.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError

RATE, HOP = 16_000, 160
"""Audio samples in a second, and those between two frames (https://arxiv.org/abs/2212.04356, section 2.2)."""
_FFT = 400
_FLOOR = 1e-10
_DECADES = 8.0
"""What lies further below the loudest than this is raised to it."""


def waveform(samples: ArrayLike, rate: int) -> NDArray[np.float64]:
    """Audio samples at 16 kHz in one channel, float64 [samples], -1 to 1.

    `samples` are floats from -1 to 1 or integers of 16 bits, [samples] or [samples, channels]; `rate` is in Hz.

    Raises:
        InputError: they are no sound, or their rate can't be brought to 16 kHz.
    """
    given = np.asarray(samples)
    if given.ndim not in (1, 2) or not (given.dtype == np.int16 or given.dtype.kind == "f"):
        raise _no_sound(
            f"they are {given.dtype} {[*given.shape]}", "give floats or int16, [samples] or [samples, channels]"
        )
    if given.ndim == 2 and given.shape[1] > 8:
        raise _no_sound(f"{given.shape[1]} channels", "give [samples, channels], 8 channels at most")
    wide = given.astype(np.float64) / (32768.0 if given.dtype == np.int16 else 1.0)
    if wide.ndim == 2:
        wide = wide.mean(axis=1) if wide.shape[1] else wide.reshape(-1)
    if not np.isfinite(wide).all():
        raise _no_sound("some are NaN or infinite", "look at where the sound is from")
    if np.abs(wide).max(initial=0.0) > 1000:
        raise _no_sound(f"the loudest is {np.abs(wide).max():g}, and 1 is full scale", "divide them by full scale")
    if isinstance(rate, bool) or not isinstance(rate, int) or not 1000 <= rate <= 1_000_000:
        raise _no_sound(f"a rate of {rate!r}", "give the rate in Hz, such as 16000")
    try:
        return resampled(wide, rate, RATE)
    except ValueError as error:
        raise _no_sound(str(error), f"resample the sound to {RATE} Hz") from None


def log_mel(wave: NDArray[np.float64], bands: int, frames: int) -> NDArray[np.float32]:
    """The features of a window of sound at 16 kHz: float32 [1, bands, frames]; silence follows a shorter one."""
    window = np.zeros(frames * HOP)
    taken = min(wave.size, window.size)
    window[:taken] = wave[:taken]
    padded = np.pad(window, _FFT // 2, mode="reflect")
    cut = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::HOP][:frames]
    # The periodic Hann window, as torch.hann_window has it.
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FFT) / _FFT)
    power = np.abs(np.fft.rfft(cut * hann, axis=1)) ** 2
    logs = np.log10(np.maximum(_filters(bands) @ power.T, _FLOOR))
    return np.asarray(((np.maximum(logs, logs.max() - _DECADES) + 4) / 4)[None], np.float32)


@cache
def _filters(bands: int) -> NDArray[np.float64]:
    """Triangles of equal area on Slaney's mel scale, [bands, 201] (https://engineering.purdue.edu/~malcolm/interval/1998-010/)."""
    step, knee = 200 / 3, 1000.0
    log_step = math.log(6.4) / 27
    top = knee / step + math.log(RATE / 2 / knee) / log_step
    mels = np.linspace(0, top, bands + 2)
    edges = np.where(mels < knee / step, mels * step, knee * np.exp(log_step * (mels - knee / step)))
    frequencies = np.linspace(0, RATE / 2, _FFT // 2 + 1)
    widths = np.diff(edges)
    slopes = edges[:, None] - frequencies[None]
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def _no_sound(why: str, remedy: str) -> InputError:
    return InputError("the samples are no sound that can be transcribed", where="samples", why=why, next=remedy)


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
