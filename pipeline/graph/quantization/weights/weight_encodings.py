"""Constants as integers: a scale for all of it or for each channel, chosen for the least squared error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pipeline.contracts.scheme import bits
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range
from pipeline.graph.quantization.chip_limits import LARGEST_OF_16_BITS

_SHARES = {
    4: (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
    8: (127 / 129, 127 / 128, 1.0, 127 / 126, 127 / 124),
    16: (1.0,),
}
"""By bits, the shares of the largest magnitude that may get the largest integer. With 4 bits, what is cut off costs
less than it gains; with 8, it is about how the numbers happen to fall between the integers."""
_NARROWEST = 2.0**-16
"""No channel is given less of a range than this part of the widest channel's."""
_FEWEST_CHANNELS = 128
_AT_ONCE = 1 << 18
"""Numbers that a scale is looked for at once, unless that is fewer channels than numpy works well with."""
_REFITS = 2
"""How often the best of them is improved by the scale that fits its integers best."""


@dataclass(frozen=True, eq=False)
class Integers:
    """``real = scale * (values - zero_point)``; scale and zero point are scalars, or one for each index of `axis`.

    With `block`, they are arrays of the rank of `values`, and each is for so many neighbours along `axis`.
    """

    values: NDArray[Any] | Pieces
    scale: NDArray[np.float64]
    zero_point: NDArray[Any]
    axis: int | None = None
    block: int | None = None

    def array(self) -> NDArray[Any]:
        """All integers."""
        return self.values if not isinstance(self.values, Pieces) else self.values.array()

    def real(self) -> NDArray[np.float64]:
        """The numbers that the integers stand for."""
        values = self.array()
        scale, zero = (self._spread(array, values.ndim) for array in (self.scale, self.zero_point))
        return np.asarray((values.astype(np.float64) - zero.astype(np.float64)) * scale)

    def _spread(self, array: NDArray[Any], rank: int) -> NDArray[Any]:
        if self.block is not None:
            return np.repeat(array, self.block, self.axis)
        return _along(array, rank, self.axis)


def asymmetric(numbers: Pieces, covers: Range, kind: str, smallest: float = 0.0) -> Integers:
    """With one scale for a whole range, zero in it: as activations are. `smallest` as for :func:`symmetric`."""
    scale, zero = affine(covers, kind)
    return rounded_to(numbers, kind, max(scale, smallest), zero)


def rounded_to(numbers: Pieces, kind: str, scale: float, zero: int) -> Integers:
    """With a scale and zero point that are given."""
    low, high = limits(kind)
    stored = dtype(kind)

    def rounded(piece: NDArray[Any]) -> NDArray[Any]:
        near = piece / scale
        np.rint(near, out=near)
        near += zero
        return np.asarray(np.clip(near, low, high, out=near).astype(stored))

    return Integers(numbers.map(rounded, stored), np.array(scale), np.array(zero, stored))


def affine(covers: Range, kind: str) -> tuple[float, int]:
    """The scale and zero point with which an unsigned type covers a range and zero."""
    covers = covers.with_zero()
    low, high = limits(kind)
    top = max(covers.high, covers.low + MIN_WIDTH)
    scale = (top - covers.low) / (high - low)
    return scale, min(max(round(low - covers.low / scale), low), high)


