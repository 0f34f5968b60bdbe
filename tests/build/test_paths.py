"""Builds under paths of every length and alphabet: the same bytes, and QNN sees nothing of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
import onnxruntime_qnn
import pytest

from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.running.emulate import run_context
from pipeline.store.store import Store
from tests.support import tiny_project
from tests.support.build_processes import leftovers, tree
from tests.support.contexts import X_ELITE
from tests.support.fresh import fresh
from tests.support.project import Project
from tests.support.tiny_models import qdq_model, sample

FOLDERS = (
    "models of mine, and others",
    "온디바이스 음성 합성 모델",
    "🚀 release 🧠 candidates ✨",
    "l" + "o" * 90 + "ng",
    "끝",
)
LONG = Path(*FOLDERS)
PRINTABLE = Path('it\'s "quoted"; $HOME & [a-z]* {x} %TEMP% #1 ~')
BROKEN = Path("two\nlines\tand a tab\\")
_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")


def create(root: Path, store: Path) -> Project:
    return tiny_project.create(root, store, buckets=[8], targets=["sm8650"])


def built(project: Project) -> Mapping[str, bytes]:
    """The artifacts of a build from nothing, which must run every step and leave nothing else behind."""
    run = project.doit("build")
    assert len(run.built) == 13
    assert not project.doit("build").built
    assert leftovers(project.store, project.root) == []
    return tree(project.root / "artifacts")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The artifacts of a build under a plain path."""
    folder = tmp_path_factory.mktemp("plain")
    return built(create(folder / "project", folder / "store"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`, to which nothing can be linked or renamed."""
    for parent in map(Path, ("/dev/shm", "/run", "/var/tmp")):
        if os.access(parent, os.W_OK) and parent.stat().st_dev != tmp_path.stat().st_dev:
            with tempfile.TemporaryDirectory(dir=parent, prefix="test-paths-") as folder:
                yield Path(folder)
            return
    pytest.skip("this machine has one file system")


@pytest.mark.slow
@pytest.mark.parametrize("name", [LONG, pytest.param(PRINTABLE, marks=_POSIX), pytest.param(BROKEN, marks=_POSIX)])
def test_a_build_under_any_path_makes_the_same_bytes(name: Path, plain: Mapping[str, bytes], tmp_path: Path) -> None:
    if name == LONG:
        assert len(str(tmp_path / name)) >= 200
    assert built(create(tmp_path / name / "project", tmp_path / name / "store")) == plain


@pytest.mark.slow
def test_a_checkout_that_is_reached_through_a_link(plain: Mapping[str, bytes], tmp_path: Path) -> None:
    project = create(tmp_path / "real" / "project", tmp_path / "real store")
    (tmp_path / "link 링크").symlink_to(project.root, target_is_directory=True)
    (tmp_path / "store link").symlink_to(project.store, target_is_directory=True)
    project.store.mkdir()
    assert built(Project(tmp_path / "link 링크", tmp_path / "store link")) == plain
    assert not project.doit("build").built, "by its own name it is the same checkout"


@pytest.mark.slow
def test_a_store_on_another_file_system(plain: Mapping[str, bytes], tmp_path: Path, elsewhere: Path) -> None:
    assert built(create(tmp_path / "project", elsewhere / "store")) == plain


@pytest.mark.slow
def test_artifacts_and_build_folder_on_other_file_systems(
    plain: Mapping[str, bytes], tmp_path: Path, elsewhere: Path
) -> None:
    project = create(tmp_path / "project", tmp_path / "store")
    for name in ("artifacts", ".build"):
        (elsewhere / name).mkdir()
        (project.root / name).symlink_to(elsewhere / name, target_is_directory=True)
    assert built(project) == plain
    assert tree(elsewhere / "artifacts") == plain
    assert leftovers(elsewhere) == []


def test_what_can_not_be_linked_is_copied(tmp_path: Path, elsewhere: Path) -> None:
    store = Store(tmp_path / "store")
    with store.scratch() as folder:
        (folder / "a.bin").write_text("payload")
        manifest = store.publish("fetch", "ab" * 32, folder, {}, {})
    store.place(manifest, elsewhere / "in")
    placed = elsewhere / "in" / "a.bin"
    assert placed.read_text() == "payload"
    assert placed.stat().st_dev != store.object_path(manifest.files["a.bin"].sha256).stat().st_dev


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="links to folders need a privilege there")
def test_packages_that_are_installed_under_such_a_path(plain: Mapping[str, bytes], tmp_path: Path) -> None:
    """As in a checkout under it, whose `.venv` has them."""
    site = tmp_path / LONG / "site-packages"
    site.mkdir(parents=True)
    for package in (ort, onnxruntime_qnn):
        folder = Path(str(package.__file__)).parent
        (site / folder.name).symlink_to(folder, target_is_directory=True)
    project = create(tmp_path / "project", tmp_path / "store")
    project.environ["PYTHONPATH"] = str(site)
    spy = "import onnxruntime_qnn; assert '온디바이스' in onnxruntime_qnn.get_qnn_htp_path()\n"
    project.write("pipeline/stages/context.py", (project.root / "pipeline/stages/context.py").read_text("utf-8") + spy)
    assert built(project) == plain


def test_what_qnn_sees_is_short_and_relative(tmp_path: Path) -> None:
    """Its own libraries' place aside, which is none of ours."""
    folder = tmp_path / LONG
    model = qdq_model(folder / "model")
    (folder / "out").mkdir()
    seen = fresh(_compile_spied, model, folder / "out") + fresh(_run_spied, folder / "out")
    names = [text for text in seen if not Path(text).is_absolute() or "QnnHtp" not in text]
    assert {"encoder_8.onnx", "encoder_8_ctx.onnx", "trace_encoder_8"} <= {*names}
    assert [text for text in names if not text.isascii() or len(text) > 60 or "/" in text or "\\" in text] == []
    written = b"".join(path.read_bytes() for path in (folder / "out").iterdir())
    for part in (*FOLDERS, str(tmp_path)):
        assert part.encode() not in written


def _compile_spied(model: Path, out: Path) -> list[str]:
    seen = _spied()
    compile_context(model, "encoder_8", X_ELITE, out)
    return seen


def _run_spied(folder: Path) -> list[str]:
    seen = _spied()
    run_context(folder, "encoder_8_ctx.onnx", X_ELITE, [{"x": sample(8)}])
    return seen


def _spied() -> list[str]:
    """Every text that is handed to ONNX Runtime from now on, in this process."""
    seen: list[str] = []

    def listen(owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def heard(self: Any, *args: Any, **kwargs: Any) -> Any:
            for arg in (*args, *kwargs.values()):
                texts = [*arg.keys(), *arg.values()] if isinstance(arg, dict) else [arg]
                seen.extend(str(text) for text in texts if isinstance(text, str | Path))
            return original(self, *args, **kwargs)

        setattr(owner, method, heard)

    listen(ort.ModelCompiler, "__init__")
    listen(ort.ModelCompiler, "compile_to_file")
    listen(ort.InferenceSession, "__init__")
    listen(ort.SessionOptions, "add_provider_for_devices")
    listen(ort.SessionOptions, "add_session_config_entry")
    return seen
