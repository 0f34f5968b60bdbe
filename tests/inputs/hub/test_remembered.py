from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.inputs.hub import remembered
from pipeline.model import FileEntry
from pipeline.store import durable


def test_two_that_fetch_other_files_of_a_commit_both_leave_their_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = remembered.path_of(tmp_path, "org/name", "ab" * 20)
    write, both_have_read = durable.write_atomically, threading.Barrier(2)

    def slow_write(*args: object, **options: object) -> None:
        """Wait for the other, who has read by now unless it may not."""
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.5)
        write(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("pipeline.inputs.hub.remembered.write_atomically", slow_write)

    def remember(name: str) -> None:
        folder = tmp_path / "tmp" / name
        folder.mkdir(parents=True)
        remembered.remember(path, {name: FileEntry(name * 64, 1)}, folder)

    threads = [threading.Thread(target=remember, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changed: Mapping[str, FileEntry] = {"a": FileEntry("c" * 64, 1), "b": FileEntry("b" * 64, 1)}
    assert remembered.changed(path, changed) == ("a", "a" * 64, "c" * 64)
    changed = {"a": FileEntry("a" * 64, 1), "b": FileEntry("c" * 64, 1)}
    assert remembered.changed(path, changed) == ("b", "b" * 64, "c" * 64)
