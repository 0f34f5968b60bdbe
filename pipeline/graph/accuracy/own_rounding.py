"""How far a file that rounds as it runs is from the floats that its weights stand for.

Files that were quantized for CPUs are built from those floats (docs/adr/0039), so contexts differ from such a file by
what its own rounding costs. Where one scale holds for all of a value, a few loud elements take the steps of the others:
a T5 encoder in dynamic int8 is 3 to 8 dB from its floats, and 15 dB from itself with padding behind the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.accuracy import sqnr_db
from pipeline.graph.cpu import load_session, run

SAMPLES = 4
"""Samples that are looked at."""
_STEP_DB = 5
"""What is told is rounded down to: what such a file gives differs between processors."""
_FAR_DB = 20
"""From here on a file is near its floats: that is what a context has to reach by default."""

Arrays = Mapping[str, NDArray[Any]]


def own_rounding_db(file: Path, floats: Path, calls: Sequence[Arrays]) -> int | None:
    """Less than so many dB of SQNR are between a file and its float model, in the output that is furthest off.

    In steps of 5 dB, 20 at most. None where it is more, or the file does not run on these calls.
    """
    if not calls:
        return None
    try:
        session, truth = load_session(file), load_session(floats)
        made = [(run(truth, call), run(session, call)) for call in calls]
    except Exception:
        # What it gives by itself is nothing that a build needs, and onnxruntime's exceptions have no base of their own:
        # it has no kernel for some operators that are built all the same.
        return None
    worst = math.inf
    for name, expected in made[0][0].items():
        if name in made[0][1] and expected.dtype.kind == "f":
            worst = min(worst, _between([(original[name], own[name]) for original, own in made]))
    return None if worst >= _FAR_DB else _STEP_DB * (math.floor(max(worst, 0.0) / _STEP_DB) + 1)


def _between(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    signal = noise = 0.0
    for expected, own in pairs:
        if expected.shape != own.shape:
            return math.inf
        truth = expected.astype(np.float64)
        signal += float((truth**2).sum())
        noise += float(((own - truth) ** 2).sum())
    found = sqnr_db(signal, noise)
    return math.inf if found is None else found
