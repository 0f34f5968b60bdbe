"""Ranges: the values each tensor took over a calibration set. With a bit width, a range makes an encoding."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_WIDTH = 1e-4
"""The narrowest range an encoding covers: ``MinimumRealRange`` of onnxruntime's QNN configuration."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of some values. NaN if one of them is."""

    low: float
    high: float

    @classmethod
    def of(cls, array: NDArray[Any]) -> Range:
        """The range of an array that has elements."""
        return cls(float(array.min()), float(array.max()))

    def __or__(self, other: Range) -> Range:
        return Range(float(np.minimum(self.low, other.low)), float(np.maximum(self.high, other.high)))

    @property
    def width(self) -> float:
        """The distance from low to high."""
        return self.high - self.low

    @property
    def finite(self) -> bool:
        """Whether no value was infinite or NaN."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def with_zero(self) -> Range:
        """The range an encoding covers: zero is always in it, padding has to be exact."""
        return self | Range(0.0, 0.0)


def write_ranges(ranges: Mapping[str, Range], path: Path) -> None:
    """Write ``{tensor: [low, high]}``, sorted by name."""
    listed = {name: [ranges[name].low, ranges[name].high] for name in sorted(ranges)}
    path.write_text(json.dumps(listed, indent=0, allow_nan=False) + "\n", "utf-8", newline="\n")


def read_ranges(path: Path) -> dict[str, Range]:
    """What :func:`write_ranges` wrote."""
    return {name: Range(low, high) for name, (low, high) in json.loads(path.read_text("utf-8")).items()}
