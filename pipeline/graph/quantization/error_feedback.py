"""Rounding that looks at the data: each weight is rounded to make up for the errors of those before it (GPTQ).

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022. With ``X``
the inputs of a weight ``W`` [inputs, channels], what rounding it to ``Q`` costs is ``|X (W - Q)|^2``. With
``X.T X = U U.T`` for an upper triangular ``U``, that is a sum of squares of which number k has the errors up to input k
alone; so rounding input after input, each square is made as small as the steps allow::

    q[k] = round(w[k] + sum(e[j] * U[j, k] for j < k) / U[k, k]),    e = w - q

The sum is of products of integers that fit 53 bits together, so that it is the same on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 32
"""Inputs between two products of matrices."""
_CHANNELS = 512
"""Channels that are rounded at once: they don't depend on each other."""
_ERROR_BITS = 18
_HEADROOM_BITS = 3
"""An error is at most 2.1 times the largest weight of its channel, which is less than 8."""

Rounder = Callable[[int, slice, NDArray[np.float64]], NDArray[np.float64]]
"""Of an input, some channels and their numbers: what these are after rounding."""


def fed_back(weight: NDArray[np.float32], factor: NDArray[np.float64], rounder: Rounder) -> None:
    """Call `rounder` for all inputs in their order, with the numbers to be rounded.

    `weight` is [inputs, channels]; `factor` is [inputs, inputs], upper triangular, a multiple of the one of ``X.T X``.
    """
    inputs, channels = weight.shape
    bits = 52 - _ERROR_BITS - _HEADROOM_BITS - max(1, math.ceil(math.log2(inputs)))
    parts = [slice(start, min(start + _CHANNELS, channels)) for start in range(0, channels, _CHANNELS)]
    grids = [_grid(weight[:, part]) for part in parts]
    errors = [np.zeros((inputs, part.stop - part.start)) for part in parts]
    for start in range(0, inputs, _AT_ONCE):
        end = min(start + _AT_ONCE, inputs)
        ratios = factor[:end, start:end] / np.diagonal(factor)[start:end]
        largest = np.abs(ratios[:start]).max(axis=0, initial=2.0**-60)
        steps = np.ldexp(1.0, np.frexp(largest)[1] - bits)
        whole = np.rint(ratios[:start] / steps).T.copy()
        inside = ratios[start:]
        for part, grid, lost in zip(parts, grids, errors, strict=True):
            wanted = weight[start:end, part].astype(np.float64)
            if start:
                wanted += (whole @ lost[:start]) * steps[:, None] * grid
            for number in range(end - start):
                error = weight[start + number, part] - rounder(start + number, part, wanted[number])
                error = lost[start + number] = np.rint(error / grid)
                wanted[number + 1 :] += inside[number, number + 1 :, None] * (error * grid)


def _grid(weight: NDArray[np.float32]) -> NDArray[np.float64]:
    """The steps in which the errors of each channel are counted."""
    largest = np.abs(weight).max(axis=0, initial=2.0**-60).astype(np.float64)
    return np.asarray(np.ldexp(1.0, np.frexp(np.maximum(largest, 2.0**-60))[1] - _ERROR_BITS))
