"""Writes `.build/run.json`: what a build did, what failed and why, and which artifacts exist, for a program to act on.

A build removes it when it begins and writes it when it ends, however it ends. So the file is always of the last build,
and there is none if that build was killed. Its form is in `run.schema.json` beside this module; docs/nightly.md
describes it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import command_line
from pipeline.config.host_names import Host
from pipeline.errors import PipelineError
from pipeline.model import Json
from pipeline.plain_text import printable
from pipeline.plan.keys import package_version, qairt_version
from pipeline.report.remark_lines import remark_lines
from pipeline.report.summary import BuildFailure, Ran, cause
from pipeline.stage_table import STAGES
from pipeline.store.durable import disk_remedy, is_temporary, write_atomically

SCHEMA_VERSION = 1
RECORD = "run.json"
REPORT = "report.md"
_TASKS = frozenset({*STAGES, "build", "package", "publish"})
"""The tasks that run steps."""
_GIVEN = ("compare", "record", "reproduce", "verify-release")
"""Tasks that run no steps. All words after them on the command line are their arguments."""
_LEFT_S = 3600.0
_RESULTS = {0: "ok", 19: "waiting", 130: "interrupted"}
_RESTORED: Mapping[str, Mapping[str, Json]] = {
    "restored": {"outcome": "restored", "from": "store"},
    "shared": {"outcome": "restored", "from": "shared"},
}
_BY_LINE = frozenset({"failures", "steps", "runs", "remarks", "artifacts"})
_OUTCOMES = ("built", "restored", "current", "failed", "waiting", "not tried")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Clock:
    """When a build began."""

    started_s: float = field(default_factory=time.time)
    since_s: float = field(default_factory=time.monotonic)

    def since(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.since_s

    def facts(self) -> dict[str, Json]:
        """When it began, in UTC, and for how many seconds it has run."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started_s))
        return {"started": started, "seconds": round(self.since(), 1)}


def is_build(arguments: Sequence[str]) -> bool:
    """Whether a command line asks doit for a build or a part of one."""
    line = command_line.parse(arguments)
    if line.asks_for_help or line.command != "run":
        return False
    before = [*itertools.takewhile(lambda name: name not in _GIVEN, line.names)]
    return not line.names or any(builds(name) or "*" in name for name in before)


def builds(task: str) -> bool:
    """Whether a task makes all or a part of a build."""
    return task.split(":")[0] in _TASKS


def begin(build: Path) -> None:
    """Remove the record of the last build."""
    left = (path for name in (RECORD, REPORT) for path in build.glob(f".{name}.*") if _is_left(path))
    for path in (build / RECORD, build / REPORT, *left):
        with contextlib.suppress(OSError):
            path.unlink()


def _is_left(path: Path) -> bool:
    """Whether a half-written file is old enough to be of a process that died."""
    with contextlib.suppress(OSError):
        return is_temporary(path.name) and time.time() - path.stat().st_mtime > _LEFT_S
    return False


def refused(build: Path, arguments: Sequence[str], error: PipelineError) -> None:
    """Record a build that was refused before anything ran."""
    with contextlib.suppress(OSError):
        build.mkdir(parents=True, exist_ok=True)
        ran = Ran(arguments, failures=[BuildFailure(str(error), error)])
        write(build, record(ran, error.exit_code, build.parent))


