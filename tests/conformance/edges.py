"""The values at which operators go wrong, for each number format."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.quantization.calibration.ranges import Range

Floats = NDArray[np.float32]

SIZE = 64
"""Elements of an elementwise case: at least half are ordinary."""

_numbers = np.random.default_rng(0)
ORDINARY: Floats = np.asarray(_numbers.normal(size=4096) * 2, np.float32)


def _both_signs(*values: float) -> Floats:
    return np.array([sign * value for value in values for sign in (1, -1)], np.float32)


FP16_EDGES: Mapping[str, Floats] = {
    "ordinary": ORDINARY[:SIZE],
    "±0": _both_signs(0),
    "rounds to ±0": _both_signs(1e-12, 1e-10, 1e-9, 2e-8),
    "subnormal": _both_signs(6e-8, 1e-7, 5e-7, 1e-6, 1e-5, 3e-5, 6e-5),
    "small": _both_signs(6.2e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.05),
    "tails": _both_signs(*range(4, 20)),
    "halves": _both_signs(0.5, 1, 1.5, 2, 2.5, 3, 3.5, 0.4995, 0.5005),
    "hundreds": _both_signs(20, 50, 90, 100, 128, 200, 250, 256, 300, 500),
    "thousands": _both_signs(1000, 2047, 2048, 2049, 4097, 1e4, 2e4, 3.3e4),
    "fp16 limits": _both_signs(4e4, 6e4, 65472, 65504, 65519),
    "beyond fp16": _both_signs(65520, 7e4, 1e5, 131008, 2e5, 1e6, 1e30),
}
"""Edges of float16. No element is NaN or infinite in float32."""

QUANTIZED_EDGES: Mapping[str, Floats] = {
    "ordinary": ORDINARY[:SIZE],
    "positive": np.linspace(0.01, 4, SIZE, dtype=np.float32),
    "negative": np.linspace(-4, -0.01, SIZE, dtype=np.float32),
    "below one": np.linspace(-0.99, 0.99, SIZE, dtype=np.float32),
    "narrow": ORDINARY[:SIZE] * np.float32(1e-4),
    "wide": ORDINARY[:SIZE] * np.float32(1e4),
    "offset": 10 + ORDINARY[:SIZE] * np.float32(0.05),
    "outlier": np.concatenate([ORDINARY[: SIZE - 1] * np.float32(0.1), np.array([200], np.float32)]),
    "tails": np.linspace(-20, 20, SIZE, dtype=np.float32),
    "saturation": ORDINARY[:SIZE] * 2,
}
"""Edges of encodings; see :data:`SATURATED` for the last."""

SATURATED = Range(-2.0, 2.0)
"""What the input's encoding covers in cases of saturation: half of the values lie beyond it."""


def edges(number_format: str) -> Mapping[str, Floats]:
    """Name -> values, of which an elementwise case is made."""
    return FP16_EDGES if number_format == "fp16" else QUANTIZED_EDGES


def mixed(values: Floats, size: int = SIZE) -> Floats:
    """`size` elements: these values again and again in the first half, ordinary ones with them if they are few."""
    if values.size >= size:
        return values[:size]
    half = np.resize(values, max(size // 2, values.size))
    return np.concatenate([half, ORDINARY[: size - half.size]])
