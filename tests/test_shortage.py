"""Where the system gives doit itself no more memory, addresses or threads, a command ends in one message."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.doit_adapter import StepFailed, reported
from pipeline.shortage import shortage
from tests.support import tiny_project
from tests.support.project import ROOT, inherited

_NO_THREAD = "can't start new thread"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError("libgomp.so.1: failed to map segment from shared object"),
        ImportError("_core.so: cannot allocate memory in static TLS block"),
        RuntimeError(_NO_THREAD),
    ],
)
def test_what_says_that_the_system_gave_no_more(error: Exception) -> None:
    found = shortage(error)
    assert found is not None
    assert found.exit_code == 18
    assert type(error).__name__ in found.why
    assert "what was built is kept" in found.remedy


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), ImportError("no module"), RuntimeError("else"), ValueError(_NO_THREAD)]
)
def test_what_says_something_else(error: Exception) -> None:
    assert shortage(error) is None


def test_an_action_that_got_no_memory_fails_in_our_words() -> None:
    def action() -> None:
        raise MemoryError

    failed = reported(action)
    assert isinstance(failed, StepFailed)
    assert str(failed.error).startswith("the system gave doit no more memory\n")


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses")
@pytest.mark.parametrize("limit_kb", [100_000, 600_000])
def test_a_build_whose_addresses_are_limited_ends_in_one_message(limit_kb: int, tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    code = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit_kb * 1024}, {limit_kb * 1024}))\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'doit', 'build'])\n"
    )
    environ = inherited() | {"PIPELINE_STORE": str(project.store)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=environ, capture_output=True, text=True, check=False
    )
    text = done.stdout + done.stderr
    assert done.returncode == 18, text
    assert "Traceback" not in text
    assert text.count("error: the system gave doit no more memory\n") == 1
    assert f"addresses are limited to {limit_kb * 1024 // 1_000_000} MB here (ulimit -v)" in text
    record = json.loads((project.root / ".build" / "run.json").read_text("utf-8"))
    assert record["exit_code"] == 18
    assert "Nothing to do" not in text


def test_the_codes_of_exit_are_in_the_docs() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    assert "ulimit -v" in next(line for line in text.splitlines() if line.startswith("| 18 |"))
