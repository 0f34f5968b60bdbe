"""Random damage to everything that a build leaves behind, and what a build and `doit fsck` make of it.

`python -m tests.corruptions --count 1000 --seed 1` does a long run in a temporary folder and prints figures.

A round harms several files, then runs `doit build` and `doit fsck`, in either order, and `doit build` once more. After
every build the artifacts must be what they were, each harm must have been named by one of the commands, and at the end
`doit fsck` must find nothing wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.report.page import PAGE
from tests.support.models import bert
from tests.support.project import Project

KINDS = ("flip", "truncate", "zero", "swap", "delete", "append", "foreign")
CACHES = ("memo.json", "doit.json", "costs.json")
"""Files that only save time: that one of them is missing is nothing to report."""

CONFIG = """\
source: {path: ../models/bert}
components:
  encoder: {file: onnx/model.onnx}
fixed: {batch: 1}
buckets: {sequence: [8, 16]}
calibration: {reader: text, file: calibration/lines.txt, tokenizer: tokenizer.json}
verification: {samples: {reader: text, file: calibration/held_out.txt, tokenizer: tokenizer.json}}
targets: [sm8650]
"""


@dataclass(frozen=True)
class Harm:
    """What was done to a file. `quiet` is damage that keeps size and modification time, as a failing disk does it."""

    kind: str
    path: Path
    quiet: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{' (quiet)' if self.quiet else ''} {self.path}"


@dataclass
class Figures:
    """What a run came to."""

    done: Counter[str] = field(default_factory=Counter)
    found_first_by: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    wrong_artifacts: list[str] = field(default_factory=list)
    not_healed: list[str] = field(default_factory=list)
    rounds: int = 0

    @property
    def is_good(self) -> bool:
        """Whether all was found and healed, and no build left a wrong artifact."""
        return not (self.missed or self.wrong_artifacts or self.not_healed)


class Corruptor:
    """Harms a built project, whose store is its own, and checks that it heals."""

    def __init__(self, project: Project, seed: int) -> None:
        self._project = project
        self._random = random.Random(seed)
        self._wanted = project.artifacts()
        self._steps = _contents(project.root / ".build" / "steps")
        self._steps_of = self._owners()
        self.figures = Figures()

    def run(self, count: int, batch: int) -> Figures:
        """Do so many harms, up to `batch` of them a round."""
        while (left := count - sum(self.figures.done.values())) > 0:
            self._round(min(left, self._random.randint(1, batch)))
        return self.figures

    def _round(self, count: int) -> None:
        harms = self._harmed(count)
        self.figures.rounds += 1
        said: dict[str, str] = {}
        commands = [("build",), ("fsck",)]
        self._random.shuffle(commands)
        for at, command in enumerate((*commands, ("build",))):
            run = self._project.doit(*command, check=False)
            said[f"{at} {command[0]}"] = run.text
            if command == ("build",):
                self._check_build(run.status, run.text, harms)
            elif run.status not in (0, 17) or "Traceback" in run.text:
                self.figures.not_healed.append(f"fsck ended with {run.status}:\n{run.text}")
        for harm in harms:
            self.figures.done[harm.kind + (" (quiet)" if harm.quiet else "")] += 1
            by = next((name for name, text in said.items() if self._names(text, harm)), None)
            if by is not None:
                self.figures.found_first_by[by.split()[1]] += 1
            elif harm.kind == "delete" and (harm.path.name in CACHES or harm.path.parent.name == "roots"):
                self.figures.found_first_by["nobody, as it is nothing"] += 1
            else:
                self.figures.missed.append(str(harm))
        self._end_round(harms)

    def _end_round(self, harms: Sequence[Harm]) -> None:
        for harm in harms:
            if harm.kind == "foreign":
                if harm.path.is_file():
                    harm.path.unlink()
                elif "steps" not in harm.path.parts and ".build" not in harm.path.parts:
                    self.figures.not_healed.append(f"a file that is not ours was deleted: {harm.path}")
        last = self._project.doit("fsck", check=False)
        if last.status or _contents(self._project.root / ".build" / "steps") != self._steps:
            self.figures.not_healed.append("; ".join(map(str, harms)) + "\n" + last.text)

    def _check_build(self, status: int, text: str, harms: Sequence[Harm]) -> None:
        present = self._project.artifacts()
        wrong = [name for name, data in self._wanted.items() if present.get(name) != data]
        if wrong or status:
            what = "; ".join(map(str, harms))
            self.figures.wrong_artifacts.append(f"status {status}, {wrong} after {what}\n{text}")

    def _names(self, text: str, harm: Harm) -> bool:
        """Whether a command named the file, or said that it made what is no more there."""
        steps = self._steps_of.get(harm.path, set())
        if harm.kind in ("delete", "swap") and any(f"  {step}\n" in text for step in steps):
            return True
        shown = [str(harm.path)]
        if harm.path.is_relative_to(self._project.root):
            shown.append(harm.path.relative_to(self._project.root).as_posix())
        return any(name in text for name in shown)

    def _harmed(self, count: int) -> list[Harm]:
        """Do the harm. No file is harmed twice."""
        files = self._files()
        self._random.shuffle(files)
        harms: list[Harm] = []
        while len(harms) < count:
            kind = self._random.choice(KINDS)
            if kind == "foreign":
                harms.append(self._foreign(files))
            elif kind == "swap" and (pair := self._pair(files)):
                harms += self._swap(*pair)
            elif kind != "swap":
                harms += self._harm(kind, files.pop())
        return harms

    def _owners(self) -> dict[Path, set[str]]:
        """The steps that each manifest and each payload is of."""
        found: dict[Path, set[str]] = {}
        steps, store = self._project.root / ".build" / "steps", self._project.store
        for path in _below(steps):
            stage, _, name = path.relative_to(steps).with_suffix("").as_posix().partition("/")
            manifest = json.loads(path.read_bytes())
            key, digests = manifest["key"], [entry["sha256"] for entry in manifest["files"].values()]
            payloads = [store / "objects" / digest[:2] / digest for digest in digests]
            for owned in (path, store / "manifests" / key[:2] / f"{key}.json", *payloads):
                found.setdefault(owned, set()).add(f"{stage}:{name}")
        return found

    def _files(self) -> list[Path]:
        """Everything that a build left, in random order; files of each kind come up about equally often."""
        build, store = self._project.root / ".build", self._project.store
        kinds = [
            _below(store / "objects"),
            _below(store / "manifests"),
            [path for path in _below(self._project.root / "artifacts") if path.name != PAGE],  # a reader's, not ours
            _below(build / "steps"),
            [build / "memo.json", build / "doit.json", store / "costs.json", *_below(store / "roots")],
        ]
        drawn = []
        for files in kinds:
            self._random.shuffle(files)
        while any(kinds):
            files = self._random.choice([files for files in kinds if files])
            drawn.append(files.pop())
        return drawn

    def _harm(self, kind: str, path: Path) -> list[Harm]:
        status, data = path.stat(), path.read_bytes()
        if kind == "delete":
            path.unlink()
            return [Harm(kind, path)]
        if kind in ("flip", "truncate", "zero") and not data:
            return []
        quiet = kind in ("flip", "zero") and self._random.random() < 0.4
        _write(path, self._changed(kind, data))
        if quiet:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return [Harm(kind, path, quiet)]

    def _changed(self, kind: str, data: bytes) -> bytes:
        """Other bytes in place of these."""
        changed = bytearray(data)
        if kind == "append":
            return data + self._random.randbytes(self._random.randint(1, 64))
        if kind == "truncate":
            return data[: self._random.randrange(len(data))]
        if kind == "zero":
            start = self._random.randrange(len(data))
            end = self._random.randint(start + 1, len(data))
            changed[start:end] = bytes(end - start)
        if kind == "flip" or bytes(changed) == data:
            changed[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _pair(self, files: list[Path]) -> tuple[Path, Path] | None:
        """Two files with different contents, which are taken from the list."""
        first = files.pop()
        for second in files:
            if second.read_bytes() != first.read_bytes():
                files.remove(second)
                return first, second
        return None

    def _swap(self, first: Path, second: Path) -> list[Harm]:
        aside = first.with_name("aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        return [Harm("swap", first), Harm("swap", second)]

    def _foreign(self, files: Sequence[Path]) -> Harm:
        """A new file beside one of the others, or in a folder above it."""
        folder = self._random.choice(files).parent
        tops = (self._project.root / "artifacts", self._project.root / ".build", self._project.store)
        if self._random.random() < 0.3 and folder.parent not in tops and folder not in tops:
            folder = folder.parent
        if folder.name == ".build":  # what else is in there is nobody's concern
            folder = self._project.store
        name = self._random.choice(["notes.txt", "copy of model.onnx", "새 파일.bin", "0" * 64, "a.json"])
        path = folder / f"{self._random.randrange(10**6)}{name}"
        path.write_bytes(self._random.randbytes(self._random.randint(0, 2000)))
        return Harm("foreign", path)


def small_project(root: Path) -> Project:
    """A small encoder with two buckets for one target, with a store of its own; built."""
    project = Project.create(root, root.parent / "store")
    bert.write(project.root / "models" / "bert")
    project.write("calibration/lines.txt", "a good day\nthe same again\nwhat is this\nnothing at all\n")
    project.write("calibration/held_out.txt", "another good day\nand one more\n")
    project.write("configs/bert.yaml", CONFIG)
    project.doit("build")
    return project


def _below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in _below(folder)}


def _write(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def main() -> int:
    """The command line; 0 if all was found and healed."""
    parser = argparse.ArgumentParser(prog="python -m tests.corruptions", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=12, help="the most harms before a build")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="corruptions-"))
    since = time.monotonic()
    figures = Corruptor(small_project(folder / "project"), given.seed).run(given.count, given.batch)
    print(f"{sum(figures.done.values())} harms in {figures.rounds} rounds, {time.monotonic() - since:.0f} s")
    print(f"harms: {dict(figures.done)}\nfirst named by: {dict(figures.found_first_by)}")
    for name in ("missed", "wrong_artifacts", "not_healed"):
        rows = getattr(figures, name)
        print(f"{name}: {len(rows)}", *rows, sep="\n  ")
    if figures.is_good:
        shutil.rmtree(folder)
    return 0 if figures.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
