"""The worst sample as a file that numpy opens: what went in, what should have come out, and what did."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.contracts.probe import WORST
from pipeline.graph.accuracy.figures.value_errors import ValueSums
from pipeline.graph.cpu import Arrays

_MOST_BYTES = 1 << 28


def write_worst(folder: Path, inputs: Arrays, expected: Arrays, got: Arrays) -> None:
    """Write arrays `input:NAME`, `expected:NAME` and `got:NAME` to `folder/worst.npz`; nothing if they are huge."""
    kinds = {"input": inputs, "expected": expected, "got": got}
    arrays = {f"{kind}:{name}": array for kind, given in kinds.items() for name, array in given.items()}
    if sum(array.nbytes for array in arrays.values()) <= _MOST_BYTES:
        np.savez(folder / WORST, **arrays)  # type: ignore[arg-type]  # every name has a colon: none is one of savez's


def error_db(expected: Arrays, got: Arrays) -> float:
    """SQNR in dB of the worst float output, infinite where all are equal."""
    figures = [float("inf")]
    for name, array in expected.items():
        if array.dtype.kind == "f":
            sums = ValueSums(None)
            sums.add(array, got[name])
            figures.append(-1e9 if sums.total_db is None else sums.total_db)
    return min(figures)
