"""The walk over a cluster: a scheduler, four workers and an S3 server, on hosts that see each other by a network alone.

    python -m tests.cluster_walk [--model demo] [--kills 50] [--schedulers 2] [--seed 1] [--only killed]

Hosts are network namespaces of this machine, so this needs root and `ip`. Each worker has a checkout and a store of its
own; what it shares with the others is the code and a bucket. The walk builds a model on one host, then by the cluster,
and compares the bytes: with nothing in the way, with workers and the scheduler killed at random moments, with a worker
of another version among them, and with a cable that is pulled for a while.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pipeline.store.shared.names import manifest_name
from tests.support import tiny_project
from tests.support.cluster import Cluster, running
from tests.support.network import Network, is_permitted, network
from tests.support.project import ROOT, Project, Run
from tests.support.s3_server import S3Server

CHAPTERS = ("undisturbed", "version", "partition", "killed")
WORKERS = ("one", "two", "three", "four")
_SCHEDULER, _PORT = "scheduler", 8786
_CUT_S = 20.0
_SLACK_S = 10.0
_CHANGED = "pipeline/stages/shape.py"
_DIED_OF_IT = 18
"""Exit code of a build of which one step lost five workers in a row; the remedy is to build again."""


@dataclass
class Chapter:
    """What came of a part of the walk.

    `made` counts steps that workers made, `again` those of them that two made, `late` those that one began when the
    bucket had them. `same`: the artifacts are those of one host, byte for byte.
    """

    name: str
    same: bool = False
    seconds: float = 0.0
    builds: int = 0
    kills: int = 0
    schedulers: int = 0
    made: int = 0
    again: int = 0
    late: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The figures in words."""
        killed = f", {self.kills} workers and {self.schedulers} schedulers killed" if self.kills else ""
        again = f", {self.again} of them twice" if self.again else ""
        verdict = "the bytes of one host" if self.same else "OTHER BYTES"
        late = f"; made though they were there: {', '.join(self.late)}" if self.late else ""
        told = "".join(f"\n    {each}" for each in self.told)
        builds = f" in {self.builds} builds" if self.builds > 1 else ""
        return (
            f"{self.name}: {verdict}; {self.seconds:.0f} s{builds}{killed};"
            f" {self.made} steps made by workers{again}{late}{told}"
        )

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return self.same and not self.late


class Watch:
    """Notes when the bucket first had each output."""

    def __init__(self, server: S3Server, url: str) -> None:
        self.first_s: dict[str, float] = {}
        self._system, self._folder = server.system(), f"{url.removeprefix('s3://')}/manifests"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.3):
            try:
                found = self._system.find(self._folder)
            except OSError:
                continue
            for path in found:
                self.first_s.setdefault(Path(path).stem, time.time())


