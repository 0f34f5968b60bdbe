"""`.build/run.json`: what a build did, why not all of it, and what there is now, for whoever acts on it.

It is written at the end of every build, however it ended, and removed when one begins: one that is there is of the last
build, and where there is none, that one was killed. Plain JSON in the form of `run.schema.json`, which lies beside this
module; docs/nightly.md describes it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pipeline.errors import PipelineError
from pipeline.host_names import Host
from pipeline.keys import package_version, qairt_version
from pipeline.model import Json
from pipeline.plain_text import printable
from pipeline.plan import STAGES
from pipeline.run_artifacts import artifacts
from pipeline.storage.durable import write_atomically
from pipeline.storage.scratch import Scratch
from pipeline.summary import Ran

SCHEMA_VERSION = 1
RECORD = "run.json"
REPORT = "report.md"
_TASKS = frozenset({*STAGES, "build", "package", "publish"})
"""What builds, wholly or in part: whatever runs steps."""
_COMMANDS = frozenset(
    {"auto", "clean", "dumpdb", "forget", "help", "ignore", "info", "list", "reset-dep", "strace", "tabcompletion"}
)
"""doit's own, which are given tasks and run none, or not as a build does."""
_GIVEN = ("compare", "verify-release")
"""Tasks that take all that comes after them, whatever it looks like, and run no steps."""
_RESULTS = {0: "ok", 19: "waiting", 130: "interrupted"}
_RESTORED: Mapping[str, Mapping[str, Json]] = {
    "restored": {"outcome": "restored", "from": "store"},
    "shared": {"outcome": "restored", "from": "shared"},
}
_BY_LINE = frozenset({"failures", "steps", "artifacts"})
_NOT_TRIED = "not tried"
_NONE: Mapping[str, Json] = {}
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Failure:
    """Tasks that met the same error, and the error; its text alone where it is none of ours."""

    tasks: Sequence[str]
    text: str
    error: PipelineError | None = None


