"""What a model loses by its float inputs alone, where a chip takes them in float16.

HTP has no float32: whatever comes in is rounded to 11 bits before anything can be computed with it. Most models don't
hear that, as what they were trained on was noisier. One that takes the logarithm of what is 70 dB below the loudest
does, and no scheme cures it: 16 bit integers are as coarse, and all that follows has the rounding in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.figures.accuracy import Outputs, sqnr_db
from pipeline.graph.accuracy.figures.worst_sample import error_db
from pipeline.graph.cpu import Arrays, load_session, run

_SHARE_DB = 6.0
"""An error is the inputs' if their rounding alone makes a quarter of its power."""


def rounded_db(model: Path, feeds: Sequence[Arrays]) -> list[float]:
    """The SQNR in dB that rounded inputs, with all else in float32, leave of each sample's worst float output."""
    session = load_session(model)
    return [error_db(run(session, feed), run(session, _rounded(feed))) for feed in feeds]


def _rounded(feed: Arrays) -> Arrays:
    return {
        name: array.astype(np.float16).astype(array.dtype) if array.dtype == np.float32 else array
        for name, array in feed.items()
    }


def left_at_the_edge_db(model: Path, feeds: Sequence[Arrays], outputs: Collection[str]) -> float:
    """The SQNR in dB that no precision exceeds in the worst of these outputs, over all feeds, for what goes in alone.

    Of each float input by itself, rounded to float16 or to 16 bit integers, whichever leaves more: the least. Infinite
    for a model without float inputs.
    """
    session = load_session(model)
    expected = [run(session, feed) for feed in feeds]
    found = [np.inf]
    for name in [name for name, array in feeds[0].items() if array.dtype == np.float32]:
        given = [feed[name] for feed in feeds]
        step = _step(given)
        forms = (
            [array.astype(np.float16).astype(np.float32) for array in given],
            [(np.round(array / step) * step).astype(np.float32) for array in given],
        )
        got = ([run(session, {**feed, name: array}) for feed, array in zip(feeds, form, strict=True)] for form in forms)
        found.append(max(_pooled_db(expected, each, outputs) for each in got))
    return float(min(found))


def _step(arrays: Sequence[NDArray[np.float32]]) -> float:
    """The scale of the finest 16 bit encoding that holds these, and zero."""
    low, high = min(0.0, *(float(array.min()) for array in arrays)), max(0.0, *(float(array.max()) for array in arrays))
    return (high - low) / 65535 or 1.0


def _pooled_db(expected: Sequence[Outputs], got: Sequence[Outputs], outputs: Collection[str]) -> float:
    """The least figure of these outputs, each over all samples."""
    figures = [
        _db(*(np.concatenate([np.ravel(one[name]) for one in ones]) for ones in (expected, got))) for name in outputs
    ]
    return min(figures, default=np.inf)


def lost_by_inputs(model: Path, feeds: Arrays, expected: Outputs, got: Outputs) -> float | None:
    """The SQNR in dB that rounded inputs leave of the output that is furthest off on the chip.

    None if something else makes most of its error. `expected` and `got` are what the model gives for `feeds` on the CPU
    and on the chip.
    """
    figures = {name: _db(array, got[name]) for name, array in expected.items() if array.dtype.kind == "f"}
    if not figures:
        return None
    worst = min(figures, key=lambda name: figures[name])
    left = _db(expected[worst], run(load_session(model), _rounded(feeds))[worst])
    return round(left, 1) if np.isfinite(left) and left <= figures[worst] + _SHARE_DB else None


def _db(expected: np.ndarray, actual: np.ndarray) -> float:
    wanted, made = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    found = sqnr_db(float(wanted @ wanted), float((made - wanted) @ (made - wanted)))
    return -np.inf if found is None else found
