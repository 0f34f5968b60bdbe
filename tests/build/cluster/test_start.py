"""A worker that can't be started says what it met."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.build.cluster import __main__ as program

pytest.importorskip("distributed")


@pytest.mark.parametrize(
    ("scheduler", "told", "absent"),
    [("tcp://127.0.0.1:9", "there is no scheduler, for 1 s", True), ("nonsense://127.0.0.1:9", "nonsense", False)],
)
def test_only_a_scheduler_that_was_waited_for_is_said_to_be_absent(
    scheduler: str, told: str, absent: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "_ABSENT_S", 1.0)
    assert asyncio.run(program._serve(scheduler, "w", 1)) == 18
    said = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("error: "))
    reason = said.partition("could be started: ")[2]
    assert told in reason
    assert ("for 1 s" in reason) is absent
