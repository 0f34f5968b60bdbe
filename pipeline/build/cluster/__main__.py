"""Starts a worker of a cluster, in a checkout: `python -m pipeline.build.cluster tcp://scheduler:8786`."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import signal
import sys
import uuid
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.build.cluster import on_worker
from pipeline.build.cluster.certificates import check_certificates
from pipeline.build.cluster.member import ClusterMember
from pipeline.build.crew import cores
from pipeline.config.host_names import Host
from pipeline.errors import PipelineError, WorkerError

_ROOT = Path(__file__).resolve().parents[3]
_LOST = "connection-broken"  # of what Dask says of why a worker ended: the scheduler did not tell it to
_ABSENT_S = 60.0  # after so long without a scheduler a worker ends: whoever started it starts it again


def main(arguments: list[str] | None = None) -> int:
    """Serve until the scheduler is gone for a minute, or a signal comes; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.build.cluster", description=(__doc__ or "").split(":")[0])
    parser.add_argument("scheduler", help="its address, as tcp://host:8786 or tls://host:8786")
    parser.add_argument("--name", default=f"{platform.node() or 'worker'}-{uuid.uuid4().hex[:6]}")
    parser.add_argument("--steps", type=int, default=cores(), help="steps at once; as many as there are cores")
    given = parser.parse_args(arguments)
    try:
        on_worker.member = member = ClusterMember(_ROOT, given.name, given.steps)
        with closing(member):
            return asyncio.run(_serve(given.scheduler, member, given.steps))
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


async def _serve(scheduler: str, member: ClusterMember, steps: int) -> int:
    try:
        from distributed import Worker
    except ImportError:
        print("error: distributed is not installed: run 'uv sync --extra cluster'", file=sys.stderr)
        return 10
    check_certificates(scheduler, "worker", scheduler)
    on_worker.leave_unwatched()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signalled in (signal.SIGINT, signal.SIGTERM):
        if os.name != "nt":
            loop.add_signal_handler(signalled, stop.set)
    name, names = member.name, Host.here(os.environ).names

    class JoinedWorker(Worker):  # type: ignore[misc]  # distributed is untyped here
        """A Dask worker that says why it ended."""

        why = ""

        async def close(self, *args: object, reason: str = "", **kwargs: object) -> object:
            self.why = self.why or reason
            return await super().close(*args, reason=reason, **kwargs)

    # A scheduler that was only out of reach still knows the name that it lost.
    for told in itertools.chain([name], (f"{name}-again-{number}" for number in itertools.count(1))):
        member.name = told  # a build looks for who refused it under the name that the scheduler has
        worker = JoinedWorker(
            scheduler,
            name=told,
            nthreads=steps,
            resources=on_worker.resources(names),
            death_timeout=_ABSENT_S,
            memory_limit=0,  # steps run in processes of their own, which have limits
            dashboard=False,
        )
        why: list[str] = []
        if not await _before(stop, _start(worker, why)):
            return 0
        if worker.status.name != "running":
            print(f"error: no worker of {scheduler} could be started: {'; '.join(why)}", file=sys.stderr)
            return WorkerError.exit_code
        print(f"worker {told} at {scheduler}: {', '.join(names)}; {steps} steps at once", flush=True)
        if not await _before(stop, worker.finished()):
            await worker.close()
            return 0
        if _LOST not in worker.why:  # it was told to end
            return 0
        print(f"worker {told} lost {scheduler}, and looks for it", flush=True)
    raise AssertionError


async def _start(worker: Any, why: list[str]) -> None:
    """Start a worker; `why` gets the reason where it does not, which its status says as well."""
    try:
        await worker
    except TimeoutError:
        why.append(_absent())
    except (RuntimeError, OSError) as error:
        met: BaseException = error
        while met.__cause__ is not None:  # Dask wraps what it met
            met = met.__cause__
        why.append(_absent() if isinstance(met, TimeoutError) else " ".join(str(met).split()))


def _absent() -> str:
    """Why a worker waited in vain; Dask says the same of a scheduler that refuses its certificates."""
    return (
        f"there is no scheduler, for {_ABSENT_S:.0f} s; or it was started with certificates, and answers only to tls://"
        " and certificates of the same authority"
    )


async def _before(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Whether some work came to its end before somebody said to stop; it is cancelled else."""
    doing, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not doing.done():
        doing.cancel()
        return False
    doing.result()
    return True


if __name__ == "__main__":
    sys.exit(main())
