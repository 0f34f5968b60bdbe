"""What is said where no worker of a cluster makes a step."""

from __future__ import annotations

import pytest

from pipeline.build.cluster import REFUSALS_REMEDY
from pipeline.build.cluster.dispatcher import nobody

OLD = {"old": "onnx is 1.23.1 here and 1.23.2 there"}
RULES = (("x86_64", "sm8650"), ("compiler",))
WHAT = "no worker of the cluster may run shape:m/x"


@pytest.mark.parametrize(
    ("rules", "there", "refused", "what", "why", "remedy", "hosts"),
    [
        (
            (), ["old"], OLD, f"{WHAT}: the only one that is there was refused",
            f"old was refused: {OLD['old']}", f"{REFUSALS_REMEDY}; then run the same command again", (),
        ),
        (
            RULES, ["a", "b"], {"a": "x", "b": "y"}, f"{WHAT}: all 2 that are there were refused",
            "it needs x86_64 or sm8650 and compiler; a was refused: x; b was refused: y",
            f"{REFUSALS_REMEDY}; then run the same command again", (),
        ),
        (
            RULES, ["old", "other"], OLD, WHAT,
            f"it needs x86_64 or sm8650 and compiler; old was refused: {OLD['old']}",
            f"{REFUSALS_REMEDY}; or start a worker on such a host (docs/cluster.md)", RULES[0],
        ),
        (
            RULES, ["other"], {}, WHAT, "it needs x86_64 or sm8650 and compiler",
            "start a worker on such a host (docs/cluster.md)", RULES[0],
        ),
        ((), [], {}, WHAT, "no worker is there", "start one (docs/cluster.md)", ()),
    ],
)  # fmt: skip
def test_who_may_not_and_why(
    rules: tuple[tuple[str, ...], ...],
    there: list[str],
    refused: dict[str, str],
    what: str,
    why: str,
    remedy: str,
    hosts: tuple[str, ...],
) -> None:
    error = nobody("shape:m/x", "tcp://one:8786", rules, there, refused)
    assert (error.what, error.why, error.remedy, error.hosts) == (what, why, remedy, hosts)
    assert (error.where, error.step, error.of_cluster) == ("tcp://one:8786", "shape:m/x", True)


def test_many_that_were_refused_are_counted() -> None:
    refused = {str(number): "it runs another commit" for number in range(300)}
    why = nobody("shape:m/x", "", (), refused, refused).why
    assert why.endswith("3 was refused: it runs another commit; so were 296 more")
