"""Watches what an application gives: refuses what is no number, and counts what lies beyond all that the build saw."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, RangeWarning
from .index import Component, Tensor
from .report import InputReport


@dataclass
class _Watched:
    """An input of floats, and the runs in which it had numbers outside of `seen`, which lie from `low` to `high`."""

    tensor: Tensor
    seen: tuple[float, float]
    runs: int = 0
    low: float = np.inf
    high: float = -np.inf


class Domains:
    """The inputs of floats of one component. Safe to use from several threads."""

    def __init__(self, component: Component) -> None:
        self._component = component.name
        self._inputs = [_Watched(tensor, tensor.seen) for tensor in component.inputs if tensor.seen is not None]
        self._lock = threading.Lock()

    def check(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Look at the inputs of a run; raises InputError for a NaN that the model does not take, or an infinity.

        The first number of an input beyond all that the build saw is a RangeWarning.
        """
        for each in self._inputs:
            array, (least, most) = inputs[each.tensor.name], each.seen
            if array.size and not (array.min() >= least and array.max() <= most):  # so it is for NaN, too
                self._look(each, array)

    def report(self) -> list[InputReport]:
        """The inputs that had numbers beyond all that the build saw."""
        with self._lock:
            return [
                InputReport(self._component, each.tensor.name, each.seen, each.runs, (each.low, each.high))
                for each in self._inputs
                if each.runs
            ]

    def _look(self, each: _Watched, array: NDArray[Any]) -> None:
        wrong = np.isinf(array) if each.tensor.takes_nan else ~np.isfinite(array)
        if wrong.any():
            raise self._no_number(each.tensor, array, wrong)
        low, high = float(np.fmin.reduce(array, axis=None)), float(np.fmax.reduce(array, axis=None))
        least, most = each.seen
        if not (low < least or high > most):
            return
        with self._lock:
            each.runs += 1
            each.low, each.high = min(each.low, low), max(each.high, high)
            is_first = each.runs == 1
        if is_first:
            warnings.warn(
                f"input {each.tensor.name} of {self._component} has numbers from {low:.6g} to {high:.6g}, the build saw"
                f" {least:.6g} to {most:.6g}: what comes of them was not measured; release.report() counts such runs",
                RangeWarning,
                stacklevel=4,
            )

    def _no_number(self, tensor: Tensor, array: NDArray[Any], wrong: NDArray[np.bool_]) -> InputError:
        place = [int(at) for at in np.argwhere(wrong)[0]]
        more = int(wrong.sum()) - 1
        return InputError(
            f"input {tensor.name} of {self._component} holds {array[tuple(place)]}",
            where=f"{self._component}, {tensor.name} at {place}" + (f", and {more} more" if more else ""),
            why="the NPU has no infinities, and would take it for a number"
            if tensor.takes_nan
            else "the model replaces no NaN in this input, and the NPU would take it for a number",
            next="give the number that is meant",
        )
