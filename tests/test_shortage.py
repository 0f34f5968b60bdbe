"""Where the system gives doit itself no more memory, addresses or threads, a command ends in one message."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pipeline.doit_adapter import StepFailed, reported
from pipeline.errors import WorkerError
from pipeline.plan.steps import Step
from pipeline.report.reporter import Build, Reporter
from pipeline.shortage import shortage
from pipeline.store.durable import disk_errors
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


def test_what_a_process_that_got_no_memory_says_is_no_fault_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="the system gave doit no more memory") as caught, disk_errors(tmp_path):
        raise OSError(errno.ENOMEM, "Cannot allocate memory", sys.executable)
    assert caught.value.exit_code == 18
    assert caught.value.of_machine


_LIMITED = """\
import os, resource, sys, threading
from pathlib import Path
from pipeline.processes import process
from pipeline.shortage import shortage
from pipeline.store.durable import disk_errors

resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
os.chdir(sys.argv[1])
if not os.geteuid():
    os.setuid(65533)  # root has no such limit
try:
    with disk_errors(Path()), open(os.devnull, "wb") as log:
        process.start([sys.executable, "--version"], stdin=log.fileno(), log=log, cwd=Path("/"), env={})
except Exception as error:
    print(error)
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(shortage(error))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits processes")
def test_who_may_have_no_more_processes_is_told_so() -> None:
    """Under `ulimit -u` memory is not what lacks."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, "/"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.count("the system gave doit no more threads or processes\n") == 2, done.stdout + done.stderr
    assert done.stdout.count("('ulimit -u') or a container ('pids.max')") == 2
    assert "why: BlockingIOError: " in done.stdout
    assert f"why: RuntimeError: {_NO_THREAD}\n" in done.stdout
    assert "memory" not in done.stdout


_LIMITED_STEP = """\
import os, resource, sys
from pipeline.build.worker import _no_more
from pipeline.errors import CompileError
from pipeline.shortage import shortage_behind

failed = CompileError("QNN compiled nothing")
if sys.argv[1] == "addresses":
    resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))
    taken = bytearray(500 << 20)
    print(shortage_behind(failed, "context:a"))
    raise SystemExit
assert shortage_behind(failed, "context:a") is None
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if not os.geteuid():
    os.setuid(65533)
print(shortage_behind(failed, "context:a"))
try:
    os.fork()
except BlockingIOError as error:
    print(_no_more(error, "verify:a"))
print(_no_more(OSError("ONNX Runtime could not be set up"), "verify:b"))
"""


def _limited_step(what: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _LIMITED_STEP, what], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="limits processes")
def test_a_step_that_got_no_threads_or_processes_is_no_fault_of_the_model() -> None:
    """Native code says that it compiled nothing, not that it could start no thread."""
    said = _limited_step("processes")
    for step in ("context:a", "verify:a", "verify:b"):
        assert f"the system gave {step} no more threads or processes\n  where: the step's process\n" in said
    assert "why: of 32 threads more 0 could be started, and this failed: QNN compiled nothing\n" in said
    assert "and this failed: BlockingIOError: " in said
    assert "and this failed: OSError: ONNX Runtime could not be set up\n" in said
    assert said.count("raise how many a user ('ulimit -u')") == 3


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses")
def test_a_step_whose_addresses_ran_out_is_no_fault_of_the_model() -> None:
    said = _limited_step("addresses")
    assert "the system gave context:a no more memory\n" in said
    assert "addresses are limited to 943 MB here (ulimit -v); 512 MB more can't be had, and this failed: QNN" in said
    assert "next: run 'ulimit -v unlimited'" in said


@pytest.mark.skipif(sys.platform == "win32", reason="opens a terminal")
def test_a_terminal_has_its_cursor_again_even_if_the_record_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # a reporter puts another one there
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    project = SimpleNamespace(close=lambda: None, workspace=SimpleNamespace(log=lambda _: tmp_path / "log"))
    monkeypatch.setattr(Reporter, "project", cast("Build", project), raising=False)

    def record(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Reporter, "_record", record)
    monkeypatch.setattr(Reporter, "_ran", lambda _: None)
    with open(theirs, "w", encoding="utf-8") as terminal:
        reporter = Reporter(terminal, {})
        reporter._started(cast("Step", SimpleNamespace(id="shape:tiny/net")))
        try:
            raise RuntimeError(_NO_THREAD)
        except RuntimeError:
            reporter.complete_run()
    said = b""
    with contextlib.suppress(OSError):  # EIO: it has been closed, and all is read
        while more := os.read(ours, 1 << 16):
            said += more
    os.close(ours)
    shown = said.decode()
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.endswith("\x1b[2K"), "the live line is wiped for what is said next"


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
