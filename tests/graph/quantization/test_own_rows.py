"""Own rows are told from lengths where three samples agree, and looked for anywhere else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.quantization.weights.valid_rows import OwnRows, Shapes


def shapes(length: int) -> Shapes:
    return ((1, length), (1, length, 4))


def first(count: int, of: int) -> NDArray[np.bool_]:
    return np.arange(of) < count


def test_a_fourth_length_is_told() -> None:
    own = OwnRows()
    for length in (5, 3, 7):
        assert own.told(shapes(length)) is None
        along = np.broadcast_to(first(length, 9), (2, 9)).reshape(-1)
        own.learn(shapes(length), {"a": ((1, 9), first(length, 9)), "b": ((2, 9), along), "c": ((6,), first(6, 6))})

    told = own.told(shapes(4))

    assert told is not None
    assert [rows.tolist() for rows in told.values()] == [
        first(4, 9).tolist(),
        [*first(4, 9).tolist(), *first(4, 9).tolist()],
        [True] * 6,
    ]


def test_rows_that_go_by_no_length_are_looked_for() -> None:
    own = OwnRows()
    for length in (4, 6, 8, 10):
        own.learn(shapes(length), {"a": ((12,), first(length, 12)), "half": ((6,), first(length // 2, 6))})
    assert own.told(shapes(5)) is None


def test_rules_that_say_different_things_of_a_sample_tell_nothing() -> None:
    own = OwnRows()
    for length in (4, 6, 8):
        own.learn(((length, length),), {"a": ((12,), first(length, 12))})
    assert own.told(((5, 5),)) is not None
    assert own.told(((5, 7),)) is None


def test_one_sample_that_differs_ends_it() -> None:
    own = OwnRows()
    for length in (4, 6, 8):
        own.learn(shapes(length), {"a": ((12,), first(length, 12))})
    own.learn(shapes(9), {"a": ((12,), first(11, 12))})
    assert own.told(shapes(5)) is None
