"""What the end of a build says of samples that are all about as long as a bucket, or too short to need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.contracts import verify
from pipeline.contracts.measures import Truth
from pipeline.contracts.samples import Facts as SetFacts
from pipeline.model import Manifest
from pipeline.report import remarks
from pipeline.report.account import Account
from pipeline.report.remark_lines import Kind
from pipeline.report.summary import Ran, last_lines

PADDED: Mapping[Kind, Any] = {"unneeded": remarks.unneeded, "kept": remarks.kept}


def told(lengths: tuple[int, ...], buckets: tuple[int, ...] = (32, 64), truth: Truth = "unpadded") -> list[str]:
    steps: list[Any] = [
        SimpleNamespace(
            stage="verify", id=str(size), component="net", config=SimpleNamespace(name="words"),
            bucket=SimpleNamespace(axes={"sequence": size}),
        )
        for size in buckets
    ]  # fmt: skip
    facts = replace(verify.UNMEASURED, lengths={"sequence": lengths} if lengths else {}, truth=truth)
    manifests = {step.id: Manifest(step.id, "", {}, facts.to_json()) for step in steps}
    return remarks.long(steps, {step.id for step in steps}, manifests)


@pytest.mark.parametrize("buckets", [(32, 64), (64, 32)])
def test_samples_that_nearly_fill_the_smallest_bucket_are_told_of(buckets: tuple[int, ...]) -> None:
    assert told((17, 31, 60), buckets) == ["words/net (sequence 17 to 60, smallest bucket 32)"]


@pytest.mark.parametrize(
    ("lengths", "truth"),
    [((16, 31), "unpadded"), ((32, 40), "unpadded"), ((), "unpadded"), ((30, 31), "padded"), ((30, 31), "exact")],
)
def test_nothing_is_told_of_others(lengths: tuple[int, ...], truth: Truth) -> None:
    assert told(lengths, truth=truth) == []


def test_the_last_lines_say_what_to_add() -> None:
    named = "words/net (sequence 17 to 60, smallest bucket 32)"
    lines = last_lines(Ran(["build"], unchanged={"words": Account(remarks={"long": [named]})})).splitlines()
    assert (
        f"Not shown, as no held-out sample is short: what fewer tokens, frames or pixels give of {named}."
        " Add short ones to the samples if the application has them."
    ) in lines


WHOSE = "(all samples of 'calibration' have sequence 5 to 18)"


@pytest.mark.parametrize(
    ("samples", "shorter", "lengths", "unneeded", "said"),
    [
        (4, 4, (5, 18), ("128",), {"unneeded": [f"words/net/128 {WHOSE}"]}),
        (4, 4, (5, 18), ("64",), {"kept": [f"words/net/128 {WHOSE}"]}),
        (4, 4, (5, 18), None, {"kept": [f"words/net/128 {WHOSE}"]}),
        (4, 4, (), ("128",), {"unneeded": ["words/net/128"]}),
        (4, 3, (5, 90), None, {}),
        (0, 0, (), ("128",), {}),
    ],
)
def test_buckets_that_samples_of_smaller_ones_stand_in_for_are_told_of(
    samples: int,
    shorter: int,
    lengths: tuple[int, ...],
    unneeded: tuple[str, ...] | None,
    said: dict[str, list[str]],
) -> None:
    config = SimpleNamespace(name="words", verification=SimpleNamespace(samples=None))
    step: Any = SimpleNamespace(
        stage="verify", id="v", name="words/net/128", component="net", config=config, ingests={},
        bucket=SimpleNamespace(name="128", axes={"sequence": 128}),
    )  # fmt: skip
    facts = replace(verify.UNMEASURED, samples=samples, shorter=shorter)
    facts = replace(facts, lengths={"sequence": lengths} if lengths else {})
    read = SetFacts({"net": 4}, 4, 0, {}, unneeded={"net": unneeded} if unneeded else None)
    whole = "samples:words/calibration"
    manifests = {"v": Manifest("v", "", {}, facts.to_json()), whole: Manifest(whole, "", {}, read.to_json())}
    found = {kind: find([step], {*manifests}, manifests) for kind, find in PADDED.items()}
    assert {kind: names for kind, names in found.items() if names} == said
    lines = last_lines(Ran(["build"], unchanged={"words": Account(remarks=found)})).splitlines()
    told = [line for line in lines if "what longer ones give in words/net/128" in line]
    assert [line.endswith("; or drop the bucket.") for line in told] == [kind == "unneeded" for kind in said]


@pytest.mark.parametrize(
    ("samples", "calls", "own", "said"),
    [
        (1, 1, False, {"alone": ["words/net/128"], "few": ["words/net (one sample)"]}),
        (1, 9, False, {"alone": ["words/net/128"]}),
        (1, 1, True, {"unmeasured": ["words/net/128"], "few": ["words/net (one sample)"]}),
        (3, 3, True, {"unmeasured": ["words/net/128"], "few": ["words/net (3 samples)"]}),
        (4, 4, False, {"unmeasured": ["words/net/128"]}),
    ],
)
def test_a_set_of_next_to_nothing_is_told_with_how_many_to_give(
    samples: int, calls: int, own: bool, said: dict[str, list[str]]
) -> None:
    config = SimpleNamespace(name="words", verification=SimpleNamespace(samples="others" if own else None))
    steps: Any = [
        SimpleNamespace(stage=stage, id=stage, name=f"words/net{end}", component="net", config=config, bucket=None)
        for stage, end in (("calibrate", ""), ("verify", "/128"))
    ]
    read = SetFacts({"net": calls}, samples, 0, {})
    manifests = {
        "verify": Manifest("verify", "", {}, verify.UNMEASURED.to_json()),
        "calibrate": Manifest("calibrate", "", {}, {}),
        "samples:words/calibration": Manifest("samples", "", {}, read.to_json()),
    }
    kinds: tuple[Kind, ...] = ("unmeasured", "alone", "few")
    found = {kind: remarks.FINDERS[kind](steps, {*manifests}, manifests) for kind in kinds}
    assert {kind: names for kind, names in found.items() if names} == said
    text = last_lines(Ran(["build"], unchanged={"words": Account(remarks=found)}))
    assert text.count("16 to 64") == len(said.keys() & {"alone", "few"})
    assert ("which can't both give the ranges and show what they are worth" in text) == ("alone" in said)
