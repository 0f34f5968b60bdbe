"""Steps made by workers of a real Dask cluster: the bytes of one host, whoever is killed, and nobody who differs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import guests, tiny_project
from tests.support.cluster import Cluster, cluster
from tests.support.project import Project, Run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills process groups")


@pytest.fixture
def here(tmp_path: Path) -> Project:
    return tiny_project.create(tmp_path / "here", tmp_path / "here" / ".build" / "store", targets=["sm8650"])


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as made:
        yield made


def checkout(project: Project, name: str) -> Project:
    """The same commit on another machine: code and settings, and no sample, no model, no config."""
    root = project.root.with_name(name)
    made = Project.create(root, root / ".build" / "store")
    for stage in ("shape", "quantize"):
        path = f"pipeline/stages/{stage}.py"
        made.write(path, (project.root / path).read_text("utf-8"))
    return made


def build(project: Project, at: Cluster, *arguments: str, check: bool = True) -> Run:
    shared = str(at.shared)
    return project.doit("-n", "4", "build", f"engine={at.url}", *arguments, check=check, PIPELINE_SHARED_STORE=shared)


def sleeps(project: Project) -> None:
    """Have each step of the stage `shape` take three seconds."""
    path = "pipeline/stages/shape.py"
    text = (project.root / path).read_text("utf-8")
    project.write(
        path,
        f"{text}\n\n_run = run\n\n\ndef run(request):\n    import time\n    time.sleep(3)\n    return _run(request)\n",
    )


@pytest.mark.slow
def test_the_bytes_are_those_of_one_host_and_nothing_is_made_twice(here: Project, at: Cluster) -> None:
    alone = tiny_project.create(here.root.with_name("alone"), here.root.with_name("alone-store"), targets=["sm8650"])
    alone.doit("build")
    workers = [checkout(here, name) for name in ("one", "two")]
    for worker in workers:
        at.start_worker(worker.root.name, worker)
    run = build(here, at)
    assert here.artifacts() == alone.artifacts()
    made = [path for worker in workers for path in worker.root.glob(".build/logs/context/**/*.log")]
    assert len(made) == 2, "each of the two buckets by one of the workers"
    assert "context" in run.stages()
    assert not build(here, at).built


@pytest.mark.slow
def test_workers_and_the_scheduler_are_killed_and_the_bytes_are_the_same(here: Project, at: Cluster) -> None:
    alone = tiny_project.create(here.root.with_name("alone"), here.root.with_name("alone-store"), targets=["sm8650"])
    alone.doit("build")
    sleeps(here)
    for name in ("one", "two"):
        at.start_worker(name, checkout(here, name))
    ended: list[Run] = []
    thread = threading.Thread(target=lambda: ended.append(build(here, at, check=False)))
    thread.start()
    until(lambda: [*here.root.parent.glob("*/.build/logs/shape/**/*.log")])
    os.killpg(at.workers["one"].pid, 9)
    assert at.scheduler is not None
    at.scheduler.kill()
    at.scheduler.wait()
    time.sleep(1)
    at.start_scheduler()
    at.start_worker("three", checkout(here, "three"))
    thread.join()
    assert ended[0].status == 0, ended[0].text
    assert payloads(here) == payloads(alone)


@pytest.mark.slow
def test_a_worker_that_lost_its_scheduler_is_there_for_the_next(here: Project, at: Cluster) -> None:
    at.start_worker("one", checkout(here, "one"))
    assert at.scheduler is not None
    at.scheduler.kill()
    at.scheduler.wait()
    until(lambda: "worker one lost" in at.log("one"))
    at.start_scheduler()
    assert build(here, at).status == 0
    assert at.log("one").count("worker one at") == 1
    assert at.log("one").count("worker one-again-1 at") == 1, "a scheduler may still know the name that it lost"
    assert at.workers["one"].poll() is None


def payloads(project: Project) -> dict[str, bytes]:
    """The artifacts but for manifests, which name keys: the code of one stage is another."""
    return {name: data for name, data in project.artifacts().items() if not name.endswith(".json")}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_worker_of_another_commit_is_refused_and_told(here: Project, at: Cluster) -> None:
    other = checkout(here, "other")
    text = (other.root / "pipeline/stages/ingest.py").read_text("utf-8")
    other.write("pipeline/stages/ingest.py", f"{text}\nprint(end='')\n")
    at.start_worker("other", other)
    run = build(here, at, check=False)
    assert run.status == 19, run.text
    assert "worker other is not used: the code of stage ingest is another one" in run.text
    assert "check out the same commit there" in run.text
    assert "step(s) that no worker of the cluster may run." in run.text
    assert "why: other was refused: the code of stage ingest is another one" in run.text
    assert "may not run on this host" not in run.text
    assert "any host" not in run.text
    at.start_worker("same", checkout(here, "same"))
    assert build(here, at).status == 0


@pytest.mark.slow
def test_a_worker_that_is_cut_off_from_the_data_leaves_steps_to_another(here: Project, at: Cluster) -> None:
    (at.root / "file").write_text("")
    at.start_worker("off", checkout(here, "off"), PIPELINE_SHARED_STORE=str(at.root / "file" / "store"))
    at.start_worker("on", checkout(here, "on"))
    run = build(here, at)
    assert run.status == 0, run.text


@pytest.mark.slow
def test_what_a_step_fails_with_on_a_worker_is_told_here(tmp_path: Path, at: Cluster) -> None:
    project = guests.create(tmp_path / "project", tmp_path / "store", guests.GOOD, guests.SEGFAULT)
    worker = Project.create(tmp_path / "worker", tmp_path / "worker-store")
    for path in ("pipeline/stages/shape.py", "pipeline/graph/true_shape.py", "pipeline/qnn/child.py"):
        worker.write(path, (project.root / path).read_text("utf-8"))
    at.start_worker("poor", worker)
    run = project.doit(f"shape:{guests.MODEL}/*", f"engine={at.url}", check=False, PIPELINE_SHARED_STORE=str(at.shared))
    assert run.status == 18, run.text
    assert f"the worker of shape:{guests.MODEL}/net/{guests.SEGFAULT} died" in run.text
    assert "worker poor" in run.text
    assert str(tmp_path / "worker") not in run.text
    assert f"shape:{guests.MODEL}/net/{guests.GOOD}" in run.built


def test_a_cluster_without_its_package_is_told(here: Project, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    here.write("distributed/__init__.py", "raise ImportError('as if it were not there')\n")
    shared = str(tmp_path / "shared")
    run = here.doit("build", "engine=tcp://127.0.0.1:1", check=False, PIPELINE_SHARED_STORE=shared)
    assert run.status == 10, run.text
    assert "run 'uv sync --extra cluster'" in run.text
    assert "Traceback" not in run.text


def test_what_is_wrong_with_an_engine_is_told_before_anything_runs(here: Project) -> None:
    for engine, status, said in (
        ("engine=tcp://127.0.0.1:1", 10, "a cluster needs a shared store"),
        ("engine=localhost", 10, "'localhost' is no address of a Dask scheduler"),
    ):
        run = here.doit("build", engine, check=False)
        assert run.status == status, run.text
        assert said in run.text
        assert not run.built
