"""Starts a worker of a cluster, in a checkout: `python -m pipeline.build.cluster tcp://scheduler:8786`."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import uuid
from pathlib import Path

from pipeline.build.cluster import on_worker
from pipeline.build.cluster.member import ClusterMember
from pipeline.build.crew import cores
from pipeline.config.host_names import Host
from pipeline.errors import PipelineError

_ROOT = Path(__file__).resolve().parents[3]
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
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    try:
        return asyncio.run(_serve(given.scheduler, given.name, given.steps))
    finally:
        member.close()


async def _serve(scheduler: str, name: str, steps: int) -> int:
    try:
        from distributed import Worker
    except ImportError:
        print("error: distributed is not installed: run 'uv sync --extra cluster'", file=sys.stderr)
        return 10
    on_worker.leave_unwatched()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if os.name != "nt":
            loop.add_signal_handler(number, stop.set)
    names = Host.here(os.environ).names
    worker = Worker(
        scheduler,
        name=name,
        nthreads=steps,
        resources=on_worker.resources(names),
        death_timeout=_ABSENT_S,
        memory_limit=0,  # steps run in processes of their own, which have limits
        dashboard=False,
    )
    async with worker:
        print(f"worker {name} at {scheduler}: {', '.join(names)}; {steps} steps at once", flush=True)
        ended = asyncio.create_task(worker.finished())
        await asyncio.wait([ended, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
