"""How far the outputs of one model are from those of another, over many samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import VerificationError
from pipeline.model import Json
from pipeline.thresholds import EXACT_DB

Outputs = Mapping[str, NDArray[Any]]
"""What a model gives for one sample, by name."""


class Accuracy:
    """Sums over the elements of one output; memory does not grow with the elements."""

    def __init__(self) -> None:
        self._signal = self._noise = self._tested = self._product = self._largest = 0.0
        self._samples: list[tuple[str, float | None]] = []

    def add(self, truth: NDArray[Any], tested: NDArray[Any], sample: str = "") -> None:
        """Add one sample: the output as it should be, and as it is, of the same shape.

        Of integers and truths what counts is whether they are equal: 20 dB is one of a hundred that is not.
        """
        if truth.dtype.kind in "biu":
            truth, tested = np.ones(truth.shape), (truth == tested).astype(np.float64)
        expected, actual = truth.astype(np.float64).ravel(), tested.astype(np.float64).ravel()
        same = ~np.isfinite(expected) & (expected == actual)  # masked scores: both are -inf
        if same.any():
            expected, actual = expected[~same], actual[~same]
        error = actual - expected
        signal, noise = float(expected @ expected), float(error @ error)
        self._signal += signal
        self._noise += noise
        self._tested += float(actual @ actual)
        self._product += float(expected @ actual)
        self._largest = float(np.maximum(self._largest, np.abs(error).max(initial=0.0)))
        self._samples.append((sample, sqnr_db(signal, noise)))

    @property
    def sqnr_db(self) -> float | None:
        """Energy of the truth over energy of the error, in dB; at most EXACT_DB, None if either isn't finite."""
        return sqnr_db(self._signal, self._noise)

    @property
    def median_db(self) -> float | None:
        """The median of the samples' own SQNR in dB; None if one of them has none."""
        values = [value for _, value in self._samples if value is not None]
        return statistics.median(values) if values and len(values) == len(self._samples) else None

    @property
    def worst(self) -> tuple[str, float | None]:
        """The sample that is furthest off, and its SQNR; one without any comes first."""
        return min(self._samples, key=lambda entry: -math.inf if entry[1] is None else entry[1])

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between all outputs as they should be and as they are, each as one vector."""
        lengths = math.sqrt(self._signal) * math.sqrt(self._tested)
        return self._product / lengths if lengths and math.isfinite(self._product) else None

    def facts(self) -> dict[str, Json]:
        """``sqnr_db``, ``median_db``, ``worst_db``, ``worst_sample``, ``cosine`` and ``max_abs_error``.

        Rounded; null for what isn't a number.
        """
        sample, worst = self.worst if self._samples else ("", None)
        return {
            "sqnr_db": _rounded(self.sqnr_db, ".2f"),
            "median_db": _rounded(self.median_db, ".2f"),
            "worst_db": _rounded(worst, ".2f"),
            "worst_sample": sample,
            "cosine": _rounded(self.cosine, ".6f"),
            "max_abs_error": _rounded(self._largest, ".3g"),
        }


def sqnr_db(signal: float, noise: float) -> float | None:
    """Energy of a signal over energy of its error, in dB; at most EXACT_DB, None if it is no finite number."""
    if not math.isfinite(noise) or not math.isfinite(signal):
        return None
    if noise == 0:
        return EXACT_DB
    if signal == 0:
        return None
    return min(10 * math.log10(signal / noise), EXACT_DB)


def compare(names: Sequence[str], truth: Sequence[Outputs], tested: Sequence[Outputs]) -> dict[str, Json]:
    """The accuracy of each output over all samples, which have these `names`."""
    accuracies = {output: Accuracy() for output in truth[0]}
    for name, expected, actual in zip(names, truth, tested, strict=True):
        for output, accuracy in accuracies.items():
            accuracy.add(expected[output], actual[output], name)
    return {output: accuracy.facts() for output, accuracy in accuracies.items()}


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


def _rounded(value: float | None, form: str) -> float | None:
    return float(format(value, form)) if value is not None and math.isfinite(value) else None
