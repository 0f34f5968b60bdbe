"""In which order samples are emulated: a budget that ends early has then seen what matters most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.emulation.table_rows import Rows
from pipeline.graph.accuracy.figures.edges import EDGE, KINDS, Criteria

_BY_ROWS = 64
"""Samples at most that are chosen by the rows that they read: more are hardly ever emulated."""


def sample_order(
    touched: Sequence[Criteria],
    worst: Iterable[int] = (),
    errors_db: Sequence[float] = (),
    rows: Sequence[Rows] = (),
) -> list[int]:
    """The places of all samples, first `worst`, then by turns.

    These are: reads most rows that none before it reads, nearest to an edge, to zero, extreme, evenly spread.

    `touched` says how far each sample stays from each edge, `rows` what each reads of tables: what no sample reads is
    not measured. Evenly is from the one with most error to that with least, of what is known of each before it is
    emulated (`errors_db`, SQNR): by their numbers, a kind of samples may be missed. Every beginning of the order has
    some of all kinds.
    """
    worst = [*worst]
    nearest = _nearest(touched)
    turns: list[Iterator[int]] = [by_new_rows(rows, worst), *(iter(_ranked(kind, nearest)) for kind in KINDS)]
    by_error = sorted(range(len(touched)), key=errors_db.__getitem__) if errors_db else range(len(touched))
    turns.append(by_error[place] for place in spread(len(touched)))
    order = dict.fromkeys(worst)
    while turns:
        for turn in list(turns):
            place = next((place for place in turn if place not in order), None)
            if place is None:
                turns.remove(turn)
            else:
                order[place] = None
    return list(order)


def by_new_rows(rows: Sequence[Rows], known: Iterable[int] = ()) -> Iterator[int]:
    """The sample that reads most rows that neither the `known` ones nor those before it read, until there is none."""
    if not rows or not rows[0]:
        return
    reads = np.concatenate([_who_reads([each[name] for each in rows]) for name in rows[0]], axis=1)
    new = ~reads[[*known]].any(axis=0)
    for _ in range(min(_BY_ROWS, len(rows))):
        counts = np.count_nonzero(reads & new, axis=1)
        best = int(counts.argmax())
        if not counts[best]:
            return
        new &= ~reads[best]
        yield best


def _who_reads(rows: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Whether a sample reads a row: bool [samples, rows that any reads]."""
    known = np.unique(np.concatenate(rows))
    reads = np.zeros((len(rows), known.size), np.bool_)
    for place, each in enumerate(rows):
        reads[place, np.searchsorted(known, each)] = True
    return reads


def spread(count: int) -> Iterator[int]:
    """The numbers below `count`, such that those so far are spread evenly over all: 0, a half, a quarter, ..."""
    bits = max(count - 1, 1).bit_length()
    mirrored = (int(format(number, f"0{bits}b")[::-1], 2) for number in range(1 << bits))
    yield from dict.fromkeys(place * count >> bits for place in mirrored if count)


def _nearest(touched: Sequence[Criteria]) -> dict[str, int]:
    """The sample that comes nearest to each edge; the first of several, and none where all are equally near."""
    best: dict[str, tuple[float, int]] = {}
    differs: set[str] = set()
    for place, distances in enumerate(touched):
        for name, distance in distances.items():
            known = best.setdefault(name, (distance, place))
            if distance != known[0] or (place and name not in touched[0]):
                differs.add(name)
            if distance < known[0]:
                best[name] = (distance, place)
    return {name: place for name, (_, place) in best.items() if name in differs}


def _ranked(kind: str, nearest: dict[str, int]) -> list[int]:
    """The samples that touch edges of a kind: of operators in the graph's order, else who touches most comes first."""
    places = [place for name, place in nearest.items() if name.startswith(kind)]
    if kind == EDGE:
        return list(dict.fromkeys(places))
    return [place for place, _ in sorted(Counter(places).items(), key=lambda entry: (-entry[1], entry[0]))]
