"""A project of many small models that are wrong in one way each, and what the command line says of every one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.project import Project

MEMORY_BYTES = 8 << 30
"""Address space of every process. What is refused takes a tenth; what is not bounded takes all."""
TIMEOUT_S = 240

CONFIG = """\
source: {{path: ../models/{name}}}
components: {{net: {{file: {file}}}}}
buckets: {{n: [8]}}
quantization: {{precision: {precision}}}
verification: {{enabled: false}}
targets: [sm8650]
"""

_LIMITED = (
    f"import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}));"
    "runpy.run_module('doit', run_name='__main__', alter_sys=True)"
)
_STEP = re.compile(r"^\[ *\d+/\d+\] ", re.MULTILINE)


@dataclass(frozen=True)
class Said:
    """How a run ended, and what it said of each step that failed."""

    status: int
    text: str
    of_step: Mapping[str, str]


def run(project: Project, *arguments: str) -> Said:
    """Run doit with bounded memory and time; nothing may appear outside of the project and its store."""
    before = _around(project)
    command = ["-c", _LIMITED] if sys.platform != "win32" else ["-m", "doit"]
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=project.root,
        env={**os.environ, "PIPELINE_STORE": str(project.store), "HF_HUB_OFFLINE": "1", "RUST_BACKTRACE": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    text = (done.stdout + done.stderr).decode("utf-8")
    assert "Traceback" not in text, text
    assert all(char.isprintable() or char in "\n\t\r" for char in text), ascii(text)
    assert _around(project) == before
    found: dict[str, str] = {}
    for section in _STEP.split(text):
        kind, _, rest = section.partition(" ")
        if kind == "FAILED":
            step, _, message = rest.strip().partition("\n")
            found[step] = message
    return Said(done.returncode, text, found)


def add_model(
    project: Project, name: str, *, file: str = "model.onnx", precision: str = "fp16", more: str = ""
) -> Path:
    """A config, and the empty folder that its model goes into."""
    project.write(f"configs/{name}.yaml", CONFIG.format(name=name, file=file, precision=precision) + more)
    folder = project.root / "models" / name
    folder.mkdir(parents=True)
    return folder


def create(root: Path, makers: Collection[Callable[[Project], None]] = ()) -> Project:
    """A project in a folder that holds a secret beside it."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "secret").write_bytes(b"\0" * 4096)
    project = Project.create(root / "project", root / "store")
    for make in makers:
        make(project)
    return project


def _around(project: Project) -> dict[str, bytes]:
    """All files beside the project and its store."""
    inside = (project.root, project.store)
    files = (path for path in project.root.parent.rglob("*") if not any(path.is_relative_to(each) for each in inside))
    return {str(path): path.read_bytes() for path in files if path.is_file()}
