"""What `.ci/run` ends with, and what it gives pytest. The programs that it calls note their words and do nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it is a script of bash")


def _run(folder: Path, fails: str, **environ: str) -> tuple[int, list[str]]:
    """The exit status of a run in which a command of Python fails, and the words of each, with pytest's variable."""
    (folder / "bin").mkdir()
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    noted = 'echo "$*|${PYTEST_ADDOPTS:-}" >> words'
    for name, text in {"python3": f'{noted}; [ "$*" != "{fails}" ] || exit 7', "chromium": ""}.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", ".ci/run"], cwd=folder, env={**os.environ, **environ, "PATH": path}, check=False)
    return done.returncode, (folder / "words").read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    "fails", ["-m pip install --quiet uv", "-m uv run doit build", "-m uv run doit check", "-m uv run pytest", ""]
)
def test_whatever_fails_fails_the_run(fails: str, tmp_path: Path) -> None:
    status, words = _run(tmp_path, fails)
    assert status == (7 if fails else 0)
    assert words[0].startswith("-m pip install --quiet uv|")


def test_what_the_caller_gives_pytest_is_kept(tmp_path: Path) -> None:
    _, words = _run(tmp_path, "", PYTEST_ADDOPTS="--lf")
    (given,) = (word for word in words if word.startswith("-m uv run pytest|"))
    assert given.startswith("-m uv run pytest|--lf -m 'not slow or ci' -n ")
