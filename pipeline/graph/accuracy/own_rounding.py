"""How far a file that rounds as it runs is from the floats that its weights stand for.

Files that were quantized for CPUs are built from those floats (docs/adr/0039), so contexts differ from such a file by
what its own rounding costs. Where one scale holds for all of a value, a few loud elements take the steps of the others:
a T5 encoder in dynamic int8 is 3 to 8 dB from its floats, and 15 dB from itself with padding behind the text. It may do
so in few samples: a detector of turns in static int8 has 0.01 for one in ten recordings where its floats have 0.55.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.accuracy import sqnr_db
from pipeline.graph.cpu import load_session, run

_SAMPLES = 16
"""Calls that are looked at, evenly spread: those that lie side by side are often of one kind."""
_STEP_DB = 5
"""What is told is rounded down to: what such a file gives differs between processors."""
_FAR_DB = 20
"""From here on a file is near its floats: that is what a context has to reach by default."""

Arrays = Mapping[str, NDArray[Any]]


def looked_at(count: int) -> Sequence[int]:
    """Which of so many calls are run, by number."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(_SAMPLES, count)).tolist()})


def own_rounding_db(file: Path, floats: Path, calls: Iterable[Arrays]) -> int | None:
    """Less than so many dB are between a file and its float model, in the call and the output that are furthest off.

    The error of a call is held against what the output has on average over all: a small probability in one of them is
    no reason to count it. NaN or an infinity where the floats have a number is nothing like them, 0 dB; so is anything
    but silence where all calls are silent. In steps of 5 dB, 20 at most. None where it is more, or the file does not
    run on these calls, or the floats make no number of them.
    """
    figures: dict[str, list[tuple[float, float]]] = {}
    try:
        session, truth = load_session(file), load_session(floats)
        for call in calls:
            expected, own = run(truth, call), run(session, call)
            for name, array in expected.items():
                alike = name in own and array.dtype.kind == "f" and array.shape == own[name].shape
                if alike and array.size and np.isfinite(array).all():
                    figures.setdefault(name, []).append(_powers(array, own[name]))
    except Exception:
        # What it gives by itself is nothing that a build needs, and onnxruntime's exceptions have no base of their own:
        # it has no kernel for some operators that are built all the same.
        return None
    worst = min((_worst_db(powers) for powers in figures.values()), default=math.inf)
    return None if worst >= _FAR_DB else _STEP_DB * (math.floor(max(worst, 0.0) / _STEP_DB) + 1)


def _powers(expected: NDArray[Any], own: NDArray[Any]) -> tuple[float, float]:
    """The mean square of what is expected, all of it finite, and of the error."""
    truth = expected.astype(np.float64)
    noise = float(((own - truth) ** 2).mean())
    return float((truth**2).mean()), noise if math.isfinite(noise) else math.inf  # max() goes wrong with a NaN


def _worst_db(powers: Sequence[tuple[float, float]]) -> float:
    signals, noises = zip(*powers, strict=True)
    found = sqnr_db(sum(signals) / len(signals), max(noises))
    return 0.0 if found is None else found