@dataclass
class Clock:
    """When a build began."""

    started_s: float = field(default_factory=time.time)
    since_s: float = field(default_factory=time.monotonic)

    def facts(self) -> dict[str, Json]:
        """When it began, in UTC, and for how many seconds it has run."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started_s))
        return {"started": started, "seconds": round(time.monotonic() - self.since_s, 1)}


def is_build(arguments: Sequence[str]) -> bool:
    """Whether a command line asks doit for a build or a part of one."""
    if any(argument in ("--help", "--version", "-h") for argument in arguments):
        return False
    names = [name for name in arguments if not (name.startswith("-") or "=" in name or name.isdecimal())]
    if names and names[0] in _COMMANDS:
        return False
    names = names[1:] if names[:1] == ["run"] else names
    before = [*itertools.takewhile(lambda name: name not in _GIVEN, names)]
    return not names or any(builds(name) or "*" in name for name in before)


def builds(task: str) -> bool:
    """Whether a task makes all or a part of a build."""
    return task.split(":")[0] in _TASKS


def begin(build: Path) -> None:
    """Remove what the last build left in its build folder: it says nothing of one that has begun."""
    for name in (RECORD, REPORT):
        with contextlib.suppress(OSError):
            (build / name).unlink()


def refused(build: Path, arguments: Sequence[str], error: PipelineError) -> None:
    """Record a build that was refused before anything ran."""
    with contextlib.suppress(OSError):
        build.mkdir(parents=True, exist_ok=True)
        failure = Failure([], str(error), error)
        write(build, _record(build.parent, arguments, [failure], error.exit_code))


def record(
    ran: Ran,
    failures: Iterable[Failure],
    *,
    tried: Collection[str],
    whole: bool,
    clock: Clock,
    exit_code: int,
    root: Path,
) -> dict[str, Json]:
    """What a command did in the checkout at `root`. `tried` are the steps it was about.

    `whole` says that it was about all that a build of this project makes: what is not in it is not made any more.
    """
    failures = list(failures)
    built = sorted(task.split(":")[1] for task in ran.checked if task.startswith("build:"))
    return _record(
        root,
        ran.selected,
        failures,
        exit_code,
        whole=whole,
        clock=clock,
        steps=_steps(ran, failures, tried),
        published={name: f"artifacts/{name}" for name in built},
        artifacts=dict(artifacts(ran)),
    )


def write(build: Path, content: Mapping[str, Json], tell: Callable[[str], None] = lambda _: None) -> None:
    """Write run.json and report.md; a disk that refuses is told, and both are gone then."""
    from pipeline.run_report import markdown

    try:
        with Scratch(build / "tmp").folder() as folder:
            for name, text in ((RECORD, _text(content)), (REPORT, markdown(content))):
                write_atomically(build / name, text.encode("utf-8", "replace"), durable=False, folder=folder)
    except OSError as error:
        begin(build)
        tell(f"{build.name}/{RECORD} can't be written: {error.strerror or error}")


def _text(content: Mapping[str, Json]) -> str:
    """The record as JSON, a line for each step, artifact and failure."""
    dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    members = []
    for name, value in content.items():
        if name in _BY_LINE and value:
            rows = (
                [f"{dumps(key)}: {dumps(each)}" for key, each in value.items()]
                if isinstance(value, dict)
                else [dumps(each) for each in cast("list[Json]", value)]
            )
            ends = "{}" if isinstance(value, dict) else "[]"
            members.append(f"{dumps(name)}: {ends[0]}\n  " + ",\n  ".join(rows) + f"\n {ends[1]}")
        else:
            members.append(f"{dumps(name)}: {dumps(value)}")
    return "{\n " + ",\n ".join(members) + "\n}\n"


def _record(
    root: Path,
    command: Iterable[str],
    failures: Iterable[Failure],
    exit_code: int,
    *,
    whole: bool = False,
    clock: Clock | None = None,
    steps: Mapping[str, Json] = _NONE,
    published: Mapping[str, Json] = _NONE,
    artifacts: Mapping[str, Json] = _NONE,
) -> dict[str, Json]:
    """All members of the record, in their order; without the last ones, of a build in which nothing ran."""
    outcomes = [cast("Mapping[str, Json]", step)["outcome"] for step in steps.values()]
    names = ("built", "restored", "current", "failed", "waiting", _NOT_TRIED)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": [*command],
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
        "counts": {name.replace(" ", "_"): outcomes.count(name) for name in names},
        "failures": [_failure(failure) for failure in failures],
        "steps": dict(steps),
        "published": dict(published),
        "artifacts": dict(artifacts),
    }


def _versions() -> Iterator[tuple[str, Json]]:
    """Of the packages that decide what comes out."""
    for name in ("onnxruntime", "onnxruntime-qnn", "qairt", "onnx", "numpy"):
        with contextlib.suppress(PipelineError):  # that it is missing is told elsewhere
            yield name, qairt_version() if name == "qairt" else package_version(name)


def _commit(root: Path) -> str | None:
    """The commit that is checked out, as git's own files say; None where that is not so simple (a worktree)."""
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


def _failure(failure: Failure) -> Json:
    error = failure.error
    parts = dict(error.parts()) if error else {}
    return {
        "tasks": [*failure.tasks],
        "error": type(error).__name__ if error else "Error",
        "exit_code": error.exit_code if error else 1,
        "what": printable(error.what if error else failure.text),
        **{name: printable(parts.get(name, "")) for name in ("where", "why", "next")},
    }


def _steps(ran: Ran, failures: Iterable[Failure], tried: Collection[str]) -> dict[str, Json]:
    """How each step came out that the command was about, in the order of the plan."""
    failed = {task for failure in failures for task in failure.tasks} | ran.missed
    found: dict[str, Json] = {}
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
            entry = {"outcome": _NOT_TRIED}
            if name in ran.needs:
                entry["because"] = _cause(name, ran.needs)
        if outcome == "built" and name in ran.results:
            entry["seconds"] = round(seconds, 1)
        found[name] = entry
    return found


def _cause(name: str, needs: Mapping[str, str]) -> str:
    """The step because of which another was not tried."""
    while name in needs:
        name = needs[name]
    return name
