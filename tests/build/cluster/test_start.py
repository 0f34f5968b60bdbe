"""A worker that can't be started says what it met."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.build.cluster import __main__ as program

distributed = pytest.importorskip("distributed")


def member(name: str) -> Any:
    return SimpleNamespace(name=name)


@pytest.mark.parametrize(
    ("scheduler", "told", "absent"),
    [("tcp://127.0.0.1:9", "there is no scheduler, for 1 s", True), ("nonsense://127.0.0.1:9", "nonsense", False)],
)
def test_only_a_scheduler_that_was_waited_for_is_said_to_be_absent(
    scheduler: str, told: str, absent: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "_ABSENT_S", 1.0)
    assert asyncio.run(program._serve(scheduler, member("w"), 1)) == 18
    said = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("error: "))
    reason = said.partition("could be started: ")[2]
    assert told in reason
    assert ("for 1 s" in reason) is absent


def test_a_worker_that_comes_again_answers_under_the_name_that_the_scheduler_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, seen = member("w"), []

    class Joined:
        def __init__(self, *_: object, name: str, **__: object) -> None:
            seen.append((name, mine.name))
            self.status = SimpleNamespace(name="running")
            self.why = ""

        def __await__(self) -> Generator[Any, None, None]:
            return asyncio.sleep(0).__await__()

        async def finished(self) -> None:
            self.why = "worker-close" if len(seen) > 1 else "connection-broken"

    monkeypatch.setattr(distributed, "Worker", Joined)
    assert asyncio.run(program._serve("tcp://scheduler:1", mine, 1)) == 0
    assert seen == [("w", "w"), ("w-again-1", "w-again-1")]
    said = capsys.readouterr().out
    assert "worker w lost tcp://scheduler:1" in said
    assert "worker w-again-1 at tcp://scheduler:1" in said
