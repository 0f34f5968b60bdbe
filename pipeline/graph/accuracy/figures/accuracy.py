"""How far the outputs of one model are from those of another, over many samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Figures, Outlier
from pipeline.errors import VerificationError
from pipeline.ladder import EXACT_DB

Outputs = Mapping[str, NDArray[Any]]
"""The outputs of a model for one sample, by name."""


@dataclass(frozen=True)
class Span:
    """The least and the largest of some numbers; the least is the larger one where there are none."""

    low: float = math.inf
    high: float = -math.inf

    def over(self, array: NDArray[Any]) -> Span:
        """This one widened to hold the finite numbers of an array."""
        finite = array[np.isfinite(array)]
        return Span(min(self.low, float(finite.min())), max(self.high, float(finite.max()))) if finite.size else self

    def times_outside(self, value: float) -> float:
        """How far a number lies outside, in widths of the span, which is counted from 0 where that is more.

        Infinite for what is no finite number, and where there is no width.
        """
        outside = max(self.low - value, value - self.high, 0.0) if math.isfinite(value) else math.inf
        width = max(self.high - self.low, abs(self.low), abs(self.high))
        return 0.0 if outside == 0 else outside / width if 0 < width < math.inf else math.inf


@dataclass(frozen=True)
class _Sample:
    """One sample: energies of the truth and of the error, and how many elements were compared."""

    name: str
    signal: float
    noise: float
    count: int


class Accuracy:
    """Sums over the elements of one output; memory does not grow with the elements."""

    def __init__(self, known: Span | None = None) -> None:
        """`known` is the range of the truth beyond the samples to come."""
        self._tested = self._product = self._largest = 0.0
        self._samples: list[_Sample] = []
        self._span = known or Span()
        self._ends: list[tuple[str, float]] = []
        self._counts = False

    def add(
        self, truth: NDArray[Any], tested: NDArray[Any], sample: str = "", ties: NDArray[np.bool_] | None = None
    ) -> None:
        """Add one sample: the output as it should be, and as it is, of the same shape.

        Of integers and truths what counts is whether they are equal: 20 dB is one of a hundred that is not. Where
        `ties` is true, one is as good as the other.
        """
        if truth.dtype.kind in "biu":
            equal = truth == tested
            equal = equal if ties is None else equal | ties
            truth, tested = np.ones(truth.shape), equal.astype(np.float64)
            self._counts = True
        expected, actual = truth.astype(np.float64).ravel(), tested.astype(np.float64).ravel()
        same = ~np.isfinite(expected) & (expected == actual)  # masked scores: both are -inf
        if same.any():
            expected, actual = expected[~same], actual[~same]
        error = actual - expected
        signal, noise = float(expected @ expected), float(error @ error)
        self._tested += float(actual @ actual)
        self._product += float(expected @ actual)
        self._largest = float(np.maximum(self._largest, np.abs(error).max(initial=0.0)))
        self._samples.append(_Sample(sample, signal, noise, expected.size))
        self._span = self._span.over(expected)
        if actual.size:
            self._ends += [(sample, float(actual.min())), (sample, float(actual.max()))]

    @property
    def sqnr_db(self) -> float | None:
        """Energy of the truth over energy of the error, in dB; at most EXACT_DB, None if either isn't finite."""
        return sqnr_db(self._signal, sum(sample.noise for sample in self._samples))

    @property
    def median_db(self) -> float | None:
        """The median of the samples' SQNR in dB; None if one of them has none."""
        values = [value for _, value in self._each() if value is not None]
        return statistics.median(values) if values and len(values) == len(self._samples) else None

    @property
    def worst(self) -> tuple[str, float | None]:
        """The sample that is furthest off, and its SQNR; one without any comes first.

        A sample's error is held against its own signal or the mean one, whichever is more: where hardly anything is to
        be heard, an error may be as large as elsewhere.
        """
        return min(self._each(), key=lambda entry: -math.inf if entry[1] is None else entry[1])

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between all outputs as they should be and as they are, each as one vector."""
        lengths = math.sqrt(self._signal) * math.sqrt(self._tested)
        return self._product / lengths if lengths and math.isfinite(self._product) else None

    @property
    def outlier(self) -> Outlier | None:
        """The value that lies furthest outside of the truth's range, None if none does or values don't count."""
        far = max(((self._span.times_outside(value), sample, value) for sample, value in self._ends), default=None)
        if far is None or far[0] == 0 or self._counts or self._span.low > self._span.high:
            return None
        times, sample, value = far
        low, high = rounded(self._span.low, ".4g"), rounded(self._span.high, ".4g")
        return Outlier(sample, rounded(value, ".4g"), low or 0.0, high or 0.0, rounded(times, ".3g"))

    def figures(self) -> Figures:
        """All of these, rounded."""
        sample, worst = self.worst if self._samples else ("", None)
        return Figures(
            sqnr_db=rounded(self.sqnr_db, ".2f"),
            median_db=rounded(self.median_db, ".2f"),
            worst_db=rounded(worst, ".2f"),
            worst_sample=sample,
            cosine=rounded(self.cosine, ".6f"),
            max_abs_error=rounded(self._largest, ".3g"),
            outlier=self.outlier,
        )

    @property
    def _signal(self) -> float:
        return sum(sample.signal for sample in self._samples)

    def _each(self) -> list[tuple[str, float | None]]:
        count = sum(sample.count for sample in self._samples)
        power = self._signal / count if count else 0.0
        return [
            (sample.name, sqnr_db(max(sample.signal, power * sample.count), sample.noise)) for sample in self._samples
        ]


def sqnr_db(signal: float, noise: float) -> float | None:
    """Energy of a signal over energy of its error, in dB; at most EXACT_DB, None if it is no finite number."""
    if not math.isfinite(noise) or not math.isfinite(signal):
        return None
    if noise == 0:
        return EXACT_DB
    if signal == 0:
        return None
    return min(10 * math.log10(signal / noise), EXACT_DB)


def valid_outputs(padded: Outputs, truth: Outputs, rung: str) -> dict[str, NDArray[Any]]:
    """The valid region of every output: as much of it as the original model gives for the unpadded sample.

    Raises:
        VerificationError: an output has another rank than the original's, or is smaller.
    """
    for name, expected in truth.items():
        have = padded[name].shape
        if len(have) != expected.ndim or any(need > size for need, size in zip(expected.shape, have, strict=True)):
            raise VerificationError(
                f"output {name!r} is {list(have)} where the original model gives {list(expected.shape)}",
                where=f"rung {rung!r}",
                why="a dim of the output doesn't follow the bucket",
                remedy="look at what the shape step's log says about this output, or report it with the model",
            )
    return {name: valid_region(padded[name], expected.shape) for name, expected in truth.items()}


def valid_region(output: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The part of a padded model's output that the unpadded model has too: the first elements of every dim."""
    return output[tuple(slice(size) for size in shape)]


def rounded(value: float | None, form: str) -> float | None:
    """A number with the digits that `form` gives it; None for what is none, or infinite."""
    return float(format(value, form)) if value is not None and math.isfinite(value) else None
