"""A weight as integers: which scales, in blocks or for whole channels, and which of two neighbours each number becomes.

:func:`encode_weight` is all there is to it for readers: given a weight, its layout and what is known of its inputs, it
returns integers and scales. Everything in it comes out the same on every processor: single operations of IEEE 754 and
sums down the rows of an array, which numpy makes one row after the other.

Rounding that looks at the data: each weight is rounded to make up for the errors of those before it (GPTQ).

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022. With ``X``
the inputs of a weight ``W`` [inputs, channels], what rounding it to ``Q`` costs is ``|X (W - Q)|^2``. With
``X.T X = U U.T`` for an upper triangular ``U``, that is a sum of squares of which number k has the errors up to input k
alone; so rounding input after input, each square is made as small as the steps allow::

    q[k] = round(w[k] + sum(e[j] * U[j, k] for j < k) / U[k, k]),    e = w - q

The sum is of products of integers that fit 53 bits together, so that it is the same on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.scheme import Clip, Rounding, bits
from pipeline.graph.quantization.weights.correlations import Correlation
from pipeline.graph.quantization.weights.weight_encodings import Integers, dtype, largest, least_widths
from pipeline.graph.quantization.weights.weight_layout import Layout

_ERROR_FEEDBACK_AT_ONCE = 32
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
    for start in range(0, inputs, _ERROR_FEEDBACK_AT_ONCE):
        end = min(start + _ERROR_FEEDBACK_AT_ONCE, inputs)
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


_SHARES = {
    4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4),
    8: (127 / 129, 127 / 128, 1.0, 127 / 126, 127 / 124),
    16: (1.0,),
}
"""By bits, the shares of the largest magnitude that may get the largest integer."""
_KEPT = 2.0**-18
"""Of a step: a weight that is no further than this from its integers was rounded before, and keeps them."""
_SMALLER = 6
"""Blocks of Q4_K around their middle need not reach the largest integer: some stay as they are with this one."""
_REFITS = 2
"""How often the best of them is improved by the scale that fits its integers best."""
_LEAST_IMPORTANCE = 1e-4
"""Of an input that was zero, beside the most important one: it may differ from zero elsewhere."""
_AT_ONCE = 1 << 16
"""Numbers that scales are looked for at once, so that they stay in the processor's cache."""
_THREADS = 2
"""Threads that look for them: each channel is by itself, and nothing else of a model can run while it is quantized."""


_SETTLED_BITS, _SETTLED_PASSES = 4, 1
"""Weights of so few bits gain enough by it to be worth the time: see :mod:`.coordinate_descent`."""


@dataclass(frozen=True)
class Recipe:
    """How a weight becomes integers of a type: with what scales, and rounded how. Zero is always exact."""

    kind: str
    clip: Clip = "mse"
    rounding: Rounding = "nearest"


def encode_weight(
    weight: NDArray[Any],
    layout: Layout,
    recipe: Recipe,
    correlations: Sequence[Correlation] = (),
    smallest: NDArray[np.float64] | float = 0.0,
) -> Integers:
    """A weight as integers with a scale for each channel, or for each block of one.

    `correlations` are of the weight's inputs, part after part. Without them, `hessian` clips as `mse` does, and `gptq`
    takes the nearest.
    `smallest` is what no scale may fall short of: one number, or one for each channel.
    """
    numbers = np.ascontiguousarray(layout.matrix(weight), dtype=np.float32)
    power = np.concatenate([part.power for part in correlations]) if correlations else None
    importance = power if recipe.clip == "hessian" else None
    scale, near = _nearest(numbers, layout.block, recipe, importance, smallest)
    if correlations and recipe.rounding == "gptq":
        step, blocks = scale[:, None], numbers.reshape(len(scale), -1, numbers.shape[1])
        if (np.abs(near.reshape(blocks.shape) * step - blocks) > _KEPT * np.abs(step)).any():
            smallest = np.broadcast_to(smallest, scale.shape)
            near = _fed_back(numbers, scale, correlations, np.asarray(smallest), recipe).astype(np.int32)
    return _stored(near, scale, layout, weight.ndim, recipe.kind)


