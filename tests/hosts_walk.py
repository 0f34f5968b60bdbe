"""The walk over two hosts: one that may run all but the context stage, one that may run nothing else.

    python -m tests.hosts_walk [FOLDER]

prints what is typed and what is said, as docs/hosts.md has it. Both checkouts are on this machine; all that they share
is version control and the folder of the shared store. A third builds the same on one host.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import tiny_project
from tests.support.project import Project, Run

RULES = """\
store: {shared: ../shared}
stages:
  "*": {hosts: [quantizer]}
  context: {hosts: [compiler]}
"""
RELEASE = "release: {version: '1.0'}\n"


@dataclass(frozen=True)
class Walk:
    """What each command did, in order, what came of it, and the same of a build on one host."""

    there: Run
    over_there: Run
    back: Run
    published: Mapping[str, bytes]
    artifacts: Mapping[str, bytes]
    published_at_once: Mapping[str, bytes]
    artifacts_at_once: Mapping[str, bytes]


def checkout(root: Path, name: str, **environ: str) -> Project:
    """A checkout with a store of its own, that was not built yet."""
    made = tiny_project.create(root / name, root / name / ".build" / "store", targets=["snapdragon-x-elite"])
    config = made.root / tiny_project.CONFIG
    config.write_text(config.read_text("utf-8") + RELEASE, "utf-8")
    made.write("configs/project.yaml", RULES)
    made.environ.update(environ)
    return made


def walk(root: Path, shared: Mapping[str, str] | None = None) -> Walk:
    """Walk, in an empty folder; `shared` is what the environment says of another shared store than a folder in it."""
    (root / "shared").mkdir()
    quantizer = checkout(root, "quantizer", PIPELINE_HOST="quantizer", **(shared or {}))
    compiler = checkout(root, "compiler", PIPELINE_HOST="compiler", **(shared or {}))
    alone = checkout(root, "alone", PIPELINE_HOST="quantizer, compiler", PIPELINE_SHARED_STORE="")
    there = quantizer.doit("publish", "../released", check=False)
    over_there = compiler.doit("build:tiny", check=False)
    back = quantizer.doit("publish", "../released")
    alone.doit("publish", "../at_once")
    return Walk(
        there,
        over_there,
        back,
        _files(root / "released"),
        quantizer.artifacts(),
        _files(root / "at_once"),
        alone.artifacts(),
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _told(found: Walk, root: Path) -> str:
    """The walk as docs/hosts.md shows it."""
    lines = [
        "quantizer$ doit publish ../released",
        found.there.text.strip(),
        f"quantizer$ echo $?\n{found.there.status}\n",
        "compiler$ doit build:tiny",
        found.over_there.text.strip(),
        f"compiler$ echo $?\n{found.over_there.status}\n",
        "quantizer$ doit publish ../released",
        found.back.text.strip(),
        f"quantizer$ echo $?\n{found.back.status}\n",
        "$ sha256sum released/* at_once/*",
        *(
            f"{hashlib.sha256(data).hexdigest()}  {folder}/{name}"
            for folder, files in (("released", found.published), ("at_once", found.published_at_once))
            for name, data in sorted(files.items())
        ),
    ]
    return re.sub(r"\n\n+(?=\S+  +\S)", "\n\n", "\n".join(lines)).replace(str(root), "…")


def main() -> None:
    """Print the walk."""
    folder = Path(sys.argv[1]).resolve() if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="walk-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(_told(walk(folder), folder))
    if not sys.argv[1:]:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
