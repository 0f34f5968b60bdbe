"""What Dask runs on a worker, and what a worker announces of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pipeline.build.cluster.job import StepJob
from pipeline.model import Json

if TYPE_CHECKING:
    from pipeline.build.cluster.member import ClusterMember

_HOST = "host "
CALL = "__import__('pipeline.build.cluster.on_worker', fromlist=['make']).make(job)"
"""What Dask evaluates on a worker. A function of ours would be unpickled by the scheduler, which need not have us, and
one that is sent by value needs one Python version everywhere."""
_UNWATCHED: Mapping[str, Json] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
}
"""How rarely Dask is to look at what its threads do: a hundred times a second by default. Steps run in processes of
their own, of which it sees nothing, and which need the processor."""
member: ClusterMember | None = None
"""The member that this process is; None in every other process."""


def leave_unwatched() -> None:
    """Configure Dask for a process in which threads only wait for steps; before it makes a worker."""
    import dask

    dask.config.set(dict(_UNWATCHED))


def make(job: Mapping[str, Json]) -> Mapping[str, Json]:
    """Make the step of a job; the JSON of its answer."""
    if member is None:
        raise RuntimeError("this worker was not started by 'python -m pipeline.build.cluster'; see docs/cluster.md")
    return member.make(StepJob.from_json(job)).to_json()


def resource(name: str) -> str:
    """The Dask resource that a worker announces for one of its host names."""
    return _HOST + name


def resources(names: Iterable[str]) -> dict[str, float]:
    """The Dask resources for the names of a host. They are not used up: steps ask for none of them."""
    return {resource(name): 1.0 for name in names}


def host_names(resources: Mapping[str, float]) -> set[str]:
    """The names of a host that announces these resources."""
    return {name.removeprefix(_HOST) for name in resources if name.startswith(_HOST)}