def record(
    ran: Ran,
    exit_code: int,
    root: Path,
    *,
    tried: Collection[str] = (),
    whole: bool = False,
    clock: Clock | None = None,
) -> dict[str, Json]:
    """The record of what a command did in the checkout at `root`. `tried` are the steps it was about.

    `whole`: the command was about all that a build of this project makes. What the record lacks is no longer made.
    """
    steps = _steps(ran, tried)
    outcomes = [step["outcome"] for step in steps.values()]
    import platform

    built = sorted(task.split(":")[1] for task in ran.checked if task.startswith("build:"))
    return {
        "schema_version": SCHEMA_VERSION,
        "command": [*ran.selected],
        "whole": whole,
        "result": _RESULTS.get(exit_code, "failed"),
        "exit_code": exit_code,
        **(clock or Clock()).facts(),
        "commit": _commit(root),
        "host": {
            "names": [*Host.here().names],
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        "versions": dict(_versions()),
        "counts": {name.replace(" ", "_"): outcomes.count(name) for name in _OUTCOMES},
        "failures": [_failure(failure) for failure in ran.failures],
        "steps": {name: dict(step) for name, step in steps.items()},
        "runs": {name: [[round(each, 1) for each in run] for run in runs] for name, runs in ran.runs.items()},
        "published": {name: f"artifacts/{name}" for name in built},
        "remarks": {
            name: [*remark_lines([account.remarks])] for name, account in ran.accounts.items() if account.remarks
        },
        "artifacts": {name: each for account in ran.accounts.values() for name, each in account.artifacts.items()},
    }


def write(build: Path, content: Mapping[str, Json], tell: Callable[[str], None] = lambda _: None) -> None:
    """Write run.json and report.md. If the disk refuses that, both are removed, and `tell` is given a message."""
    from pipeline.report.run_report import markdown

    try:
        for name, text in ((RECORD, _text(content)), (REPORT, markdown(content))):
            write_atomically(build / name, text.encode("utf-8", "replace"), durable=False)
    except OSError as error:
        begin(build)
        told = f"{build.name}/{RECORD} can't be written: {error.strerror or error}"
        tell(f"{told}\n  where: {error.filename2 or error.filename or build}\n  next: {disk_remedy(error)}")


def _text(content: Mapping[str, Json]) -> str:
    """The record as JSON, with a line for each step, artifact and failure."""
    dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    members = []
    for name, value in content.items():
        text = dumps(value)
        if name in _BY_LINE and value:
            rows = [dumps(each) for each in value] if isinstance(value, list) else []
            if isinstance(value, dict):
                rows = [f"{dumps(key)}: {dumps(each)}" for key, each in value.items()]
            text = f"{text[0]}\n  " + ",\n  ".join(rows) + f"\n {text[-1]}"
        members.append(f"{dumps(name)}: {text}")
    return "{\n " + ",\n ".join(members) + "\n}\n"


def _versions() -> Iterator[tuple[str, Json]]:
    """The versions of the packages that artifacts depend on."""
    for name in ("onnxruntime", "onnxruntime-qnn", "qairt", "onnx", "numpy"):
        with contextlib.suppress(PipelineError):  # other checks report a package that is missing
            yield name, qairt_version() if name == "qairt" else package_version(name)


def _commit(root: Path) -> str | None:
    """The commit that is checked out, as git's files say; None where they don't say it simply (a worktree)."""
    try:
        head = (root / ".git" / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head if _COMMIT.fullmatch(head) else None
        ref = head.removeprefix("ref: ")
        loose = root / ".git" / ref
        packed = root / ".git" / "packed-refs"
        lines = [loose.read_text("utf-8").strip()] if loose.is_file() else packed.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    found = (line.removesuffix(f" {ref}") for line in lines)
    return next((line for line in found if _COMMIT.fullmatch(line)), None)


def _failure(failure: BuildFailure) -> Json:
    error = failure.error
    parts = dict(error.parts()) if error else {}
    return {
        "tasks": [*failure.tasks],
        "error": type(error).__name__ if error else "Error",
        "exit_code": failure.exit_code,
        "what": printable(error.what if error else failure.text),
        **{name: printable(parts.get(name, "")) for name in ("where", "why", "next")},
    }


def _steps(ran: Ran, tried: Collection[str]) -> dict[str, Mapping[str, Json]]:
    """How each step of the command ended, in the order of the plan, those of unchanged models first."""
    failed = {task for failure in ran.failures for task in failure.tasks} | ran.missed
    current: Mapping[str, Json] = {"outcome": "current"}
    found = {name: current for account in ran.unchanged.values() for name in account.steps}
    for name in (name for name in ran.steps if name in tried or name in ran.checked or name in failed):
        outcome, seconds = ran.results.get(name, ("current", 0.0))
        entry: dict[str, Json]
        if name in ran.waiting:
            entry = {"outcome": "waiting", "hosts": [*ran.waiting[name].hosts], "why": printable(ran.waiting[name].why)}
        elif name in failed:
            entry = {"outcome": "failed"}
        elif name in ran.checked:
            entry = dict(_RESTORED.get(outcome, {"outcome": outcome}))
        else:
            entry = {"outcome": "not tried"}
            if name in ran.needs:
                entry["because"] = cause(name, ran.needs)
        if outcome == "built":
            entry["seconds"] = round(seconds, 1)
            if name in ran.began:
                entry["at"] = round(ran.began[name], 1)
        found[name] = entry
    return found
