"""Runs one step in a process of its own: `python -m pipeline.worker REQUEST`, where REQUEST is a JSON file.

The stage's answer, facts or an error, goes into the file that the request names as `answer`. Output on stdout and
stderr is the step's log. The exit status is 0, or the exit code of the error.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pipeline.errors import BY_NAME, PipelineError, StoreError, WorkerError
from pipeline.memory import peak_bytes
from pipeline.model import FileEntry, StageInput, StageRequest, StageResult


def dump_request(request: StageRequest, stage: str, answer: Path) -> str:
    """A request as JSON text."""
    inputs = {
        role: {
            "folder": str(given.folder),
            "files": {name: [entry.sha256, entry.bytes] for name, entry in given.files.items()},
            "facts": given.facts,
        }
        for role, given in request.inputs.items()
    }
    raw = {
        "stage": stage,
        "step": request.step,
        "params": request.params,
        "inputs": inputs,
        "files": {role: str(path) for role, path in request.files.items()},
        "out": str(request.out),
        "answer": str(answer),
    }
    return json.dumps(raw)


def load_answer(path: Path) -> StageResult:
    """What a worker answered; raises the error it answered with, or ValueError/OSError when there is no answer."""
    raw = json.loads(path.read_text("utf-8"))
    if "error" in raw:
        error = raw["error"]
        raise BY_NAME[error["type"]](error["what"], where=error["where"], why=error["why"], remedy=error["remedy"])
    reused = {name: (role, file) for name, (role, file) in raw["reused"].items()}
    return StageResult(raw["facts"], reused)


def load_usage(path: Path) -> tuple[float, int]:
    """CPU seconds and the most bytes of memory that a worker used, as its answer says."""
    used = json.loads(path.read_text("utf-8"))["used"]
    return float(used["cpu_seconds"]), int(used["peak_bytes"])


def main(request_path: str) -> int:
    """Run the step that the request file describes."""
    raw: dict[str, Any] = json.loads(Path(request_path).read_text("utf-8"))
    try:
        result = importlib.import_module(f"pipeline.stages.{raw['stage']}").run(_request(raw))
        used = {"cpu_seconds": _cpu_seconds(), "peak_bytes": peak_bytes()}
        answer = {"facts": result.facts, "reused": result.reused, "used": used}
        text = json.dumps(answer, allow_nan=False)
        status = 0
    except PipelineError as error:
        traceback.print_exc()
        text = _error_text(error)
        status = error.exit_code
    except Exception as error:
        traceback.print_exc()
        told = _no_room(error, raw["step"]) or WorkerError(
            f"{raw['step']} hit a bug: {type(error).__name__}: {error}",
            where=_origin(error),
            why="the stage did not expect this; the full traceback is in the step's log",
            remedy="report it with the log",
        )
        text = _error_text(told)
        status = told.exit_code
    if status:
        shutil.rmtree(raw["out"], ignore_errors=True)  # on a full disk this makes room for the answer
    Path(raw["answer"]).write_text(text, "utf-8")
    return status


def _request(raw: dict[str, Any]) -> StageRequest:
    inputs = {
        role: StageInput(
            Path(given["folder"]),
            {name: FileEntry(sha256, size) for name, (sha256, size) in given["files"].items()},
            given["facts"],
        )
        for role, given in raw["inputs"].items()
    }
    files = {role: Path(path) for role, path in raw["files"].items()}
    return StageRequest(raw["step"], raw["params"], inputs, files, Path(raw["out"]))


def _cpu_seconds() -> float:
    """User and system time of this process and of its children that ended."""
    times = os.times()
    return round(time.process_time() + times.children_user + times.children_system, 3)


def _error_text(error: PipelineError) -> str:
    fields = {"type": type(error).__name__, "what": error.what, "where": error.where}
    return json.dumps({"error": fields | {"why": error.why, "remedy": error.remedy}})


def _no_room(error: Exception, step: str) -> StoreError | None:
    """The error for a full disk, which may meet a stage at any of its writes."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return StoreError(
        f"there is no room for what {step} writes",
        where=str(error.filename or ""),
        why=error.strerror or str(error),
        remedy="free some space on the disk of the store, then run the same command again; what was built is kept",
    )


def _origin(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