def symmetric(
    array: NDArray[Any], kind: str, axis: int | None, smallest: NDArray[np.float64] | float = 0.0
) -> Integers:
    """With zero in the middle and a scale that loses least, for each index of `axis` or for all.

    `smallest` is what no scale may fall short of.
    """
    channels = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0)
    stored = np.empty(array.shape, dtype(kind))
    target = stored.reshape(1, -1) if axis is None else np.moveaxis(stored, axis, 0)
    half = 1 << (bits(kind) - 1)
    zero = 0 if kind.startswith("int") else half
    # Some channels after the other, as each round makes several arrays as large as what it rounds.
    step = max(_FEWEST_CHANNELS, _AT_ONCE // max(1, array.size // max(1, len(channels))))
    parts = [slice(start, start + step) for start in range(0, len(channels), step)]
    widest = _widest(_rows(channels[part]) for part in parts)
    scale = np.empty(widest.shape)
    for part in parts:
        rows = _rows(channels[part])
        least = smallest[part] if isinstance(smallest, np.ndarray) and smallest.ndim else smallest
        scale[part] = np.maximum(_scales(rows, widest[part], bits(kind), largest(kind)), least)
        _round(rows, scale[part], largest(kind), rows)
        rows += zero
        target[part] = rows.astype(np.int16).astype(stored.dtype).reshape(target[part].shape)
    if axis is None:
        return Integers(stored, scale[0], np.array(zero, stored.dtype))
    return Integers(stored, scale, np.full(scale.shape, zero, stored.dtype), axis)


def bias(array: NDArray[Any], scale: NDArray[np.float64]) -> Integers:
    """int32 with a given scale, or one for each channel."""
    if scale.ndim and array.shape[-1:] != scale.shape:
        array = np.broadcast_to(array, (*array.shape[:-1], *scale.shape))
    top = float(2**31 - 1)
    values = np.clip(np.rint(np.asarray(array, np.float64) / scale), -top - 1, top).astype(np.int32)
    axis = array.ndim - 1 if scale.ndim else None
    return Integers(values, scale, np.zeros(scale.shape, np.int32), axis)


def limits(kind: str) -> tuple[int, int]:
    """The smallest and the largest integer of a type."""
    width = bits(kind)
    return (0, (1 << width) - 1) if kind.startswith("u") else (-(1 << (width - 1)), (1 << (width - 1)) - 1)


def largest(kind: str) -> int:
    """The largest magnitude above zero that a symmetric encoding stands for, in steps."""
    width = bits(kind)
    return LARGEST_OF_16_BITS if width == 16 else (1 << (width - 1)) - 1


def dtype(kind: str) -> np.dtype[Any]:
    """The numpy type of that name, one of ml_dtypes for 4 bits."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(kind.upper())))


def least_widths(widest: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest magnitudes of channels or blocks, or what stands in for those that are next to nothing.

    Zeros may have any scale but 0; what is nearly zero, none that integer arithmetic can't hold.
    """
    return np.asarray(np.maximum(widest, widest.max(initial=0) * _NARROWEST or MIN_WIDTH / 2))


def _rows(channels: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers of each channel in a row, close together in memory and aligned, as they are read many times."""
    return channels.reshape(len(channels), -1).astype(np.float32, order="K")


def _widest(parts: Iterable[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The largest magnitude of each channel, or what stands in for it."""
    found = [np.abs(rows).max(axis=1, initial=0).astype(np.float64) for rows in parts]
    return least_widths(np.concatenate(found) if found else np.empty(0))


def _scales(rows: NDArray[np.float32], widest: NDArray[np.float64], width: int, half: int) -> NDArray[np.float64]:
    best, least = widest / half, np.full(widest.shape, np.inf)
    # New arrays of this size would cost more than what is computed in them.
    near, product = np.empty_like(rows), np.empty_like(rows)
    for share in _SHARES[width]:
        best, least = _better(rows, share * widest / half, half, best, least, near)
    for _ in range(_REFITS):
        _round(rows, best, half, near)
        size = np.maximum(np.multiply(near, near, out=product).sum(axis=1, dtype=np.float64), 1.0)
        fitted = np.multiply(rows, near, out=product).sum(axis=1, dtype=np.float64) / size
        best, least = _better(rows, np.maximum(fitted, best / 4), half, best, least, near)
    return np.asarray(best)


def _better(
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    half: int,
    best: NDArray[np.float64],
    least: NDArray[np.float64],
    lost: NDArray[np.float32],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of two scales for each row, the one with the smaller error. `lost` is memory to work in."""
    _round(rows, scale, half, lost)
    np.multiply(lost, scale[:, None].astype(np.float32), out=lost)
    np.subtract(rows, lost, out=lost)
    error = np.einsum("ij,ij->i", lost, lost, dtype=np.float64)
    gains = error < least
    return np.where(gains, scale, best), np.where(gains, error, least)


def _round(rows: NDArray[np.float32], scale: NDArray[np.float64], half: int, out: NDArray[np.float32]) -> None:
    """Write the integers that rows become to `out`."""
    np.divide(rows, scale[:, None].astype(np.float32), out=out)
    np.rint(out, out=out)
    np.clip(out, -half - 1, half, out=out)


def _along(array: NDArray[Any], rank: int, axis: int | None) -> NDArray[Any]:
    return array if axis is None else array.reshape([-1 if place == axis else 1 for place in range(rank)])
