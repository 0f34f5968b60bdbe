"""Runs one step in a process of its own: `python -m pipeline.build.worker REQUEST`, where REQUEST is a JSON file.

The stage's answer, facts or an error, goes into the file that the request names as `answer`. Output on stdout and
stderr is the step's log. The exit status is 0, or the exit code of the error. With that of a StoreError and no answer,
there was no room for one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import BY_NAME, CompileError, PipelineError, StoreError, VerificationError, WorkerError
from pipeline.model import FileEntry, StageInput, StageRequest, StageResult
from pipeline.processes import lifeline
from pipeline.processes.memory import go_first, peak_bytes
from pipeline.shortage import shortage, shortage_behind
from pipeline.store.durable import is_full, no_room

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Environment variables that are for `fetch` alone."""
SIGNING_KEY = "PIPELINE_SIGNING_KEY"
"""The one that is for no step: the key that releases are signed with, or its path."""
SHARED_STORE = (
    "PIPELINE_SHARED_STORE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_*",
    "FSSPEC_*",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
"""Patterns of those that are for no step either: where outputs are shared, and what opens it."""
_LEAST_SECRET = 8  # a shorter one is no token, and may be part of any word


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
    try:
        if "error" in raw:
            kind = BY_NAME[raw["error"]["type"]]
            what, where, why, remedy = (str(raw["error"][part]) for part in ("what", "where", "why", "remedy"))
            error = kind(what, where=where, why=why, remedy=remedy)
            error.of_machine, error.of_process = (bool(raw["error"][of]) for of in ("of_machine", "of_process"))
            raise error
        reused = {str(name): (str(role), str(file)) for name, (role, file) in raw["reused"].items()}
        return StageResult(dict(raw["facts"]), reused)
    except (KeyError, TypeError, AttributeError) as problem:  # code of the project runs in a worker too
        raise ValueError(f"the answer has another form: {problem}") from problem


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
        _log_traceback()
        native = isinstance(error, CompileError | VerificationError)
        told = (shortage_behind(error, raw["step"]) if native else None) or error
        text = _error_text(told, raw)
        status = told.exit_code
    except Exception as error:
        _log_traceback()
        told = (
            _no_room(error, raw["step"])
            or _no_more(error, raw["step"])
            or WorkerError(
                f"{raw['step']} hit a bug: {type(error).__name__}: {error}",
                where=_origin(error),
                why="the stage did not expect this; the full traceback is in the step's log",
                remedy="report it with the log",
            )
        )
        text = _error_text(told, raw)
        status = told.exit_code
    if status:
        shutil.rmtree(raw["out"], ignore_errors=True)  # on a full disk this makes room for the answer
    try:
        Path(raw["answer"]).write_text(text, "utf-8")
    except OSError as error:
        if not is_full(error):
            raise
        return StoreError.exit_code  # without an answer this says so, too
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


def _log_traceback() -> None:
    with contextlib.suppress(OSError):  # the log's disk may be full; the answer says what went wrong
        sys.stderr.write(_without_secrets(traceback.format_exc()))


def _error_text(error: PipelineError, request: Mapping[str, Any]) -> str:
    fields = {"what": error.what, "where": error.where, "why": error.why, "remedy": error.remedy}
    told = {name: _by_the_users_names(_without_secrets(text), request) for name, text in fields.items()}
    of = {"of_machine": error.of_machine, "of_process": error.of_process}
    return json.dumps({"error": {"type": type(error).__name__, **told, **of}})


def _without_secrets(text: str) -> str:
    """What libraries say of a failure may quote what they sent."""
    for name in SECRETS:
        secret = os.environ.get(name, "").strip()
        if len(secret) >= _LEAST_SECRET:
            for spelt in (secret, ascii(secret)[1:-1]):
                text = text.replace(spelt, f"<{name}>")
    return text


def _by_the_users_names(text: str, request: Mapping[str, Any]) -> str:
    """The text with files named as in the source: a library, or code of the user's, names those that it was given.

    These lie in folders of the store, which are gone when the text is read.
    """
    folders = {given["folder"]: role for role, given in request["inputs"].items()} | {request["out"]: "the output"}
    for folder in sorted(folders, key=len, reverse=True):  # the role ingest is no beginning of ingest/net
        for spelt in (folder, ascii(folder)[1:-1]):  # as it is, and as Python quotes it
            separator = ascii(os.sep)[1:-1] if spelt != folder else os.sep
            text = text.replace(f"{spelt}{separator}", "").replace(spelt, f"the folder of {folders[folder]}")
    return text


def _no_room(error: Exception, step: str) -> StoreError | None:
    """The error for a full disk, which may meet a stage at any of its writes."""
    return no_room(f"what {step} writes", error) if isinstance(error, OSError) and is_full(error) else None


def _no_more(error: Exception, step: str) -> WorkerError | None:
    """The error for what the system gave no more of; whatever a library says then, it may be no word of that."""
    return shortage(error, step) or shortage_behind(f"{type(error).__name__}: {error}", step)


def _origin(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    from pipeline.processes import addresses  # loads ctypes, and a build that has nothing to do imports this module

    lifeline.hold()
    go_first()
    addresses.settle_libraries()
    sys.exit(main(sys.argv[1]))
