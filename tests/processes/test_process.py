from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.processes import process


@pytest.mark.skipif(sys.platform == "win32", reason="there a job is ended, not a group by its number")
def test_a_group_is_ended_before_its_leader_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the number may be that of another group."""
    states = []
    monkeypatch.setattr(
        "pipeline.processes.process.os.killpg", lambda group, _: states.append(psutil.Process(group).status())
    )
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    assert process.run(command, log=tmp_path / "log", cwd=tmp_path, env=dict(os.environ)) == 3
    assert states == [psutil.STATUS_ZOMBIE]
