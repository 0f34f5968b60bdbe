"""Keeps the CPU's outputs for held-out samples, so that they are not computed again for each target."""

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
"""The most bytes of outputs that are kept. The `emulate` step of each target computes the others itself."""

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Reference:
    """The valid outputs for one sample, by name: of the original (`truth`), and of the model to compile (`above`).

    `chosen_from` has the values from which ArgMax outputs are chosen, as
    :func:`pipeline.graph.accuracy.figures.choices.values_of` gives them.
    """

    truth: Values
    above: Values
    chosen_from: Values


def keep(folder: Path, references: Sequence[Reference], order: Sequence[int]) -> None:
    """Write the references of the first samples in `order`, a list of places, as many as fit into :data:`MAX_BYTES`."""
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
    """The references of the samples at these places, by place, without those that were not kept.

    `outputs` and `chosen_from` are the names of the arrays that :func:`keep` was given.
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
    """The arrays under keys of ours, as an archive does not take every name that a model may give an output."""
    parts = {"truth": reference.truth, "above": reference.above, "chosen_from": reference.chosen_from}
    return {
        _key(place, kind, number): values[name]
        for kind, values in parts.items()
        for number, name in enumerate(sorted(values))
    }


def _key(place: int, kind: str, number: int) -> str:
    return f"{place}-{kind}-{number}"
