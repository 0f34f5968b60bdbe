"""What the engine itself costs: steps that only sleep, on many Dask workers.

    uv run python -m tests.bench.engine [--workers 64] [--steps 10000] [--seconds 1]

Scheduler, client and what goes between them are those of a build: `Dispatcher.make` in as many threads as a build has,
a job and an answer of JSON for each step. The workers are Dask workers of one thread each, several in one process, and
what they do for a step is to sleep: no process is started, nothing is read or stored. So this is the price of handing
steps out, and not of making them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.build.cluster import on_worker
from pipeline.build.cluster.dispatcher import Dispatcher
from pipeline.build.cluster.job import Answer, StepJob
from pipeline.config.host_names import Host
from pipeline.config.load import load
from pipeline.config.project_file import ProjectFile
from pipeline.plan.planner import plan
from pipeline.plan.resolve import Resolved
from pipeline.plan.workspace import Workspace
from tests.support import tiny_project
from tests.support.cluster import Cluster, cluster

_PROCESSES = 4
_THREADS_A_WORKER = 2
"""Steps under way for each worker: one that runs, one that is on its way."""


@dataclass(frozen=True)
class Cost:
    """Of `steps` that slept so many seconds each: how long all took, and the CPU seconds of the build and of Dask."""

    workers: int
    steps: int
    sleep_s: float
    wall_s: float
    build_cpu_s: float
    scheduler_cpu_s: float
    workers_cpu_s: float

    @property
    def speed_up(self) -> float:
        """Against one worker that does nothing but sleep."""
        return self.steps * self.sleep_s / self.wall_s

    @property
    def unfilled_s(self) -> float:
        """For how long a step holds a worker beside an engine that costs nothing: the last round has too few steps."""
        return self.sleep_s * (math.ceil(self.steps / self.workers) * self.workers / self.steps - 1)

    def line(self) -> str:
        """The figures in words."""
        overhead = (self.wall_s * self.workers / self.steps - self.sleep_s) * 1e3
        parts = (("build", self.build_cpu_s), ("scheduler", self.scheduler_cpu_s), ("workers", self.workers_cpu_s))
        cpu = ", ".join(f"{name} {1e3 * seconds / self.steps:.1f} ms" for name, seconds in parts)
        return (
            f"{self.steps} steps of {self.sleep_s:g} s on {self.workers} workers: {self.wall_s:.1f} s,"
            f" {self.speed_up:.1f} x one worker ({self.speed_up / self.workers:.2f} of {self.workers}); a step holds"
            f" its worker {overhead:.1f} ms longer than it sleeps, {1e3 * self.unfilled_s:.1f} of them in a last round"
            f" of too few steps; CPU a step: {cpu}"
        )


class Sleeper:
    """In place of the member that makes steps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def make(self, job: StepJob) -> Answer:
        """Sleep."""
        time.sleep(self._seconds)
        return Answer("sleeper", seconds=self._seconds)


async def serve(url: str, count: int, seconds: float) -> None:
    """Be so many workers until the scheduler is gone."""
    from distributed import Worker

    on_worker.leave_unwatched()
    on_worker.member = Sleeper(seconds)  # type: ignore[assignment]
    announced = on_worker.resources(Host.here(os.environ).names)
    made = [
        Worker(url, name=f"{os.getpid()}-{number}", nthreads=1, resources=announced, memory_limit=0, dashboard=False)
        for number in range(count)
    ]
    await asyncio.gather(*made)
    print("ready", flush=True)
    await asyncio.gather(*(worker.finished() for worker in made))


@contextmanager
def sleeping_workers(at: Cluster, count: int, seconds: float) -> Iterator[Sequence[subprocess.Popen[str]]]:
    """So many workers, in a few processes."""
    shares = [count // _PROCESSES + (place < count % _PROCESSES) for place in range(_PROCESSES)]
    started = []
    try:
        for share in filter(None, shares):
            serving = f"serve({at.url!r}, {share}, {seconds})"
            code = f"import asyncio; from tests.bench.engine import serve; asyncio.run({serving})"
            command = [sys.executable, "-c", code]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def measured(workers: int, steps: int, seconds: float, folder: Path) -> Cost:
    """Have the steps made, and say what it cost."""
    project = tiny_project.create(folder / "project", folder / "store")
    (folder / "shared").mkdir()
    workspace = Workspace.at(project.root).configured(ProjectFile(), {"PIPELINE_SHARED_STORE": str(folder / "shared")})
    assert workspace.shared is not None
    workspace.shared.open()
    step = next(step for step in plan(load(project.root / tiny_project.CONFIG)) if step.stage == "shape")
    with cluster(folder / "cluster") as at, sleeping_workers(at, workers, seconds) as processes:
        dispatcher = Dispatcher(at.url, "here", workspace)
        assert at.scheduler is not None
        told = threading.Event()
        dispatcher.make(Resolved(step, step.params, {}, {}, "0" * 64), told.set)  # connects
        before = [cpu_s(at.scheduler.pid), sum(cpu_s(each.pid) for each in processes), time.process_time()]
        since = time.monotonic()
        with ThreadPoolExecutor(_THREADS_A_WORKER * workers) as threads:
            jobs = (Resolved(step, step.params, {}, {}, f"{number:064x}") for number in range(1, steps + 1))
            for slept in threads.map(lambda job: dispatcher.make(job, told.set), jobs):
                assert slept == seconds
        wall_s = time.monotonic() - since
        after = [cpu_s(at.scheduler.pid), sum(cpu_s(each.pid) for each in processes), time.process_time()]
        dispatcher.close()
    scheduler_s, workers_s, build_s = (late - early for early, late in zip(before, after, strict=True))
    return Cost(workers, steps, seconds, wall_s, build_s, scheduler_s, workers_s)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, user and system."""
    import psutil

    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="for which each step sleeps")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        cost = measured(given.workers, given.steps, given.seconds, Path(folder))
    print(cost.line())
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
