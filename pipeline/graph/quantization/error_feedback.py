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

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 32
"""Inputs between two products of matrices."""
_CHANNELS = 512
"""Channels that are rounded at once: they don't depend on each other."""
_ERROR_BITS = 18
_HEADROOM_BITS = 3
"""An error is at most twice what the largest weight of its channel, or the largest integer, stands for."""


def fed_back(
    weight: NDArray[np.float32], factor: NDArray[np.float64], step: NDArray[np.float64], half: int
) -> NDArray[np.float64]:
    """The integers that a weight becomes, from -half - 1 to half, as float64 [inputs, channels].

    `weight` is [inputs, channels]; `factor` is [inputs, inputs], upper triangular, a multiple of the one of ``X.T X``;
    `step` is what integers are multiplied with, [blocks, channels], each for as many inputs as all others.
    """
    inputs, channels = weight.shape
    bits = 52 - _ERROR_BITS - _HEADROOM_BITS - max(1, math.ceil(math.log2(inputs)))
    parts = [slice(start, min(start + _CHANNELS, channels)) for start in range(0, channels, _CHANNELS)]
    grids = [_grid(weight[:, part], step[:, part], half) for part in parts]
    errors = [np.zeros((inputs, part.stop - part.start)) for part in parts]
    scales = [np.ascontiguousarray(step[:, part]) for part in parts]
    found = np.empty((inputs, channels))
    size = inputs // len(step)
    for start in range(0, inputs, _AT_ONCE):
        end = min(start + _AT_ONCE, inputs)
        ratios = factor[:end, start:end] / np.diagonal(factor)[start:end]
        largest = np.abs(ratios[:start]).max(axis=0, initial=2.0**-60)
        steps = np.ldexp(1.0, np.frexp(largest)[1] - bits)
        whole = np.rint(ratios[:start] / steps).T.copy()
        inside = ratios[start:]
        for part, grid, lost, scale in zip(parts, grids, errors, scales, strict=True):
            given = weight[start:end, part].astype(np.float64)
            wanted = given + (whole @ lost[:start]) * steps[:, None] if start else given.copy()
            made, passed = np.empty_like(grid), np.empty_like(wanted)
            for number in range(end - start):
                row = start + number
                own, error = scale[row // size], lost[row]
                np.divide(wanted[number], own, out=made)
                np.rint(made, out=made)
                np.maximum(made, -half - 1, out=made)
                np.minimum(made, half, out=made)
                found[row, part] = made
                np.multiply(made, own, out=made)
                np.subtract(given[number], made, out=error)
                np.divide(error, grid, out=error)
                np.rint(error, out=error)
                np.multiply(error, grid, out=error)
                rest = passed[number + 1 :]
                np.multiply(inside[number, number + 1 :, None], error, out=rest)
                wanted[number + 1 :] += rest
    return found


def _grid(weight: NDArray[np.float32], step: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """The steps in which the errors of each channel are counted."""
    largest = np.maximum(np.abs(weight).max(axis=0, initial=2.0**-60), (half + 1) * np.abs(step).max(axis=0))
    return np.asarray(np.ldexp(1.0, np.frexp(largest)[1] - _ERROR_BITS))
