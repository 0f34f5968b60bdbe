"""Virtual environments for what this project does not depend on, or must do without."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.project import ROOT
from tests.support.uv_command import find_uv

_TIMEOUT_S = 1800


def python_with(requirements: Sequence[str], folder: Path) -> Path:
    """The Python of an environment that has what is required; it is made anew where `folder` has another."""
    python, installed = _python(folder / "venv"), folder / "installed.txt"
    if not installed.exists() or installed.read_text("utf-8").split() != [*requirements]:
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(folder / "venv")], os.environ)
        run([str(python), "-m", "pip", "install", "--quiet", *requirements], os.environ)
        installed.write_text("\n".join(requirements) + "\n", "utf-8")
    return python


def python_with_runtime(packages: Sequence[str], folder: Path) -> Path:
    """The Python of a new environment in `folder` with these packages, as they are here, and the runtime."""
    uv = find_uv()
    assert uv, "uv is what CI installs with"
    python = _python(folder)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in packages]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *pinned], check=True)
    where = [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    shutil.copytree(
        ROOT / "pipeline" / "qnn_release", Path(site) / "qnn_release", ignore=shutil.ignore_patterns("__pycache__")
    )
    return python


def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(command[:6])}: {(done.stdout + done.stderr)[-3000:]}"


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
