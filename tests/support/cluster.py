"""A cluster on this machine: a scheduler and workers, each worker in a checkout and with a store of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.project import Project, inherited

_READY_S = 120.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Cluster:
    """One scheduler, at a port that outlives it, and workers by name.

    `at` says what comes before a command of the scheduler or a worker, which puts it on a host of its own; `environ` is
    what workers need besides to reach the shared store, `certificates` what all need to reach each other by TLS.
    """

    root: Path
    shared: Path | str
    port: int
    address: str = "127.0.0.1"
    at: Callable[[str], Sequence[str]] = lambda _: ()
    environ: Mapping[str, str] = field(default_factory=dict)
    certificates: Mapping[str, str] = field(default_factory=dict)
    scheduler: subprocess.Popen[bytes] | None = None
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The scheduler's address."""
        return f"{self._protocol}://{self.address}:{self.port}"

    @property
    def _protocol(self) -> str:
        return "tls" if self.certificates else "tcp"

    def start_scheduler(self) -> None:
        """Start the scheduler: plain Dask, in a folder where our code is not."""
        command = ["-m", "distributed.cli.dask_scheduler", "--port", str(self.port), "--no-dashboard", "--no-show"]
        command += ["--host", f"{self._protocol}://{self.address}"]
        self.scheduler = self._started("scheduler", command, self.root, {"PYTHONPATH": ""})
        self._until("scheduler", "Scheduler at", self.scheduler)

    def start_worker(self, name: str, project: Project, host: str = "", **environ: str) -> None:
        """Start a worker in a checkout, and wait until the scheduler knows it."""
        own = {"PIPELINE_STORE": str(project.store), "PIPELINE_SHARED_STORE": str(self.shared)} | environ
        command = ["-m", "pipeline.build.cluster", self.url, "--name", name, "--steps", "2"]
        worker = self.workers[name] = self._started(name, command, project.root, {**self.environ, **own}, host)
        self._until(name, f"worker {name} at", worker)

    def log(self, name: str) -> str:
        """What the scheduler or a worker has printed."""
        return (self.root / f"{name}.log").read_text("utf-8", "replace")

    def _started(
        self, name: str, command: list[str], at: Path, environ: Mapping[str, str], host: str = ""
    ) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*self.at(host or name), sys.executable, *command],
                cwd=at,
                env={**inherited(), **self.certificates, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=os.name != "nt",
            )

    def _until(self, name: str, said: str, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _READY_S
        while said not in self.log(name):
            assert process.poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.05)


@contextmanager
def cluster(root: Path, certificates: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster with a scheduler and no worker yet, and a folder to share; nothing of it is left afterwards."""
    root.mkdir()
    (root / "shared").mkdir()
    with running(Cluster(root, root / "shared", free_port(), certificates=certificates or {})) as made:
        yield made


@contextmanager
def running(made: Cluster) -> Iterator[Cluster]:
    """A cluster with its scheduler; nothing of it is left afterwards."""
    try:
        made.start_scheduler()
        yield made
    finally:
        for process in (*made.workers.values(), made.scheduler):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
