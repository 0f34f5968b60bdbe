"""Projects that several test files build on. What was built once per session is copied, never changed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from pipeline.model import StageInput
from tests.support import encoder_project, tiny_project
from tests.support.graphs import attention
from tests.support.project import Project
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import Component


def pytest_configure() -> None:
    """Tests press Ctrl-C and hang up: what they start must not inherit that these are ignored.

    A shell's background ignores the one, nohup the other. Tests also start over a thousand processes of Python, each of
    which compiles all that it imports where Python may keep no bytecode.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.name != "nt":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Half as many processes again as cores when all tests run: many wait for processes, servers and the clock.

    Files that are named run in this one, where a debugger works.
    """
    return 0 if config.args_source is pytest.Config.ArgsSource.ARGS else (os.cpu_count() or 1) * 3 // 2


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that all projects of the session share: equal work is done once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def bert_project(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Project:
    """A small encoder with two buckets and two targets; not built yet."""
    return encoder_project.create(tmp_path_factory.mktemp("bert") / "project", store)


@pytest.fixture(scope="session")
def bert_built(bert_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same, built."""
    project = bert_project.copy(tmp_path_factory.mktemp("built") / "project")
    project.doit("build")
    return project


@pytest.fixture(scope="session")
def tiny_built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two layers in one bucket for one target, built, over a store of its own. For tests to copy, with the store."""
    folder = tmp_path_factory.mktemp("tiny")
    project = tiny_project.create(folder / "project", folder / "store", buckets=[8], targets=["sm8650"])
    project.doit("build")
    return project


@pytest.fixture
def project(bert_built: Project, tmp_path: Path) -> Project:
    """A built project of the test's own."""
    return bert_built.copy(tmp_path / "project")


@pytest.fixture
def fresh_store(store: Path, tmp_path: Path) -> Path:
    """A copy of the session's store that a test may damage."""
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> Component:
    """A block of a transformer in two buckets, shaped and rewritten."""
    return Component(tmp_path_factory.mktemp("attention"), attention(), BUCKETS)


@pytest.fixture(scope="module")
def ranges(component: Component) -> StageInput:
    """Those of its values on sentences."""
    return component.calibrate(CALLS)


@pytest.fixture(scope="module")
def quantized(component: Component, ranges: StageInput) -> dict[str, StageInput]:
    """Its QDQ models, by bucket."""
    return {bucket: component.quantize(bucket, ranges) for bucket in BUCKETS}
