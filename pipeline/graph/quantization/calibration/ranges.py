"""Ranges: the values each tensor took over a calibration set. With a bit width, a range makes an encoding."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

MIN_WIDTH = 1e-9
"""The narrowest range an encoding covers. onnxruntime's configuration for QNN has 1e-4, which rounds quiet signals to
nothing; the emulator computes right with ranges down to 1e-10, in 8 and 16 bits, for v68 and v73."""

ROUNDED_BITS = 9
"""Significant bits of the larger end of a rounded range, which gets up to 0.4 % wider: 0.03 dB at worst."""

_SAME = 1 / 256
"""In steps of rounding: what lies beyond one by less is taken for it, as 1.0000001 for 1."""

CHOSEN = "chosen.json"
"""Beside the measured ranges, those that a calibration method chose: ``{bits: {tensor: [low, high]}}``."""

_INTEGERS = "integers.json"
"""Beside them, the ranges of integer values that HTP may compute otherwise: ``{tensor: [low, high]}``."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of some values. NaN if one of them is."""

    low: float
    high: float

    @classmethod
    def of(cls, array: NDArray[Any]) -> Range:
        """The range of an array that has elements."""
        return cls(float(array.min()), float(array.max()))

    @classmethod
    def of_pieces(cls, pieces: Iterable[NDArray[Any]]) -> Range:
        """The range of the elements of all pieces; of none, that of zero."""
        each = [cls.of(piece) for piece in pieces]
        return reduce(or_, each) if each else cls(0.0, 0.0)

    def __or__(self, other: Range) -> Range:
        low = self.low if self.low < other.low or math.isnan(self.low) else other.low
        return Range(low, self.high if self.high > other.high or math.isnan(self.high) else other.high)

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

    def rounded(self) -> Range:
        """The range, zero in it, with its ends moved outward to multiples of one power of two.

        Processors add up in different orders, so that what one measures is 1e-7 to 1e-6 off what another does. That is
        1/10000 of a step of this: ends that were measured on two machines are nearly always rounded to the same.
        """
        larger = max(-self.low, self.high)
        if larger <= 0 or not self.finite:
            return self.with_zero()
        step = math.ldexp(1.0, math.frexp(larger)[1] - ROUNDED_BITS)
        low, high = (max(math.ceil(end / step - _SAME), 0) * step for end in (-self.low, self.high))
        return Range(0.0 - low, high)


class Ranges(dict[str, Range]):
    """Measured ranges by value, and for some values narrower ones that lose less, by the bits of the encoding."""

    def __init__(self, measured: Mapping[str, Range], chosen: Mapping[int, Mapping[str, Range]] | None = None) -> None:
        super().__init__(measured)
        self.chosen = chosen or {}

    def at(self, name: str, bits: int) -> Range:
        """The range to encode a value with in `bits` bits."""
        return self.chosen.get(bits, {}).get(name) or self[name]


def range_at(ranges: Mapping[str, Range], name: str, bits: int) -> Range:
    """The range that an encoding of `bits` bits covers: what calibration chose for it, or all that was measured."""
    return ranges.at(name, bits) if isinstance(ranges, Ranges) else ranges[name]


def write_integers(ranges: Mapping[str, Range], folder: Path) -> None:
    """Write the ranges of integer values into a folder of ranges; nothing if there are none."""
    if ranges:
        _write(_listed(ranges), folder / _INTEGERS)


def read_integers(folder: Path) -> dict[str, Range]:
    """What :func:`write_integers` wrote."""
    path = folder / _INTEGERS
    return _read(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def write_ranges(ranges: Mapping[str, Range], path: Path) -> None:
    """Write ``{tensor: [low, high]}``, sorted by name; beside it, ``chosen.json`` if other ranges were chosen."""
    _write(_listed(ranges), path)
    if isinstance(ranges, Ranges) and ranges.chosen:
        _write({str(bits): _listed(chosen) for bits, chosen in sorted(ranges.chosen.items())}, path.with_name(CHOSEN))


def read_ranges(path: Path) -> Ranges:
    """What :func:`write_ranges` wrote."""
    chosen = path.with_name(CHOSEN)
    written = json.loads(chosen.read_text("utf-8")) if chosen.exists() else {}
    return Ranges(
        _read(json.loads(path.read_text("utf-8"))), {int(bits): _read(each) for bits, each in written.items()}
    )


def _listed(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    return {name: [ranges[name].low, ranges[name].high] for name in sorted(ranges)}


def _write(listed: Mapping[str, object], path: Path) -> None:
    path.write_text(json.dumps(listed, indent=0, allow_nan=False) + "\n", "utf-8", newline="\n")


def _read(listed: Mapping[str, list[float]]) -> dict[str, Range]:
    return {name: Range(low, high) for name, (low, high) in listed.items()}
