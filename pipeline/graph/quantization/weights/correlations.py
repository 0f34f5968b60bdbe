"""How the inputs of weights vary together: ``X.T X`` over a calibration set, for rounding that looks at the data.

Kept are the mean square of each input, and of each two of them the correlation, in 16 bits.

What is added up are integers of 8 bits that each column is rounded to, some hundred rows at a time: such sums are exact
in float32, and the same whatever the order a library adds them up in.

A triangular factor of correlations that comes out the same on every processor.

Libraries of linear algebra add up in another order on each instruction set, and rounding that looks at the data takes
a different turn at the first bit that differs. Here all numbers lie on a grid that is so coarse that no sum of products
needs more than the 53 bits of a float64: whatever the order, and with or without fused operations, nothing is rounded.
What is rounded is rounded by single operations of IEEE 754, which are the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.quantization.weights.coordinate_descent import Settling

_GRID = 2.0**26
"""Entries of the factor are multiples of its inverse. Rows of the factor have a length of at most 1, so that a sum of
products is at most 1, in steps of 2^-52."""
_TRIANGULAR_FACTOR_PANEL = 64
_LEAST_PIVOT = 2.0**-16
_MORE = (0.0, 0.1, 1.0)
"""What is added to the damping where the correlations are no sums of squares, as they were rounded."""


def upper_factor(correlations: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """``U``, upper triangular, with ``U @ U.T`` equal to ``(correlations + damping * identity) / (1 + damping)``.

    `correlations` is [inputs, inputs], symmetric, with ones on its diagonal; what is below that is read.
    """
    for more in _MORE:
        lower = _lower_factor(correlations, damping + more)
        if lower is not None:
            return lower[::-1, ::-1]
    return np.eye(len(correlations))  # nothing is known, and all is rounded to the nearest


def _lower_factor(given: NDArray[np.float64], damping: float) -> NDArray[np.float64] | None:
    """The factor of Cholesky of what is given in the reverse order, panel by panel; None where a pivot is too small."""
    size = len(given)
    lower, turned = np.zeros((size, size)), given[::-1, ::-1]
    for start in range(0, size, _TRIANGULAR_FACTOR_PANEL):
        end = min(start + _TRIANGULAR_FACTOR_PANEL, size)
        panel = turned[start:end, start:] * (_GRID / (1 + damping))  # a row for each column
        np.rint(panel, out=panel)
        panel /= _GRID
        panel[np.arange(end - start), np.arange(end - start)] = 1.0
        panel -= lower[start:end, :start] @ lower[start:, :start].T
        for number, column in enumerate(panel):
            column[number:] -= panel[:number, number] @ panel[:number, number:]
            pivot = column[number]
            if pivot < _LEAST_PIVOT:
                return None
            head = np.rint(np.sqrt(pivot) * _GRID) / _GRID
            column[:number] = 0.0
            column[number:] = np.rint(column[number:] / head * _GRID) / _GRID
            column[number] = head
        lower[start:, start:end] = panel.T
    return lower


_BITS = 7
_ROWS_AT_ONCE = 512
"""Rows that are rounded to integers and added up at once: ``2^7 * 2^7 * 2^9`` is half of what float32 counts to."""
_MOST_ROWS = 1024
"""Rows of a sample that are looked at."""
_WHOLE = 32767
_ROWS_WRITTEN = 64
_PANEL = 512
_MOST_INPUTS = 4096
_LEAST_DAMPING = 0.01
_MOST_CHANCE = 0.99
_INDEX, _NUMBERS = "correlations.json", "correlations.bin"


@dataclass(frozen=True, eq=False)
class Correlation:
    """Of the inputs of a weight over some `rows`.

    `power` [inputs] is their mean square; `pairs` the lower triangle of the correlations, as int16.
    """

    power: NDArray[np.float64]
    pairs: NDArray[np.int16]
    rows: int

    @cached_property
    def factor(self) -> NDArray[np.float64]:
        """``U``, upper triangular, with ``U @ U.T`` what the damped ``X.T X`` is but for a factor.

        An input that was always zero counts as one that goes its own way.
        """
        length = np.sqrt(np.where(self.power > 0, self.power, 1.0))
        return upper_factor(self._below(), self.damping) * length[:, None]

    @cached_property
    def settling(self) -> Settling:
        """The damped correlations, to improve what is rounded already by."""
        counts = self.matrix()
        counts *= _WHOLE
        np.rint(counts, out=counts)
        np.fill_diagonal(counts, np.rint(_WHOLE * (1 + self.damping)))
        return Settling(counts, self.power)

    @property
    def damping(self) -> float:
        """What to add to the diagonal, so that what a few rows show by chance is not taken for a fact.

        Schäfer and Strimmer, "A shrinkage approach to large-scale covariance matrix estimation", 2005: the share of the
        squares that chance alone would make. 1 % at least is what GPTQ's authors add.
        """
        squares = int(np.sum(np.square(self.pairs, dtype=np.int64))) / _WHOLE**2
        by_chance = len(self.pairs) / max(1, self.rows)
        share = min(by_chance / squares if squares else 1.0, _MOST_CHANCE)
        return max(_LEAST_DAMPING, share / (1 - share))

    def matrix(self) -> NDArray[np.float64]:
        """The correlations, [inputs, inputs], from -1 to 1, with ones on the diagonal."""
        full = self._below()
        full += full.T
        np.fill_diagonal(full, 1.0)
        return full

    def _below(self) -> NDArray[np.float64]:
        """What the matrix has below its diagonal, and zeros."""
        size = len(self.power)
        below = np.zeros((size, size))
        start = 0
        for row in range(1, size):
            np.divide(self.pairs[start : start + row], _WHOLE, out=below[row, :row])
            start += row
        return below


def split(inputs: int) -> list[slice]:
    """The parts that many inputs are looked at in, each by itself: memory grows by the square of one."""
    count = -(-inputs // _MOST_INPUTS)
    size = -(-inputs // (64 * count)) * 64
    return [slice(start, min(start + size, inputs)) for start in range(0, inputs, size)]


def sum_bytes(inputs: int) -> int:
    """What :class:`Sums` of so many inputs take, with the rows that wait to be added."""
    return 4 * sum((last - first) * last for first, last in _panels(inputs)) + 8 * _ROWS_AT_ONCE * inputs


def _panels(inputs: int) -> list[tuple[int, int]]:
    return [(first, min(first + _PANEL, inputs)) for first in range(0, inputs, _PANEL)]


class Sums:
    """``X.T X`` under construction: of the symmetric matrix what is below its diagonal, some rows at a time."""

    def __init__(self, inputs: int) -> None:
        self._panels = [np.zeros((last - first, last), np.float32) for first, last in _panels(inputs)]
        self._waiting = np.empty((_ROWS_AT_ONCE, inputs))
        self._filled = 0
        self._count = 0

    def add(self, rows: NDArray[Any]) -> None:
        """One sample's, [rows, inputs]; of many rows, some that lie evenly spread."""
        if len(rows) > _MOST_ROWS:
            rows = rows[np.arange(_MOST_ROWS) * len(rows) // _MOST_ROWS]
        self._count += len(rows)
        while len(rows):
            taken = rows[: _ROWS_AT_ONCE - self._filled]
            self._waiting[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            rows = rows[len(taken) :]
            if self._filled == _ROWS_AT_ONCE:
                self._add_up()

    def _add_up(self) -> None:
        rows = self._waiting[: self._filled]
        self._filled = 0
        exponents = np.frexp(np.abs(rows).max(axis=0, initial=0))[1]
        exponents[exponents < -60] = -60
        whole = rows * np.ldexp(1.0, _BITS - exponents)
        whole = np.rint(whole, out=whole).astype(np.float32)
        steps = np.ldexp(np.float32(1), exponents - _BITS)
        for panel in self._panels:
            rows_of_panel, last = panel.shape
            product = whole[:, last - rows_of_panel : last].T @ whole[:, :last]
            product *= steps[last - rows_of_panel : last, None]
            product *= steps[:last]
            panel += product

    def correlation(self) -> Correlation:
        """What was added. An input that was always zero has no power, and goes with no other."""
        if self._filled:
            self._add_up()
        squares = np.concatenate([np.diagonal(panel, panel.shape[1] - len(panel)) for panel in self._panels])
        power = squares.astype(np.float64) / max(1, self._count)
        length = np.sqrt(squares.astype(np.float64))
        inverse = np.where(length > 0, 1 / np.where(length > 0, length, 1.0), 0.0)
        size = len(power)
        pairs = np.empty(size * (size - 1) // 2, np.int16)
        start = row = 0
        for panel in self._panels:
            for first in range(0, len(panel), _ROWS_WRITTEN):
                part = panel[first : first + _ROWS_WRITTEN]
                last = row + len(part)
                near = part[:, :last] * (inverse[row:last] * _WHOLE)[:, None]
                near *= inverse[:last]
                near = np.rint(near, out=near).astype(np.int16)
                for numbers in near:
                    pairs[start : start + row] = numbers[:row]
                    start += row
                    row += 1
        return Correlation(power, pairs, self._count)


class CorrelationWriter:
    """Writes correlations to a folder, one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, list[tuple[int, int, int]]] = {}
        self._offset = 0
        (folder / _NUMBERS).write_bytes(b"")

    def add(self, weights: Sequence[str], parts: Sequence[Correlation]) -> None:
        """What the inputs of some weights, which are the same, have: those of each part of them, see :func:`split`."""
        places = []
        for part in parts:
            with (self._folder / _NUMBERS).open("ab") as file:
                written = file.write(part.power.astype("<f8").tobytes())
                written += file.write(part.pairs.astype("<i2").tobytes())
            places.append((self._offset, len(part.power), part.rows))
            self._offset += written
        self._places |= dict.fromkeys(weights, places)

    def finish(self) -> None:
        """Write which weight has which."""
        listed = {name: [*map(list, self._places[name])] for name in sorted(self._places)}
        (self._folder / _INDEX).write_text(json.dumps(listed, indent=0) + "\n", "utf-8", newline="\n")


class Correlations:
    """What a :class:`CorrelationWriter` wrote. In memory is what the last weight needed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _NUMBERS
        self._places: Mapping[str, list[list[int]]] = json.loads((folder / _INDEX).read_text("utf-8"))
        self._last: tuple[list[list[int]], tuple[Correlation, ...]] | None = None

    def of(self, weight: str) -> tuple[Correlation, ...]:
        """Those of each part of a weight's inputs; none if no node multiplies it as a matrix."""
        places = self._places.get(weight, [])
        if self._last is None or self._last[0] != places:
            self._last = None  # its memory is needed
            self._last = places, tuple(self._read(*place) for place in places)
        return self._last[1]

    def _read(self, offset: int, size: int, rows: int) -> Correlation:
        power = np.fromfile(self._file, "<f8", size, offset=offset)
        pairs = np.fromfile(self._file, "<i2", size * (size - 1) // 2, offset=offset + 8 * size)
        return Correlation(power, pairs, rows)
