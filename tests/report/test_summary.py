"""The last lines of a build that failed."""

from __future__ import annotations

from pipeline.errors import ModelError
from pipeline.report.summary import BuildFailure, Ran, last_lines

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
