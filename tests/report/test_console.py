"""What is seen of a build while it runs: how far steps are, what is left, and errors at once."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import progress
from pipeline.report import console
from pipeline.report.console import Console


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_items_are_counted_and_told_to_the_file_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = progress.file_of(tmp_path / "step.log")
    monkeypatch.setenv(progress.VARIABLE, str(file))
    seen = [(item, progress.told(file)) for item in progress.counted("abc", "sample", 3)]
    assert seen == [("a", "sample 1 of 3"), ("b", "sample 2 of 3"), ("c", "sample 3 of 3")]
    assert [*progress.counted("ab", "call")] == ["a", "b"]
    assert progress.told(file) == "call 2"
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "no folder" / "file"))
    assert [*progress.counted("ab", "call")] == ["a", "b"], "no step fails for want of a line"


def test_the_item_that_takes_long_is_the_one_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "now"
    monkeypatch.setenv(progress.VARIABLE, str(file))
    for item in progress.counted(range(1, 1001), "node", 1000):
        if item in (7, 999):  # whatever the items before it took
            assert progress.told(file) == f"node {item} of 1000"
    progress.tell("short")
    assert progress.told(file) == "short"


def test_what_is_told_inside_stands_behind_what_it_is_inside_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "now"
    monkeypatch.setenv(progress.VARIABLE, str(file))
    with progress.within("bucket 64"):
        assert progress.told(file) == "bucket 64"
        with progress.within(""):
            assert [*progress.counted("a", "node", 1)] == ["a"]
        assert progress.told(file) == "bucket 64, node 1 of 1"
    progress.tell("é" * 1000)
    assert progress.told(file) == "é" * 200


def test_a_step_that_ended_is_not_said_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "EVERY_S", 0.02)
    stream = io.StringIO()
    shown = Console(stream)
    shown.start({"verify:a", "context:a"}, None)
    shown.started("verify:a", tmp_path / "a.log")
    shown.ended("verify:a")
    shown.started("context:a", tmp_path / "b.log")
    until(lambda: stream.getvalue().count("context:a") > 2)
    shown.stop()
    assert "verify:a" not in stream.getvalue()


def test_in_a_log_long_steps_have_a_line_now_and_then_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "EVERY_S", 0.02)
    monkeypatch.setattr(console, "_ESTIMATED_EVERY_S", 0.0)
    log, stream = tmp_path / "a.log", io.StringIO()
    progress.file_of(log).write_text("sample 7 of 30\n")
    shown = Console(stream)
    shown.start({"verify:a", "emulate:a"}, lambda running, unfinished: 100.0 * len(unfinished) - len(running))
    shown.started("verify:a", log)
    until(lambda: "left" in stream.getvalue())
    assert "[0/2] running       0 s  verify:a  sample 7 of 30\n" in stream.getvalue()
    assert "[0/2] about 3 min left\n" in stream.getvalue()
    shown.finished("verify:a", "built", 1.0)
    shown.started("emulate:a", log)
    until(lambda: "[1/2] about 100 s left" in stream.getvalue() or "[1/2] about 2 min left" in stream.getvalue())
    shown.stop()
    lines = stream.getvalue().count("\n")
    time.sleep(0.1)
    assert stream.getvalue().count("\n") <= lines + 2


def test_nothing_is_said_of_what_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "EVERY_S", 0.02)
    stream = io.StringIO()
    shown = Console(stream)
    shown.start({"verify:a"}, lambda _running, _unfinished: None)
    shown.started("verify:a", tmp_path / "a.log")
    until(lambda: "running" in stream.getvalue())
    shown.stop()
    assert "left" not in stream.getvalue()


def test_an_error_is_shown_as_soon_as_it_happens(tmp_path: Path) -> None:
    stream = io.StringIO()
    shown = Console(stream)
    shown.start({"verify:a", "verify:b"})
    shown.started("verify:a", tmp_path / "a.log")
    shown.failed("verify:a", "it failed")
    assert "error: it failed" in stream.getvalue()
    shown.stop()


@pytest.mark.parametrize(
    ("seconds", "said"), [(24.0, "20 s"), (89.0, "90 s"), (100.0, "2 min"), (3600.0, "60 min"), (9000.0, "2.5 h")]
)
def test_times_are_said_as_coarsely_as_they_are_known(seconds: float, said: str) -> None:
    assert console._spoken(seconds) == said
