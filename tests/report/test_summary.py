"""The last lines of a build that failed, or had nothing to do."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from pipeline.errors import ModelError
from pipeline.report.account import Account
from pipeline.report.remark_lines import TOLD, Kind, remark_lines
from pipeline.report.remarks import FINDERS
from pipeline.report.summary import BuildFailure, Ran, last_lines, told

ERROR = ModelError("the source has no file 'model.onnx'", why="it has none", remedy="correct it")


def lines(*failures: BuildFailure) -> list[str]:
    return last_lines(Ran(["build"], failures=failures)).splitlines()


def test_steps_that_met_the_same_are_counted_and_named() -> None:
    same = BuildFailure(str(ERROR), ERROR, ["ingest:a/one", "ingest:a/two", "ingest:b/one"])
    other = BuildFailure("gone", None, ["fetch:c"])
    assert lines(same, other) == [
        "FAILED: 4 step(s); 0 built, 0 restored. What was built is kept.",
        "  ingest:a/one, ingest:a/two, ingest:b/one: the source has no file 'model.onnx': it has none",
        "  fetch:c: gone",
    ]
    assert lines(same)[1].startswith("  ingest:a/one, ingest:a/two, ingest:b/one: "), "one message was printed for all"


def test_what_was_printed_in_full_with_its_name_is_not_repeated() -> None:
    assert lines(BuildFailure("gone", None, ["fetch:c"])) == [
        "FAILED: 1 step(s); 0 built, 0 restored. What was built is kept."
    ]


@pytest.mark.parametrize(
    ("totals", "said"),
    [
        ([100.0, 100.0], "2 artifacts, exact:"),
        ([41.0, None], "2 artifacts, 1 with 41.0 dB or more, 1 not measured in dB:"),
        ([100.0, None, None], "3 artifacts, 1 with 100.0 dB or more, 2 not measured in dB:"),
        ([None], "1 artifact, 1 not measured in dB:"),
    ],
)
def test_a_line_counts_what_is_not_measured_in_db(totals: list[float | None], said: str) -> None:
    made: Any = {str(place): {"sqnr_db": {"total": db}, "cpu_nodes": 0} for place, db in enumerate(totals)}
    ran = Ran(["build"], checked={"build:net"}, unchanged={"net": Account(["verify:net/net/16"], artifacts=made)})
    assert f"artifacts/net/  {said} report.html has the tables" in last_lines(ran)


def test_the_console_alone_cuts_names() -> None:
    names = [f"net/net/{size}" for size in range(10)]
    account = Account(remarks={"unmeasured": names})
    assert "net/net/7 and 2 more. Add" in last_lines(Ran(["build"], unchanged={"net": account}))
    (line,) = remark_lines([account.remarks])
    assert f"{', '.join(names)}. Add" in line


def test_what_is_found_is_told() -> None:
    assert [*FINDERS] == [*TOLD] == [*get_args(Kind)]


def idle(*selected: str, cpu_nodes: int = 0, effect: str = "wrong") -> list[str]:
    """What is printed of a model of which nothing changed."""
    made: Any = {
        f"net/net/{size}/sm8650": {"sqnr_db": {"total": db}, "cpu_nodes": cpu_nodes}
        for size, db in {"16": 41.25, "32": 38.96}.items()
    }
    tables = [[("component", "bucket"), ("net/net", "16")], [("forecast", "on HTP"), ("fp16_overflow", effect)]]
    account = Account(["verify:net/net/16"], tables, {"silent": ["net/net/16 'y'"]}, artifacts=made)
    ran = Ran(selected, checked={"build:net"}, unchanged={"net": account})
    return "\n".join(told(ran)).splitlines()


def test_a_build_with_nothing_to_do_prints_a_line_a_model_and_what_is_not_to_be_overlooked() -> None:
    lines = idle("build")
    assert "artifacts/net/  2 artifacts, 39.0 dB or more in total: report.html has the tables" in lines
    assert "net/net    16" not in lines
    assert "fp16_overflow  wrong" in lines
    assert "Not shown, as no held-out sample gets above a half: how net/net/16 'y' says yes." in "".join(lines)
    assert "fp16_overflow  mended" not in idle("build:net", effect="mended")
    assert "4 nodes on the CPU" in "".join(idle("build", cpu_nodes=2))


@pytest.mark.parametrize("selected", [("verify",), ("build", "verify:net")])
def test_who_asks_for_a_stage_gets_the_tables(selected: tuple[str, ...]) -> None:
    assert "net/net    16" in idle(*selected)
