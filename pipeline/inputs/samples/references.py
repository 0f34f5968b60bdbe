"""What the CPU made of held-out samples, kept so that no target has it computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pipeline.contracts.verify import REFERENCES
from pipeline.inputs.samples.sample_set import load_npz, write_npz

MAX_BYTES = 64 << 20
"""Bytes of the outputs that are kept; a target computes the others itself."""

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Reference:
    """What one sample gave: by the original, by the last model before the compiler, and what ArgMax outputs chose from.

    Arrays by name, all valid parts; `chosen_from` as :func:`pipeline.graph.accuracy.choices.values_of` gives it.
    """

    truth: Values
    above: Values
    chosen_from: Values


def keep(folder: Path, references: Sequence[Reference], order: Sequence[int]) -> None:
    """Write the references of the first samples in `order`, by their places, as many as :data:`MAX_BYTES` hold."""
    arrays: dict[str, NDArray[Any]] = {}
    used = 0
    for place in order:
        given = _named(place, references[place])
        used += sum(array.nbytes for array in given.values())
        if used > MAX_BYTES:
            break
        arrays |= given
    write_npz(folder / REFERENCES, arrays)


def kept(
    folder: Path, places: Sequence[int], outputs: Sequence[str], chosen_from: Sequence[str]
) -> dict[int, Reference]:
    """The references of those samples at these places that were kept.

    `outputs` and `chosen_from` are the names of what :func:`keep` was given.
    """
    arrays = load_npz(folder / REFERENCES)

    def part(place: int, kind: str, names: Sequence[str]) -> Values:
        return {name: arrays[_key(place, kind, number)] for number, name in enumerate(sorted({*names}))}

    found = {}
    for place in places:
        with contextlib.suppress(KeyError):  # it was one too many
            truth, above = part(place, "truth", outputs), part(place, "above", outputs)
            found[place] = Reference(truth, above, part(place, "chosen_from", chosen_from))
    return found


def _named(place: int, reference: Reference) -> dict[str, NDArray[Any]]:
    """The arrays by keys of ours: what a model calls its outputs need not be a name that an archive takes."""
    parts = {"truth": reference.truth, "above": reference.above, "chosen_from": reference.chosen_from}
    return {
        _key(place, kind, number): values[name]
        for kind, values in parts.items()
        for number, name in enumerate(sorted(values))
    }


def _key(place: int, kind: str, number: int) -> str:
    return f"{place}-{kind}-{number}"
