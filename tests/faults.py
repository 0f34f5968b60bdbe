"""Kills a real build at random moments, and holds what is left against one that nobody disturbed.

    python -m tests.faults --kills 200 [--seed N] [--folder FOLDER]

A round begins from nothing, or from a store without its checkout's build folder, or from everything but the artifacts.
It is killed once or several times, each time resumed; then the build runs to its end. After each kill no process may
be left; at the end of the round the exit status is 0, the artifacts are those of the undisturbed build, byte for byte,
and no temporary file or folder and no lock is left. The seed fixes what is struck and when; the machine does the rest.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import tiny_project
from tests.support.build_processes import Build, Ended, leftovers, tree, until
from tests.support.strikes import ANY_TIME, GENTLE, GIVE_UP_S, INTERRUPTED, STRIKES

_RESUME = "run the same command again to resume"
_BEGUN = re.compile(r"^\[ *\d+/\d+\]", re.MULTILINE)
BEGINNINGS = ("nothing", "nothing", "store", "no artifacts")


@dataclass(frozen=True)
class Kill:
    """One kill: what was struck when, and what came of it."""

    strike: str
    moment: str
    status: int
    seconds: float
    complaints: tuple[str, ...]


@dataclass
class Report:
    """What a whole run came to."""

    seed: int
    kills: list[Kill] = field(default_factory=list)
    rounds: int = 0
    missed: int = 0
    complaints: list[str] = field(default_factory=list)

    def text(self) -> str:
        """As a table."""
        lines = [f"{'struck':38} {'kills':>5}  {'seconds to the end of doit':28} exit status"]
        for name in STRIKES:
            those = [kill for kill in self.kills if kill.strike == name]
            if those:
                seconds = sorted(kill.seconds for kill in those)
                spread = f"median {statistics.median(seconds):5.2f}, most {seconds[-1]:5.2f}"
                statuses = Counter(kill.status for kill in those)
                ends = ", ".join(f"{status} ×{count}" for status, count in sorted(statuses.items()))
                lines.append(f"{name:38} {len(those):>5}  {spread:28} {ends}")
        moments = Counter(kill.moment.split()[0] for kill in self.kills)
        lines.append("")
        lines.append("moments: " + ", ".join(f"{count} {name}" for name, count in moments.most_common()))
        lines.append(
            f"seed {self.seed}: {len(self.kills)} kills in {self.rounds} rounds, {self.missed} strikes after the end; "
            f"{len(self.complaints)} complaints"
        )
        return "\n".join([*lines, *self.complaints])


class Range:
    """A project to be shot at, and what it should come to."""

    def __init__(self, folder: Path, seed: int, *, patience_s: float, buckets: Sequence[int] = (8, 16)) -> None:
        """`patience_s`: within it a gentle stop must have ended doit, and any kill all processes."""
        self._folder = folder
        self._patience_s = patience_s
        self._chance = random.Random(seed)
        self._temporary = folder / "temporary"
        self._temporary.mkdir(parents=True)
        environ = {"TMPDIR": str(self._temporary)}
        self.project = tiny_project.create(folder / "project", folder / "store", buckets=buckets)
        self.project.environ |= environ
        since = time.monotonic()
        self.project.doit("-n", "2", "build")
        self.whole_s = time.monotonic() - since
        self.steps = len(self._manifests())
        self.expected = tree(self.project.root / "artifacts")
        self.report = Report(seed)

    def run(self, kills: int, told: Callable[[str], None]) -> Report:
        """Rounds until so many kills have struck."""
        names: list[str] = []
        while len(self.report.kills) < kills:
            self.report.rounds += 1
            names = names or self._chance.sample([*STRIKES], len(STRIKES))
            beginning = self._chance.choice(BEGINNINGS if names[-1] in ANY_TIME else BEGINNINGS[:1])
            self._begin(beginning)
            wanted = min(self._chance.choice((1, 1, 2, 3, 5, 8)), kills - len(self.report.kills))
            struck = 0
            while struck < wanted and not self._is_whole():
                names = names or self._chance.sample([*STRIKES], len(STRIKES))
                done = self._kill(names[-1])
                if done is None:
                    self.report.missed += 1
                    break
                names.pop()
                struck += 1
                self.report.kills.append(done)
                told(
                    f"{len(self.report.kills):4}  {done.strike:38} {done.moment:28} {done.status:4} {done.seconds:.2f}"
                )
                self._complain(f"kill {len(self.report.kills)}, {done.strike} {done.moment}", done.complaints, told)
            self._complain(f"round {self.report.rounds}, from {beginning}, {struck} kills", self._finished(), told)
        return self.report

    def _begin(self, beginning: str) -> None:
        root = self.project.root
        lost = {
            "nothing": [self.project.store, root / ".build", root / "artifacts"],
            "store": [root / ".build", root / "artifacts"],
            "no artifacts": [root / "artifacts"],
        }[beginning]
        for folder in lost:
            shutil.rmtree(folder, ignore_errors=True)

    def _kill(self, name: str) -> Kill | None:
        strike, statuses = STRIKES[name]
        moment, reached = self._moment()
        fresh = {"PIPELINE_WORKERS": "fresh"} if self._chance.random() < 0.05 else {}
        with Build(self.project, "-n", "2", "build", log=self._folder / "log", **fresh) as build:
            if not until(reached, build, GIVE_UP_S) or not strike(build, self._chance):
                build.end(GIVE_UP_S)
                return None
            since = time.monotonic()
            try:
                ended = build.end(GIVE_UP_S)
            except subprocess.TimeoutExpired:
                return Kill(name, moment, 0, GIVE_UP_S, (f"doit did not end:\n{build.text()}",))
            seconds = ended.at - since
            complaints = [f"still there: {process}" for process in build.orphans(self._patience_s)]
        complaints += self._judged(name, statuses, ended, seconds)
        return Kill(name, moment, ended.status, seconds, tuple(complaints))

    def _judged(self, name: str, statuses: Sequence[int], ended: Ended, seconds: float) -> list[str]:
        """What is wrong with how doit ended."""
        complaints = []
        is_begun = bool(_BEGUN.search(ended.text))
        unready = name in (*GENTLE, "two in a row") and not is_begun and ended.status < 0  # Python itself was starting
        if ended.status not in statuses and not unready and not self._is_whole():
            complaints.append(f"exit status {ended.status}:\n{ended.text}")
        if "Traceback" in ended.text and is_begun:
            complaints.append(f"a traceback:\n{ended.text}")
        if name in GENTLE:
            if ended.status == INTERRUPTED and _RESUME not in ended.text:
                complaints.append(f"it does not say how to resume:\n{ended.text}")
            if seconds > self._patience_s:
                complaints.append(f"it took {seconds:.1f} s to stop")
        return complaints

    def _moment(self) -> tuple[str, Callable[[], bool]]:
        """When to strike: at a time, or a bit after so many steps are published or restored, or files exported."""
        published, left = len(self._manifests()), 1 - len(self._manifests()) / self.steps
        at = self._chance.uniform(0.05, max(0.3, 0.2 + (self.whole_s - 0.2) * left * 0.9))
        moments = [(f"time {at:.3f} s", _after(lambda: True, at))]
        for kind, names, whole, most_s in (
            ("publish", self._manifests, self.steps, 0.03),
            ("restore", self._restored, self.steps if not left else published, 0.01),
            ("export", self._exported, len(self.expected) if left < 0.5 else 0, 0.003),
        ):
            have = len(names())
            if have < whole:
                count, bit = self._chance.randrange(have, whole), self._chance.uniform(0, most_s)
                moments += [(f"{kind} {count + 1} + {bit:.4f} s", _after(_more_than(names, count), bit))] * 2
        return self._chance.choice(moments)

    def _finished(self) -> list[str]:
        """Run the build to its end; what is wrong with that."""
        run = self.project.doit("-n", "2", "build", check=False)
        complaints = [] if run.status == 0 else [f"the next build ended with {run.status}:\n{run.text}"]
        artifacts = tree(self.project.root / "artifacts") if run.status == 0 else self.expected
        other = [name for name in {**artifacts, **self.expected} if artifacts.get(name) != self.expected.get(name)]
        complaints += [f"not what the undisturbed build made: {name}" for name in sorted(other)]
        root = self.project.root
        left = leftovers(self.project.store, root / ".build", root / "artifacts")
        left += [str(path) for path in self._temporary.iterdir()]
        return [*complaints, "\n    ".join(["left behind:", *left])] if left else complaints

    def _complain(self, where: str, complaints: Sequence[str], told: Callable[[str], None]) -> None:
        for complaint in complaints:
            self.report.complaints.append(f"{where}: {complaint}")
            told(self.report.complaints[-1])
        if complaints:
            kept = self._folder / f"complaint-{len(self.report.complaints)}"
            shutil.copytree(self.project.root / ".build", kept / "build", ignore_dangling_symlinks=True)
            shutil.copytree(self.project.store, kept / "store", ignore_dangling_symlinks=True)
            shutil.rmtree(self._temporary)
            self._temporary.mkdir()

    def _is_whole(self) -> bool:
        return self._exported() == self.expected.keys() and len(self._manifests()) == self.steps

    def _manifests(self) -> set[str]:
        return _names(self.project.store / "manifests")

    def _restored(self) -> set[str]:
        return _names(self.project.root / ".build" / "steps")

    def _exported(self) -> set[str]:
        return _names(self.project.root / "artifacts")


def _names(root: Path) -> set[str]:
    """Files under a folder, by relative name, but temporary ones; they may come and go meanwhile."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if not path.name.startswith(".") and path.suffix and path.is_file() and path.name != "report.html"
    }


def _more_than(names: Callable[[], set[str]], count: int) -> Callable[[], bool]:
    return lambda: len(names()) > count


def _after(reached: Callable[[], bool], seconds: float) -> Callable[[], bool]:
    """A condition that holds so long after another one held first."""
    since: list[float] = []

    def condition() -> bool:
        if not since and reached():
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= seconds

    return condition


def main(arguments: Sequence[str]) -> int:
    """Run by command; 1 if there is anything to complain about."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; what went wrong is kept there")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    since = time.monotonic()
    shot = Range(folder, chosen.seed, patience_s=3)
    print(f"undisturbed: {shot.whole_s:.1f} s, {shot.steps} steps, {len(shot.expected)} artifacts", flush=True)
    report = shot.run(chosen.kills, lambda line: print(line, flush=True))
    print(f"\n{report.text()}\n{time.monotonic() - since:.0f} s")
    if not report.complaints and not chosen.folder:
        shutil.rmtree(folder)
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
