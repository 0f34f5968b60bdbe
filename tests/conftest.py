"""Projects that several test files build on. What was built once per session is copied, never changed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.model import StageInput
from tests.support import encoder_project, made_once, tiny_project
from tests.support.graphs import attention
from tests.support.project import ROOT, Project
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import Component


def pytest_configure(config: pytest.Config) -> None:
    """Tests press Ctrl-C and hang up: what they start must not inherit that these are ignored.

    A shell's background ignores the one, nohup the other. Tests also start over a thousand processes of Python, each of
    which compiles all that it imports where Python may keep no bytecode.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.name != "nt":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not hasattr(config, "workerinput"):
        os.environ[made_once.VARIABLE] = tempfile.mkdtemp(prefix="made-once-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """What was made for this run is gone with it."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(made_once.VARIABLE), ignore_errors=True)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Half as many processes again as cores when all tests run: many wait for processes, servers and the clock.

    Files that are named run in this one, where a debugger works.
    """
    return 0 if config.args_source is pytest.Config.ArgsSource.ARGS else (os.cpu_count() or 1) * 3 // 2


def pytest_configure_node(node: Any) -> None:
    """Each process of a whole run imports a share of the tests before it collects all: see `pytest_sessionstart`."""
    node.workerinput["whole"] = node.config.args_source is not pytest.Config.ArgsSource.ARGS


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a share of the tests, so that one process compiles each module and not all of them at the same time."""
    given: dict[str, Any] = getattr(session.config, "workerinput", {})
    if given.get("whole"):
        share = slice(int(given["workerid"].removeprefix("gw")), None, given["workercount"])
        for path in sorted((ROOT / "tests").rglob("test_*.py"))[share]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # whoever collects it says so
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow tests that CI runs; where they are asked for, their files come first, as `.ci/slow` orders them."""
    lines = (ROOT / ".ci" / "slow").read_text("utf-8").splitlines()
    ranks = {ROOT / line: rank for rank, line in enumerate(lines) if line and not line.startswith("#")}

    def rank(item: pytest.Item) -> int:
        return min((ranks[path] for path in (item.path, *item.path.parents) if path in ranks), default=len(lines))

    for item in items:
        if rank(item) < len(lines) and item.get_closest_marker("slow"):
            item.add_marker("ci")
    if "ci" in re.findall(r"\w+", config.option.markexpr):
        items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Modules and tests live as long as this process: the collector of garbage need not walk through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def bert_first() -> tuple[Project, Project]:
    """A small encoder with two buckets and two targets: not built, and built, over a store with that build alone.

    For tests to copy, with the store.
    """

    def make(folder: Path) -> None:
        project = encoder_project.create(folder / "project", folder / "store")
        project.copy(folder / "built" / "project").doit("build")

    folder = made_once.made_once("bert", make)
    return Project(folder / "project", folder / "store"), Project(folder / "built" / "project", folder / "store")


@pytest.fixture(scope="session")
def store(bert_first: tuple[Project, Project], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that projects of many files share, with the encoder's first build: equal work is done once."""
    return Path(shutil.copytree(bert_first[0].store, tmp_path_factory.mktemp("session") / "store"))


@pytest.fixture(scope="session")
def bert_project(bert_first: tuple[Project, Project], store: Path) -> Project:
    """The encoder over that store; not built yet."""
    return Project(bert_first[0].root, store)


@pytest.fixture(scope="session")
def bert_built(bert_first: tuple[Project, Project], store: Path) -> Project:
    """The same, built."""
    return Project(bert_first[1].root, store)


@pytest.fixture(scope="session")
def tiny_built() -> Project:
    """Two layers in one bucket for one target, built, over a store of its own. For tests to copy, with the store."""

    def make(folder: Path) -> None:
        tiny_project.create(folder / "project", folder / "store", buckets=[8], targets=["sm8650"]).doit("build")

    folder = made_once.made_once("tiny", make)
    return Project(folder / "project", folder / "store")


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
