from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.store.costs import Cost, Costs

CONTEXT = "context:minilm/encoder/64/sm8650"
COST = Cost(seconds=3.5, cpu_seconds=3.1, peak_bytes=400_000_000, input_bytes=23_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    costs = Costs(tmp_path / "costs.json")
    costs.learn(CONTEXT, COST)
    costs.save()
    return tmp_path / "costs.json"


def test_what_was_learned_is_known_to_the_next_build(path: Path) -> None:
    costs = Costs(path)
    assert costs.seconds(CONTEXT) == 3.5
    assert costs.peak_bytes(CONTEXT, COST.input_bytes) == COST.peak_bytes


def test_a_bucket_that_never_ran_is_taken_to_be_like_the_largest_that_did(path: Path) -> None:
    costs = Costs(path)
    costs.learn("context:minilm/encoder/128/sm8650", Cost(5.0, 5.0, 500_000_000, COST.input_bytes))
    costs.save()
    again = Costs(path)
    assert again.peak_bytes("context:minilm/encoder/256/sm8650", COST.input_bytes) == 500_000_000
    assert again.peak_bytes("context:bert/encoder/256/sm8650", 0) == 300 << 20, "of another model nothing is known"


def test_of_what_never_ran_the_larger_bucket_takes_longer(path: Path, tmp_path: Path) -> None:
    for costs in (Costs(path), Costs(tmp_path / "none.json")):
        small, large = (costs.seconds("context:minilm/encoder/8/sm8650", share) for share in (0.25, 1.0))
        assert small < large
    assert Costs(path).seconds(CONTEXT, 0.25) == 3.5, "what ran is known"


def test_memory_grows_with_the_inputs_and_does_not_shrink(path: Path) -> None:
    costs = Costs(path)
    assert costs.peak_bytes(CONTEXT, COST.input_bytes * 3) == COST.peak_bytes * 3
    assert costs.peak_bytes(CONTEXT, 10) == COST.peak_bytes


def test_without_inputs_there_is_nothing_to_grow_with(path: Path) -> None:
    costs = Costs(path)
    costs.learn("fetch:demo", Cost(1.0, 1.0, 60_000_000, 0))
    assert costs.peak_bytes("fetch:demo", 1_200_000) == 60_000_000


def test_a_step_that_was_killed_is_taken_to_need_twice_as_much(path: Path) -> None:
    for factor in (2, 4):
        costs = Costs(path)
        costs.learn_killed(CONTEXT, costs.peak_bytes(CONTEXT, COST.input_bytes), COST.input_bytes)
        costs.save()
        assert Costs(path).peak_bytes(CONTEXT, COST.input_bytes) == COST.peak_bytes * factor
    assert Costs(path).seconds(CONTEXT) == COST.seconds, "of the time nothing was learned"


def test_without_knowledge_larger_inputs_need_more(tmp_path: Path) -> None:
    costs = Costs(tmp_path / "costs.json")
    assert costs.peak_bytes(CONTEXT, 2_000_000_000) > 2 * costs.peak_bytes(CONTEXT, 100_000_000)
    assert costs.seconds("emulate:a/b/8/c") > costs.seconds("shape:a/b/8")
    assert costs.seconds("a-stage-to-come:a/b") > 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"a": 1}', '{"a": {"seconds": 1}}', '{"a": {"seconds": "x"}}', "\udcff"]
)
def test_a_file_that_is_not_ours_is_no_knowledge_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text, "utf-8", "surrogateescape")
    costs = Costs(path)
    assert costs.seconds(CONTEXT) > 0
    costs.learn(CONTEXT, COST)
    costs.save()
    assert Costs(path).seconds(CONTEXT) == 3.5


def test_two_builds_keep_what_both_learned(path: Path) -> None:
    first, second = Costs(path), Costs(path)
    first.learn("verify:a/b/8", COST)
    second.learn("verify:a/b/16", COST)
    first.save()
    second.save()
    assert {CONTEXT, "verify:a/b/8", "verify:a/b/16"} == set(json.loads(path.read_text())["steps"])


def test_a_build_that_learned_nothing_writes_nothing(tmp_path: Path) -> None:
    Costs(tmp_path / "costs.json").save()
    assert list(tmp_path.iterdir()) == []
