"""Builds one case as a new user would, in a project of its own, and holds what came out against the original."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.real_models.cases import Case
from tests.real_models.end_task import originals
from tests.real_models.model import Arrays, Recorder, Share
from tests.real_models.packages import HOME, ROOT, read
from tests.support.project import Project

TARGET = "snapdragon-x-elite"
_SAMPLES = 64  # what docs/calibration.md advises at most
_TASK_S = 3600
_LAST_LINES = 40


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    `result` is "right"; "refused", with what the build said in `said`; or "wrong", if it shipped and the end task
    disagrees. `status` is the exit code of the build, `steps_built` how many of its steps ran and were not restored;
    `rungs` has the worst SQNR in dB of every rung over outputs and buckets, as far as they were measured.
    """

    name: str
    kind: str
    package: str
    commit: str
    date: str
    result: str
    status: int
    scheme: str
    rungs: dict[str, float]
    task: str
    build_s: float
    steps_built: int
    task_s: float
    said: str
    log: str


def run_case(case: Case, home: Path = HOME, more: str = "") -> Outcome:
    """Build, and judge what was built; `more` are further lines of the config.

    Raises:
        UnreachableError: the package registry did not give the model.
        SpeechMissingError: the host can't speak the inputs.
    """
    project = _project(case, home, more)
    commit, started = _commit(), time.monotonic()  # what is checked out meanwhile is not what is built
    built = project.doit(f"build:{case.name}", check=False)
    build_s = time.monotonic() - started
    folder = project.root.parent
    log = folder / "build.log"
    log.write_text(built.text, "utf-8")
    task, agrees, task_s = "", False, 0.0
    if built.status == 0:
        started = time.monotonic()
        agrees, task = _end_task(case, project, folder)
        task_s = time.monotonic() - started
    result = "refused" if built.status else ("right" if agrees else "wrong")
    return Outcome(
        case.name, case.kind, case.package.pin, commit, datetime.date.today().isoformat(), result, built.status,
        *_measured(project, case), task, round(build_s, 1), len(built.built), round(task_s, 1), _end_of(built.text),
        log.relative_to(home).as_posix(),
    )  # fmt: skip


def _project(case: Case, home: Path, more: str) -> Project:
    """An empty project with the model, its samples and its config; the store is shared by all cases."""
    folder = home / "cases" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    project = Project.create(folder / "project", home / "store")
    model = project.root / "model"
    model.mkdir()
    for name, file in case.files.items():
        (model / f"{name}.onnx").write_bytes(read(case.package, file))
    project.write(f"configs/{case.name}.yaml", case.config(TARGET) + more)
    recorder = Recorder(originals(case))
    case.application.use(recorder, Share.CALIBRATION)
    for name in case.files:
        part = project.root / "calibration" / case.name / (name if len(case.files) > 1 else "")
        _save(recorder.feeds[name], part)
    return project


def _save(feeds: list[Arrays], folder: Path) -> None:
    """At most 64 of the feeds, spread evenly, as the reader of arrays takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = np.linspace(0, len(feeds) - 1, min(_SAMPLES, len(feeds))).round().astype(int)
    for place in chosen:
        np.savez(folder / f"{place:04}.npz", **feeds[place])


def _end_task(case: Case, project: Project, folder: Path) -> tuple[bool, str]:
    """Whether the application agrees on unseen inputs, and by how much; what it could not do counts as disagreeing."""
    packed = project.doit(f"package:{case.name}", check=False)
    if packed.status:
        return False, f"can't be packaged: {_end_of(packed.text)}"
    release = project.root / "artifacts" / "releases" / f"{case.name}-1.0.qnn.zip"
    out = folder / "verdict.json"
    command = [sys.executable, "-m", "tests.real_models.end_task", case.name, str(release), TARGET, str(out)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=_TASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"the end task took more than {_TASK_S // 60} minutes"
    (folder / "task.log").write_text(done.stdout + done.stderr, "utf-8")
    if not out.is_file():
        return False, f"the end task ended with {done.returncode}: {_end_of(done.stderr)[-300:]}"
    verdict = json.loads(out.read_text("utf-8"))
    return bool(verdict["agrees"]), str(verdict["text"])


def _measured(project: Project, case: Case) -> tuple[str, dict[str, float]]:
    """The schemes and the worst SQNR of each rung, of the manifest."""
    path = project.root / "artifacts" / case.name / TARGET / "manifest.json"
    if not path.is_file():
        return "", {}
    manifest = json.loads(path.read_text("utf-8"))
    schemes: list[str] = []
    rungs: dict[str, float] = {}
    for component in manifest["components"].values():
        for bucket in component["buckets"]:
            schemes.append(str(bucket["quantization"]["scheme"]))
            measured = dict(bucket["verification"]["cpu"]["rungs"])
            for emulated in bucket["verification"]["emulator"].values():
                measured |= emulated["rungs"] | {"total": emulated["outputs"]}
            for rung, outputs in measured.items():
                worst = min(float(output["sqnr_db"]) for output in outputs.values())
                rungs[rung] = min(rungs.get(rung, worst), worst)
    return ", ".join(dict.fromkeys(schemes)), {rung: round(value, 1) for rung, value in rungs.items()}


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _end_of(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_LAST_LINES:])
