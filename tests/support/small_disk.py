"""Commands on a disk of our own: mounted in a namespace of theirs, so that no privilege is needed and nothing stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.project import ROOT, Project

_SCRIPT = """\
import json, subprocess, sys
results = []
for command, folder, environ in json.load(sys.stdin):
    done = subprocess.run(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    results.append([done.returncode, done.stdout + done.stderr])
print(json.dumps(results))
"""
_LOOK = """\
import json, sys
from pathlib import Path
from tests.support.build_processes import leftovers
folders = [Path(name) for name in sys.argv[1:]]
left = [each for folder in folders for each in leftovers(folder)]
files = {str(path): path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}
print(json.dumps({"left": left, "files": files}))
"""


@dataclass(frozen=True)
class Done:
    """What one command did."""

    status: int
    text: str


class SmallDisk:
    """A disk at `folder`, and commands to run there one after the other; nothing happens before :meth:`run`."""

    def __init__(self, folder: Path, size: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._commands: list[tuple[Sequence[str], str, Mapping[str, str]]] = []
        self._asked: list[int] = []
        self._plain(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)])

    def remount(self, options: str) -> None:
        """Make it larger, or read-only: options of mount(8)."""
        self._plain(["mount", "-o", f"remount,{options}", str(self._folder)])

    def doit(self, project: Project, *arguments: str) -> None:
        """Run a command line of doit."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environ = inherited | {"PIPELINE_STORE": str(project.store)} | project.environ
        self._ask([sys.executable, "-m", "doit", *arguments], project.root, environ)

    def look(self, *folders: Path) -> None:
        """List what is there: `left`, what a build must not leave behind, and `files` with their sizes, as JSON."""
        self._ask([sys.executable, "-c", _LOOK, *map(str, folders)], ROOT, os.environ)

    def program(self, code: str, *arguments: object) -> None:
        """Run a program in the checkout."""
        self._ask([sys.executable, "-c", code, *map(str, arguments)], ROOT, os.environ)

    def shell(self, command: Sequence[str]) -> None:
        """Run any other command, which must succeed."""
        self._plain(command)

    def run(self) -> list[Done]:
        """Run all; what those did that were asked for, mounts left out."""
        done = subprocess.run(
            ["unshare", "-rm", sys.executable, "-c", _SCRIPT],
            input=json.dumps(self._commands),
            capture_output=True,
            text=True,
            check=True,
        )
        results = [Done(*each) for each in json.loads(done.stdout)]
        failed = [each.text for at, each in enumerate(results) if each.status and at not in self._asked]
        assert failed == []
        return [results[at] for at in self._asked]

    def _ask(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self._asked.append(len(self._commands))
        self._commands.append((command, str(folder), {**environ}))

    def _plain(self, command: Sequence[str]) -> None:
        self._commands.append((command, str(ROOT), {**os.environ}))


@cache
def is_available() -> bool:
    """Whether this host lets us have a mount namespace."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