class Walk:
    """One walk, in an empty folder."""

    def __init__(self, root: Path, model: str, seed: int, source: Path | None = None) -> None:
        """`source` is a folder with the model's files, in place of where its config has them from."""
        self._root, self._model, self._chance = root, model, random.Random(seed)
        self._source = source
        self._number = 0
        self.alone = self._project("alone")
        since = time.monotonic()
        self.alone.doit("-n", "2", f"build:{model}")
        self.alone_s = time.monotonic() - since
        steps = json.loads((self.alone.root / ".build" / "run.json").read_bytes())["steps"].values()
        self.longest_s = max(step.get("seconds", 0.0) for step in steps)

    def chapters(self, kills: int, schedulers: int, only: Collection[str] = CHAPTERS) -> Iterator[Chapter]:
        """All of them, or `only` some."""
        with network() as net:
            for name in (_SCHEDULER, *WORKERS, "other"):
                net.add(name)
            with S3Server(self._root / "s3", net.address) as server:
                if "undisturbed" in only:
                    yield self._undisturbed(net, server)
                if "version" in only:
                    yield self._another_version(net, server)
                if "partition" in only:
                    yield self._partition(net, server)
                if "killed" in only and (kills or schedulers):
                    yield self._killed(net, server, kills, schedulers)

    def _undisturbed(self, net: Network, server: S3Server) -> Chapter:
        chapter = Chapter("four workers")
        with self._cluster(net, server, chapter) as at:
            self._judge(chapter, self._build(at, chapter), at)
        return chapter

    def _another_version(self, net: Network, server: S3Server) -> Chapter:
        chapter = Chapter("a worker of another version")
        with self._cluster(net, server, chapter, WORKERS[:1]) as at:
            other = self._checkout("other")
            path = other.root / _CHANGED
            path.write_text(path.read_text("utf-8") + "\nprint(end='')\n", "utf-8")
            at.start_worker("other", other)
            run = self._build(at, chapter)
            chapter.told = [line for line in run.text.splitlines() if "is not used" in line]
            self._judge(chapter, run, at)
            chapter.same = chapter.same and len(chapter.told) == 1
        return chapter

    def _partition(self, net: Network, server: S3Server) -> Chapter:
        chapter = Chapter(f"a cable pulled for {_CUT_S:.0f} s")
        with self._cluster(net, server, chapter, WORKERS[:2]) as at:
            with self._building(at, chapter) as ended:
                self._until(lambda: self._made(at) or ended)
                net.cut(WORKERS[0])
                time.sleep(_CUT_S)
                chapter.told.append("it was pulled before the build had ended" if not ended else "TOO LATE")
                net.heal(WORKERS[0])
            self._judge(chapter, ended[0], at)
        return chapter

    def _killed(self, net: Network, server: S3Server, kills: int, schedulers: int) -> Chapter:
        chapter = Chapter("kill -9", same=True)
        while chapter.kills < kills or chapter.schedulers < schedulers:
            with self._cluster(net, server, chapter) as at:
                with self._building(at, chapter) as ended:
                    self._shoot(at, chapter, kills, schedulers, ended)
                run = ended[0]
                while run.status == _DIED_OF_IT:
                    chapter.told.append(run.text.strip().splitlines()[-1][:200])
                    run = self._build(at, chapter)
                same = chapter.same
                self._judge(chapter, run, at)
                chapter.same = chapter.same and same
            print(f"so far: {chapter.line()}", flush=True)
        return chapter

    def _shoot(self, at: Cluster, chapter: Chapter, kills: int, schedulers: int, ended: Sequence[Run]) -> None:
        """Kill until it is enough, or the build has ended; something is made between two kills."""
        turn = 0
        while not ended and (chapter.kills < kills or chapter.schedulers < schedulers):
            before = len(self._made(at))
            self._until(lambda before=before: len(self._made(at)) > before or ended, 5 * self.longest_s + 60)  # type: ignore[misc]
            time.sleep(self._chance.uniform(0.0, self.longest_s / 2))
            turn += 1
            if chapter.schedulers < schedulers and turn % 4 == 2:
                assert at.scheduler is not None
                at.scheduler.kill()
                at.scheduler.wait()
                chapter.schedulers += 1
                at.start_scheduler()
            elif chapter.kills < kills:
                name = self._chance.choice([*at.workers])
                process = at.workers.pop(name)
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    chapter.kills += 1
                process.wait()
                host, _, number = name.partition("-")
                checkout = Project(self._here.root.with_name(f"{self._here.root.name}-{host}"), Path())
                again = f"{host}-{int(number or 0) + 1}"
                at.start_worker(again, Project(checkout.root, checkout.root / "store"), host)

    @contextmanager
    def _cluster(
        self, net: Network, server: S3Server, chapter: Chapter, workers: Sequence[str] = WORKERS
    ) -> Iterator[Cluster]:
        """A new bucket, new checkouts, and a cluster of these workers."""
        self._number += 1
        self._here = self._project(f"here{self._number}")
        folder = self._root / f"cluster{self._number}"
        folder.mkdir()
        url = server.bucket()
        self._watch = Watch(server, url)
        environ = server.environ()
        self._here.environ |= environ
        made = Cluster(folder, url, _PORT, net.hosts[_SCHEDULER], net.at, environ)
        try:
            with running(made) as at:
                for name in workers:
                    at.start_worker(name, self._checkout(name))
                yield at
        finally:
            self._watch.close()
            for path in self._root.glob(f"{self._here.root.name}*"):
                shutil.rmtree(path)

    def _build(self, at: Cluster, chapter: Chapter) -> Run:
        since = time.monotonic()
        arguments = ("-n", "8", f"build:{self._model}", f"engine={at.url}")
        run = self._here.doit(*arguments, check=False, PIPELINE_SHARED_STORE=str(at.shared))
        chapter.seconds += time.monotonic() - since
        chapter.builds += 1
        return run

    @contextmanager
    def _building(self, at: Cluster, chapter: Chapter) -> Iterator[list[Run]]:
        """What a build came to that runs meanwhile, once it has ended."""
        ended: list[Run] = []
        thread = threading.Thread(target=lambda: ended.append(self._build(at, chapter)))
        thread.start()
        try:
            yield ended
        finally:
            thread.join()

    def _judge(self, chapter: Chapter, run: Run, at: Cluster) -> None:
        """Compare what was built with what one host made, and count what workers did for it."""
        assert run.status == 0, run.text
        chapter.same = self._here.artifacts() == self.alone.artifacts()
        made = self._made(at)
        chapter.made += len(made)
        times: dict[str, list[float]] = {}
        for path in made:
            times.setdefault(path.stem, []).append(path.stat().st_mtime)
        chapter.again += sum(len(each) > 1 for each in times.values())
        known = self._watch.first_s
        most_s = 3 * self.longest_s + _SLACK_S
        chapter.late += [key for key, each in times.items() if key in known and max(each) > known[key] + most_s]
        assert known, f"the bucket has nothing at {manifest_name('0' * 64)}"

    def _made(self, at: Cluster) -> list[Path]:
        """What the workers have made, in their own stores."""
        return [*self._root.glob(f"{self._here.root.name}-*/store/manifests/*/*.json")]

    def _project(self, name: str) -> Project:
        root = self._root / name
        if self._model == tiny_project.NAME:
            return tiny_project.create(root, root / "store", targets=["sm8650"])
        project = Project.create(root, root / "store")
        for path in (f"configs/{self._model}.yaml", f"configs/{self._model}", f"calibration/{self._model}"):
            source = ROOT / path
            if source.is_dir():
                shutil.copytree(source, root / path)
            elif source.exists():
                shutil.copy(source, root / path)
        if self._source is not None:
            self._give(project, self._source)
        for script in (ROOT / "calibration").glob(f"{self._model}*.py"):
            shutil.copy(script, root / "calibration")
        return project

    def _give(self, project: Project, source: Path) -> None:
        """Have the model's config take its files from a copy of a folder beside it, each where the config names it."""
        config = project.root / f"configs/{self._model}.yaml"
        given = yaml.safe_load(config.read_text("utf-8"))
        folder = config.with_suffix("")
        for file in (component["file"] for component in given["components"].values()):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / Path(file).name, folder / file)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        config.write_text(yaml.safe_dump({**given, "source": {"path": folder.name}}), "utf-8")

    def _checkout(self, name: str) -> Project:
        """The code on another machine: no model, no sample, no config."""
        root = self._here.root.with_name(f"{self._here.root.name}-{name}")
        return Project.create(root, root / "store")

    def _until(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Walk and print; 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_walk", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="demo", help=f"a config of this project, or {tiny_project.NAME}")
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="the model's files, else those of its config")
    parser.add_argument("--only", nargs="+", choices=CHAPTERS, default=CHAPTERS, help="some chapters")
    parser.add_argument("--kills", type=int, default=50, help="of workers")
    parser.add_argument("--schedulers", type=int, default=2, help="kills of the scheduler")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if not is_permitted():
        print("this needs 'ip' and the right to make network namespaces: run it as root", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that hosts and servers are ended, too
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder), given.model, given.seed, given.source)
        print(f"{given.model} on one host: {walk.alone_s:.0f} s, its longest step {walk.longest_s:.1f} s", flush=True)
        right = True
        for chapter in walk.chapters(given.kills, given.schedulers, given.only):
            print(chapter.line(), flush=True)
            right = right and chapter.is_right
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
