"""Constants as integers: a scale for all of it or for each channel, chosen for the least squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pipeline.graph.encodings import MIN_WIDTH, Range
from pipeline.graph.scheme import bits

_SHARES = {
    4: (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
    8: (127 / 129, 127 / 128, 1.0, 127 / 126, 127 / 124),
}
"""By bits, the shares of the largest magnitude that may get the largest integer. With 4 bits, what is cut off costs
less than it gains; with 8, it is about how the numbers happen to fall between the integers."""
_NARROWEST = 2.0**-16
"""No channel is given less of a range than this part of the widest channel's."""
_REFITS = 2
"""How often the best of them is improved by the scale that fits its integers best."""


@dataclass(frozen=True, eq=False)
class Integers:
    """``real = scale * (values - zero_point)``; scale and zero point are scalars, or one for each index of `axis`."""

    values: NDArray[Any]
    scale: NDArray[np.float64]
    zero_point: NDArray[Any]
    axis: int | None = None

    def real(self) -> NDArray[np.float64]:
        """The numbers that the integers stand for."""
        scale, zero = (_along(array, self.values.ndim, self.axis) for array in (self.scale, self.zero_point))
        return np.asarray((self.values.astype(np.float64) - zero.astype(np.float64)) * scale)


def asymmetric(array: NDArray[Any], covers: Range, kind: str, smallest: float = 0.0) -> Integers:
    """With one scale for a whole range, zero in it: as activations are. `smallest` as for :func:`symmetric`."""
    scale, zero = affine(covers, kind)
    scale = max(scale, smallest)
    low, high = limits(kind)
    values = np.clip(np.rint(array / scale) + zero, low, high).astype(dtype(kind))
    return Integers(values, np.array(scale), np.array(zero, dtype(kind)))


def affine(covers: Range, kind: str) -> tuple[float, int]:
    """The scale and zero point with which an unsigned type covers a range and zero."""
    covers = covers.with_zero()
    low, high = limits(kind)
    top = max(covers.high, covers.low + MIN_WIDTH)
    scale = (top - covers.low) / (high - low)
    return scale, int(np.clip(np.rint(low - covers.low / scale), low, high))


def symmetric(
    array: NDArray[Any], kind: str, axis: int | None, smallest: NDArray[np.float64] | float = 0.0
) -> Integers:
    """With zero in the middle and a scale that loses least, for each index of `axis` or for all.

    `smallest` is what no scale may fall short of.
    """
    rows = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    rows = np.asarray(rows, np.float32)
    scale = np.maximum(_scales(rows, bits(kind)), smallest)
    half = 1 << (bits(kind) - 1)
    signed = np.clip(np.rint(rows / scale[:, None].astype(np.float32)), -half, half - 1)
    zero = 0 if kind.startswith("int") else half
    stored = (signed + zero).astype(np.int16).astype(dtype(kind))
    if axis is None:
        return Integers(stored.reshape(array.shape), scale[0], np.array(zero, dtype(kind)))
    shape = (array.shape[axis], *np.delete(array.shape, axis))
    values = np.ascontiguousarray(np.moveaxis(stored.reshape(shape), 0, axis))
    return Integers(values, scale, np.full(scale.shape, zero, dtype(kind)), axis)


def bias(array: NDArray[Any], scale: NDArray[np.float64]) -> Integers:
    """int32 with a given scale, or one for each channel."""
    if scale.ndim and array.shape[-1:] != scale.shape:
        array = np.broadcast_to(array, scale.shape)
    top = float(2**31 - 1)
    values = np.clip(np.rint(np.asarray(array, np.float64) / scale), -top - 1, top).astype(np.int32)
    axis = array.ndim - 1 if scale.ndim else None
    return Integers(values, scale, np.zeros(scale.shape, np.int32), axis)


def limits(kind: str) -> tuple[int, int]:
    """The smallest and the largest integer of a type."""
    width = bits(kind)
    return (0, (1 << width) - 1) if kind.startswith("u") else (-(1 << (width - 1)), (1 << (width - 1)) - 1)


def dtype(kind: str) -> np.dtype[Any]:
    """The numpy type of that name, one of ml_dtypes for 4 bits."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(kind.upper())))


def _scales(rows: NDArray[np.float32], width: int) -> NDArray[np.float64]:
    half = (1 << (width - 1)) - 1
    widest = np.abs(rows).max(axis=1, initial=0).astype(np.float64)
    # A channel of zeros may have any scale but 0; one that is nearly so, none that integer arithmetic can't hold.
    widest = np.maximum(widest, widest.max(initial=0) * _NARROWEST or MIN_WIDTH / 2)
    best, least = widest / half, np.full(widest.shape, np.inf)
    for share in _SHARES[width]:
        best, least = _better(rows, share * widest / half, half, best, least)
    for _ in range(_REFITS):
        integers = _integers(rows, best, half)
        size = np.maximum((integers * integers).sum(axis=1, dtype=np.float64), 1.0)
        fitted = (rows * integers).sum(axis=1, dtype=np.float64) / size
        best, least = _better(rows, np.maximum(fitted, best / 4), half, best, least)
    return np.asarray(best)


def _better(
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    half: int,
    best: NDArray[np.float64],
    least: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of two scales for each row, the one with the smaller error."""
    lost = rows - _integers(rows, scale, half) * scale[:, None].astype(np.float32)
    error = np.einsum("ij,ij->i", lost, lost, dtype=np.float64)
    gains = error < least
    return np.where(gains, scale, best), np.where(gains, error, least)


def _integers(rows: NDArray[np.float32], scale: NDArray[np.float64], half: int) -> NDArray[np.float32]:
    return np.asarray(np.clip(np.rint(rows / scale[:, None].astype(np.float32)), -half - 1, half), np.float32)


def _along(array: NDArray[Any], rank: int, axis: int | None) -> NDArray[Any]:
    return array if axis is None else array.reshape([-1 if place == axis else 1 for place in range(rank)])
