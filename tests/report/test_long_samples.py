"""What the end of a build says of samples that are all about as long as a bucket."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.contracts import verify
from pipeline.contracts.measures import Truth
from pipeline.model import Manifest
from pipeline.report import remarks
from pipeline.report.account import Account
from pipeline.report.summary import Ran, last_lines


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
    lines = last_lines(Ran(["build"], unchanged={"words": Account(long=[named])})).splitlines()
    assert (
        f"Not shown, as no held-out sample is short: what fewer tokens, frames or pixels give of {named}."
        " Add short ones to the samples if the application has them."
    ) in lines
