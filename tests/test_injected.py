"""A few of the injected faults, of which `python -m tests.injected` tries as many as are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.injected.inject import Fault
from tests.injected.ladders import Ladder, ladders
from tests.injected.policies import DEFAULT, Policy
from tests.injected.verdicts import Kept, Verdict, judge, run_all, table

pytestmark = pytest.mark.slow

SEED = 3
SHARED = Policy("30 s", 30.0)
COUNTS = {"attention": (3, 2, 1), "convolutions": (3, 2, 1), "encoder": (3, 2, 1)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ladder]:
    return {name: make(tmp_path_factory.mktemp(name), SEED) for name, make in ladders().items()}


@pytest.fixture(scope="module")
def kept(made: dict[str, Ladder], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    kept = Kept(tmp_path_factory.mktemp("kept"))
    assert len([*run_all(made, 3, SEED, kept, tmp_path_factory.mktemp("runs"))]) == 3 * len(made)
    return kept


@pytest.fixture(scope="module")
def verdicts(made: dict[str, Ladder], kept: Kept) -> list[Verdict]:
    return [judge(made[fault.model], fault, kept) for fault in kept.faults()]


def test_no_fault_is_missed_that_all_samples_show(verdicts: list[Verdict]) -> None:
    assert [each for each in verdicts if each.is_missed] == []
    shown = sum(each.shown and not each.fault.refused for each in verdicts)
    assert shown >= 3, "faults of which none shows prove nothing"


def test_the_default_runs_few_samples_of_what_costs_as_much_as_minilm(made: dict[str, Ladder]) -> None:
    for name, ladder in made.items():
        assert tuple(DEFAULT.count(ladder, bucket) for bucket in ladder.faulty) == COUNTS[name]
        assert all(DEFAULT.count(ladder, each) < SHARED.count(ladder, each) for each in ladder.faulty)


def test_the_table_has_what_each_policy_saw(verdicts: list[Verdict], made: dict[str, Ladder]) -> None:
    rows = {line.split("|")[1].strip(): line.split("|")[-3].strip() for line in table(verdicts, made).splitlines()[2:]}
    refused = sum(bool(each.fault.refused) for each in verdicts)
    assert (rows["faults"], rows["refused"]) == (str(len(verdicts)), str(refused))
    assert rows["default"] == rows["shown by all samples"] == rows["30 s"]


def test_a_fault_follows_from_its_model_the_seed_and_its_number_and_is_not_run_again(
    made: dict[str, Ladder], kept: Kept, tmp_path: Path
) -> None:
    one = {"attention": made["attention"]}
    (again,) = run_all(one, 1, SEED, Kept(tmp_path / "kept"), tmp_path / "runs")
    assert again in kept.faults()
    assert [*run_all(made, 3, SEED, kept, tmp_path / "none")] == []


def test_a_model_that_misses_a_gate_without_a_fault_is_refused(made: dict[str, Ladder], tmp_path: Path) -> None:
    class Deaf(Ladder):
        def __init__(self, sound: Ladder) -> None:
            self.__dict__.update(sound.__dict__)

        def ran(self, *_: object) -> str:
            return "QNN is not there"

    with pytest.raises(ValueError, match="bucket 16 of attention misses a gate without a fault: QNN is not there"):
        list(run_all({"attention": Deaf(made["attention"])}, 1, SEED, Kept(tmp_path), tmp_path))


def test_a_fault_that_the_compiler_refuses_is_seen_by_all(made: dict[str, Ladder], kept: Kept) -> None:
    refused = Fault("attention", SEED, 0, "wiring", "16", "none", refused="no such operator")
    verdict = judge(made["attention"], refused, kept)
    assert not verdict.is_missed
    assert DEFAULT.name in verdict.seen
