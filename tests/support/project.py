"""A project of its own in a temporary folder, built by the real command line."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.plan.known_code import KnownCode
from tests.support.made_once import made_once

ROOT = Path(__file__).resolve().parents[2]
_OUTCOMES = ("built", "restored", "shared")
_LINE = re.compile(r"^\[ *\d+/\d+\] (built|restored|shared) .*?(\w+:\S+)$", re.MULTILINE)


_OURS = ("HF_", "PIPELINE_HOST", "PIPELINE_SHARED_STORE")


def inherited() -> dict[str, str]:
    """The environment of the tests, but for what would have a build do something else on this machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


@dataclass(frozen=True)
class Run:
    """What one command line did."""

    status: int
    text: str
    built: frozenset[str]
    restored: frozenset[str]
    shared: frozenset[str] = frozenset()

    def stages(self) -> dict[str, int]:
        """How many steps of each stage ran in a worker."""
        counted: dict[str, int] = {}
        for step in sorted(self.built):
            stage = step.split(":")[0]
            counted[stage] = counted.get(stage, 0) + 1
        return counted


@dataclass
class Project:
    """A checkout in `root`, with a store of its own or a shared one."""

    root: Path
    store: Path
    environ: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, root: Path, store: Path) -> Project:
        """Our own code in an otherwise empty project."""
        root.mkdir(parents=True, exist_ok=True)
        _copy(_compiled_code(), root / "pipeline")
        shutil.copy(ROOT / "dodo.py", root)
        (root / "configs").mkdir()
        (root / "calibration").mkdir()
        return cls(root, store)

    def copy(self, root: Path, store: Path | None = None) -> Project:
        """The same project, its last build included, in another folder, and with a copy of its store in `store`."""
        _copy(self.root, root)
        if store:
            shutil.copytree(self.store, store)
        return Project(root, store or self.store, dict(self.environ))

    def doit(self, *arguments: str, check: bool = True, **environ: str) -> Run:
        """Run `doit` with these arguments; with `check`, a failure fails the test and shows what was printed."""
        environment = inherited() | {"PIPELINE_STORE": str(self.store)} | self.environ | environ
        done = subprocess.run(
            [sys.executable, "-m", "doit", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        text = done.stdout + done.stderr
        assert not check or done.returncode == 0, text
        found = _LINE.findall(text)
        ran = {outcome: frozenset(step for how, step in found if how == outcome) for outcome in _OUTCOMES}
        return Run(done.returncode, text, *(ran[outcome] for outcome in _OUTCOMES))

    def write(self, name: str, text: str) -> Path:
        """Write a text file of the project."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text that must occur exactly once in a file of the project."""
        path = self.root / name
        text = path.read_text("utf-8")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new), "utf-8")

    def artifacts(self) -> dict[str, bytes]:
        """Every file under artifacts/ by relative name, but reports: those tell of runs, which differ."""
        root = self.root / "artifacts"
        found = (path for path in root.rglob("*") if path.is_file() and path.name != "report.html")
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def _copy(source: Path, target: Path) -> None:
    """Copy a folder. Bytecode, half of a project, becomes links: Python replaces such files and never writes them."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_or_link)


def _copy_or_link(source: str, target: str) -> None:
    if source.endswith(".pyc"):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


@cache
def _compiled_code() -> Path:
    """Our code with its bytecode and what counts of it in keys.

    Each copy of a project would otherwise compile and parse all of it again. Bytecode is valid for a source of the same
    time and size, which a copy keeps, and what counts for the same bytes: an edit is seen.
    """
    return made_once("code", _compile_code) / "pipeline"


def _compile_code(folder: Path) -> None:
    code = folder / "pipeline"
    shutil.copytree(ROOT / "pipeline", code, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(code, quiet=1)
    known = KnownCode(code / "plan" / "__pycache__")
    for path in (ROOT / "pipeline").rglob("*.py"):
        known.counted(path)
    known.save()


def shipped(project: Project, soc: str = "sm8650") -> dict[str, Any]:
    """What the manifest of model `net` for a target says of its first bucket."""
    manifest = json.loads((project.root / "artifacts/net" / soc / "manifest.json").read_text("utf-8"))
    bucket: dict[str, Any] = manifest["components"]["net"]["buckets"][0]
    return bucket
