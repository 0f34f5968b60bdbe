"""How the windows of a pool lie along its axes, however its attributes say it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PoolAxis:
    """How windows lie along an axis of `size` elements; `before` and `after` are its padding."""

    kernel: int
    stride: int
    dilation: int
    size: int
    windows: int
    before: int
    after: int

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the elements of each window are, int64 [windows, kernel]; below 0 and from `size` on in the padding."""
        starts = np.arange(self.windows) * self.stride - self.before
        return starts[:, None] + np.arange(self.kernel) * self.dilation

    @property
    def beyond(self) -> int:
        """How far the last window reaches over the end."""
        return max(0, int(self.places.max()) + 1 - self.size)

    def counts(self, *, padding: bool) -> NDArray[np.int64]:
        """How many elements of each window count, those of the declared padding included or not."""
        before, after = (self.before, self.after) if padding else (0, 0)
        places = self.places
        return np.asarray(((places >= -before) & (places < self.size + after)).sum(1))


def pool_axes(given: dict[str, object], sizes: tuple[int, ...], windows: tuple[int, ...]) -> list[PoolAxis]:
    """Those of a pool with these attributes, over `sizes` elements along each axis, that makes so many `windows`."""
    kernel, rank = _whole(given["kernel_shape"]), len(sizes)
    strides, dilations = (_whole(given.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = _whole(given.get("pads", [0] * 2 * rank))
    side = given.get("auto_pad", b"NOTSET")
    axes = []
    for at, size in enumerate(sizes):
        before, after = pads[at], pads[rank + at]
        if side != b"NOTSET":
            reach = (windows[at] - 1) * strides[at] + (kernel[at] - 1) * dilations[at] + 1
            total = max(0, reach - size) if side in (b"SAME_UPPER", b"SAME_LOWER") else 0
            before = (total + (side == b"SAME_LOWER")) // 2
            after = total - before
        axes.append(PoolAxis(kernel[at], strides[at], dilations[at], size, windows[at], before, after))
    return axes


def _whole(values: object) -> list[int]:
    assert isinstance(values, list)
    return values