def _fed_back(
    numbers: NDArray[np.float32],
    scale: NDArray[np.float64],
    correlations: Sequence[Correlation],
    smallest: NDArray[np.float64],
    recipe: Recipe,
) -> NDArray[np.float64]:
    """The integers of a weight, part after part of its inputs; changes `scale` where that gains something."""
    half, size = largest(recipe.kind), len(numbers) // len(scale)
    near = np.empty(numbers.shape)
    start = 0
    for known in correlations:
        end = start + len(known.power)
        blocks = slice(start // size, max(end // size, 1))
        begins_and_ends_blocks = len(scale) == 1 or not (start % size or end % size)
        step = scale[blocks] if begins_and_ends_blocks else scale[np.arange(start, end) // size]
        near[start:end] = fed_back(numbers[start:end], known.factor, step, half)
        if begins_and_ends_blocks and bits(recipe.kind) <= _SETTLED_BITS:
            known.settling.settle(
                numbers[start:end],
                near[start:end],
                scale[blocks],
                smallest[blocks],
                half,
                passes=_SETTLED_PASSES,
                # With clip none a scale holds all; and one that several parts share is not for one to change.
                refit=recipe.clip != "none" and (len(scale) > 1 or len(correlations) == 1),
            )
        start = end
    return near


def _stored(near: NDArray[np.int32], scale: NDArray[np.float64], layout: Layout, rank: int, kind: str) -> Integers:
    stored = dtype(kind)
    zero = 0 if kind.startswith("int") else 1 << (bits(kind) - 1)
    values = layout.array((near + zero).astype(np.int16).astype(stored), rank)
    if layout.block is None:
        return Integers(values, scale[0], np.full(scale.shape[1:], zero, stored), layout.channels)
    scales = layout.array(scale, rank)
    return Integers(values, scales, np.full(scales.shape, zero, stored), layout.inputs, layout.block)


def _nearest(
    numbers: NDArray[np.float32],
    block: int | None,
    recipe: Recipe,
    importance: NDArray[np.float64] | None,
    smallest: NDArray[np.float64] | float,
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """[blocks, channels]: what integers are multiplied with, chosen for the least squared error; the nearest integers.

    Some channels after the others, as what is computed of them has to stay in the processor's cache.
    """
    inputs, channels = numbers.shape
    half = largest(recipe.kind)
    blocks = numbers.reshape(-1, block or inputs, channels)
    widest = least_widths(np.abs(blocks).max(axis=1).astype(np.float64))
    weights = None
    if importance is not None and importance.any():
        weights = np.maximum(importance / importance.max(), _LEAST_IMPORTANCE).reshape(*blocks.shape[:2], 1)
    least = np.broadcast_to(smallest, widest.shape[1:])
    scale, near = np.empty(widest.shape), np.empty(blocks.shape, np.int32)

    def choose(part: slice) -> None:
        own, width = blocks[:, :, part].astype(np.float64), widest[:, part]
        found = width / half
        if recipe.clip != "none":
            found = _searched(own, width, weights, recipe.kind, signed=block is not None)
        found = np.copysign(np.maximum(np.abs(found), least[part]), found)
        scale[:, part] = step = found.astype(np.float32).astype(np.float64)
        near[:, :, part] = np.clip(np.rint(own / step[:, None]), -half - 1, half)

    size = max(16, _AT_ONCE // inputs)
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(choose, (slice(start, start + size) for start in range(0, channels, size))))
    return scale, near.reshape(numbers.shape)


def _searched(
    blocks: NDArray[np.float64],
    widest: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    kind: str,
    *,
    signed: bool,
) -> NDArray[np.float64]:
    """The best scales found; of `signed` blocks of 4 bits, some may be negative. Without `weights` all count alike.

    Those are what Q4_0 of GGUF has: the number of the largest magnitude becomes -8, whatever its sign. So its weights
    stay as they are, and a step in 16 is gained for others. HTP (2.51, emulated) takes such scales in blocks: a MatMul
    with the signs of a third of its blocks turned around gives the same, bit for bit.
    """
    half = largest(kind)
    best, least = widest / half, np.full(widest.shape, np.inf)
    for share in _SHARES[bits(kind)]:
        best, least = _better(blocks, share * widest / half, weights, half, best, least)
    if signed and bits(kind) == 4:
        farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)[:, 0]
        lowest = np.where(
            np.abs(farthest) < widest, widest / half, farthest / (-half - 1)
        )  # of what is next to nothing
        best, least = _better(blocks, lowest, weights, half, best, least)
        best, least = _better(blocks, widest / _SMALLER, weights, half, best, least)
    for _ in range(_REFITS):
        near = np.clip(np.rint(blocks / best[:, None]), -half - 1, half)
        counted = near if weights is None else weights * near
        size = (counted * near).sum(axis=1)
        fitted = np.where(size > 0, (counted * blocks).sum(axis=1) / np.where(size > 0, size, 1.0), best)
        fitted = np.copysign(np.maximum(np.abs(fitted), np.abs(best) / 4), best)
        best, least = _better(blocks, fitted, weights, half, best, least)
    return best


def _better(
    blocks: NDArray[np.float64],
    scale: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    half: int,
    best: NDArray[np.float64],
    least: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of two scales for each block, the one with the smaller error."""
    lost = blocks / scale[:, None]
    np.rint(lost, out=lost)
    np.clip(lost, -half - 1, half, out=lost)
    lost *= scale[:, None]
    np.subtract(blocks, lost, out=lost)
    weighted = lost if weights is None else weights * lost
    error = np.multiply(weighted, lost, out=lost).sum(axis=1)
    gains = error < least
    return np.where(gains, scale, best), np.where(gains, error, least)
