"""What the CPU made of samples comes back as it was, of as many as there is room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts.verify import REFERENCES
from pipeline.inputs.samples import references
from pipeline.inputs.samples.references import Reference, keep, kept


def reference(number: int) -> Reference:
    values = np.full((2, 3), number, np.float32)
    return Reference({"b/odd": values, "a": values + 1}, {"a": values + 2, "b/odd": values + 3}, {"from": values + 4})


def same(one: Reference, other: Reference) -> bool:
    pairs = [(one.truth, other.truth), (one.above, other.above), (one.chosen_from, other.chosen_from)]
    return all(a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a) for a, b in pairs)


def test_they_come_back_by_their_places(tmp_path: Path) -> None:
    made = [reference(number) for number in range(4)]
    keep(tmp_path, made, [2, 0, 3, 1])
    found = kept(tmp_path, [0, 3], ["a", "b/odd"], ["from"])
    assert {*found} == {0, 3}
    assert all(same(found[place], made[place]) for place in found)


def test_the_first_in_order_are_kept_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "MAX_BYTES", 2 * 5 * 24)
    keep(tmp_path, [reference(number) for number in range(4)], [2, 0, 3, 1])
    assert {*kept(tmp_path, range(4), ["a", "b/odd"], ["from"])} == {0, 2}


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        keep(tmp_path / name, [reference(1)], [0])
    assert (tmp_path / "one" / REFERENCES).read_bytes() == (tmp_path / "other" / REFERENCES).read_bytes()
