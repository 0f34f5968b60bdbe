"""What QNN writes to stderr: where it goes, and that errors quote it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.build.worker import dump_request, load_answer
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn.native_log import STEP_LOG, recorded
from tests.support.contexts import request
from tests.support.tiny_models import qdq_model


def test_in_a_worker_it_is_the_steps_log_and_is_quoted(tmp_path: Path) -> None:
    answer, log = tmp_path / "answer.json", tmp_path / "step.log"
    qdq = qdq_model(tmp_path / "model")
    raw = dump_request(request(qdq, tmp_path / "out", HtpTarget(9999, 73)), "context", answer)
    (tmp_path / "request.json").write_text(raw)
    command = [sys.executable, "-m", "pipeline.build.worker", str(tmp_path / "request.json")]
    with log.open("wb") as stream:
        stream.write(b"libc++.so.1: not found\n")  # of an earlier part of the step: not this failure's cause
        stream.flush()
        environment = {**os.environ, STEP_LOG: str(log)}
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment, check=False)
    assert done.returncode == CompileError.exit_code
    with pytest.raises(CompileError) as caught:
        load_answer(answer)
    assert caught.value.why.startswith("the installed QNN SDK knows no SoC with this id")
    quoted = "    | QNN SetupBackend failed Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG"
    assert quoted in caught.value.why
    assert "QNN SetupBackend failed" in log.read_text()


def test_in_a_worker_it_outlives_a_process_that_dies(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    code = "import os, pipeline.qnn.native_log as log\nwith log.recorded(): os.write(2, b'last words'); os._exit(3)"
    with log.open("wb") as stream:
        environment = {**os.environ, STEP_LOG: str(log)}
        done = subprocess.run([sys.executable, "-c", code], stderr=stream, env=environment, check=False)
    assert done.returncode == 3
    assert log.read_bytes() == b"last words"


def test_elsewhere_stderr_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with recorded() as log:
        os.write(2, b"\x1b[1;31m2026-11-20 10:00:00.1 [E:onnxruntime:, file.cc:1 Function] it broke\x1b[m\n")
        os.write(2, b"2026-11-20 10:00:00.2 [W:onnxruntime:, file.cc:1 Function] it may break\nplain\n")
        assert log.errors() == ["it broke"]
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines()[1:] == [
        "2026-11-20 10:00:00.2 [W:onnxruntime:, file.cc:1 Function] it may break",
        "plain",
        "after",
    ]


def test_of_a_large_log_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.qnn.native_log._MAX_BYTES", 1000)
    with recorded() as log:
        os.write(2, b"first\n" + b"x" * 5000 + b"\nlast\n")
        assert len(log.text()) == 1000
        assert log.text().endswith("x\nlast\n")
