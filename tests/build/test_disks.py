"""Disks that are full or read-only: a clear error, nothing half-written, and the next build needs room and no more."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_project
from tests.support.build_processes import tree
from tests.support.project import Project
from tests.support.small_disk import Done, SmallDisk, is_available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="this host lets nobody mount in a namespace of their own"),
]

FOLDERS = {"store": "store", "artifacts": "project/artifacts", "build folder": "project/.build"}
_FILL = """\
import contextlib
import os
from pathlib import Path
import numpy as np

FOLDER, LEFT, DONE = Path({folder!r}), {left}, Path(__file__).with_suffix(".done")


def run(path):
    '''While a build runs, somebody else fills the disk.'''
    if not DONE.exists():
        DONE.touch()
        with (FOLDER / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while os.statvfs(FOLDER).f_bavail * os.statvfs(FOLDER).f_frsize > LEFT:
                filler.write(bytes(4096))
    for seed in range(4):
        yield {{"x": np.random.default_rng(seed).normal(size=(1, 3 + seed, 32)).astype(np.float32)}}
"""


def create(folder: Path) -> Project:
    return tiny_project.create(folder / "project", folder / "store", buckets=[8], targets=["sm8650"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, int]:
    """The artifacts of a build with room, by name: their sizes."""
    project = filling(create(tmp_path_factory.mktemp("plain")), tmp_path_factory.mktemp("elsewhere"), 1 << 40)
    project.doit("build")
    return {name: len(data) for name, data in tree(project.root / "artifacts").items()}


def filling(project: Project, folder: Path, left: int) -> Project:
    """Have the calibration reader fill a disk."""
    project.write("calibration/fill.py", _FILL.format(folder=str(folder), left=left))
    calibration = "{reader: npz, folder: calibration/calibration}"
    project.edit(tiny_project.CONFIG, calibration, '{reader: python, run: "calibration/fill.py:run"}')
    return project


def one_clear_error(done: Done, *said: str) -> None:
    assert done.status == 17, done.text
    assert "Traceback" not in done.text
    assert "hit a bug" not in done.text
    assert "died" not in done.text
    assert any(text in done.text for text in said), done.text
    assert "next: " in done.text


def seen(done: Done) -> Any:
    assert done.status == 0, done.text
    return json.loads(done.text)


def artifacts(project: Project, files: Mapping[str, int]) -> dict[str, int]:
    """Those under artifacts/, but reports, which tell of runs."""
    root = f"{project.root / 'artifacts'}/"
    found = {name.removeprefix(root): size for name, size in files.items() if name.startswith(root)}
    return {name: size for name, size in found.items() if not name.endswith("report.html")}


@pytest.mark.parametrize(
    ("where", "left_kb"),
    [*(("store", kb) for kb in (0, 8, 40, 80)), *(("artifacts", kb) for kb in (0, 40)), ("build folder", 0)],
)
def test_a_disk_that_fills_up_during_a_build(
    where: str, left_kb: int, expected: Mapping[str, int], tmp_path: Path
) -> None:
    folder = tmp_path / FOLDERS[where]
    project = filling(create(tmp_path), folder, left_kb << 10)
    disk = SmallDisk(folder, "64m")
    disk.doit(project, "-n", "2", "build")
    disk.look(project.root / "artifacts", project.root / ".build", project.store)
    disk.doit(project, "fsck")
    disk.shell(["rm", "-f", str(folder / "filler")])
    disk.doit(project, "build")
    disk.look(project.root / "artifacts", project.root / ".build", project.store)
    first, after, checked, again, at_last = disk.run()
    if first.status:
        one_clear_error(first, "No space left on device", "there is no room")
    else:
        assert left_kb >= 40, "so little can't have been enough"
    shown = artifacts(project, seen(after)["files"])
    shown.pop("filler", None)
    assert {name: size for name, size in shown.items() if size != expected.get(name)} == {}, "half-written"
    assert seen(after)["left"] == []
    wrong = [line for line in checked.text.splitlines() if line.startswith("WRONG") and "/filler" not in line]
    assert [line for line in wrong if str(project.store) in line] == []
    assert again.status == 0, again.text
    assert artifacts(project, seen(at_last)["files"]).keys() - {"filler"} == expected.keys()
    assert seen(at_last)["left"] == []


@pytest.mark.parametrize("where", FOLDERS)
def test_a_disk_that_is_read_only_from_the_beginning(where: str, tmp_path: Path) -> None:
    project = create(tmp_path)
    disk = SmallDisk(tmp_path / FOLDERS[where], "64m")
    disk.remount("ro")
    disk.doit(project, "-n", "2", "build")
    disk.remount("rw")
    disk.doit(project, "build")
    first, again = disk.run()
    one_clear_error(first, "Read-only file system", "can't be written")
    assert again.status == 0, again.text


@pytest.mark.parametrize("where", FOLDERS)
def test_a_disk_that_became_read_only(where: str, tmp_path: Path) -> None:
    """What is current stays so; what is not is refused, and made when the disk can be written again."""
    project = create(tmp_path)
    changed = tmp_path / "changed.yaml"
    text = (project.root / tiny_project.CONFIG).read_text("utf-8")
    changed.write_text(text + "quantization: {weights: int8}\n", "utf-8")
    disk = SmallDisk(tmp_path / FOLDERS[where], "64m")
    disk.doit(project, "build")
    disk.doit(project, "build")
    disk.remount("ro")
    disk.doit(project, "build")
    disk.shell(["cp", str(changed), str(project.root / tiny_project.CONFIG)])
    disk.doit(project, "build")
    disk.remount("rw")
    disk.doit(project, "build")
    _, _, current, refused, again = disk.run()
    assert current.status == 0, current.text
    assert "Nothing to do: all 13 steps are current." in current.text
    one_clear_error(refused, "Read-only file system", "read-only", "can't be written")
    assert again.status == 0, again.text


def test_what_can_not_be_cleaned_or_begun_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    project = create(tmp_path)
    disk = SmallDisk(project.root / "artifacts", "64m")
    disk.doit(project, "build")
    disk.remount("ro")
    disk.doit(project, "clean")
    configs = SmallDisk(project.root / "configs", "1m")
    configs.remount("ro")
    configs.doit(project, "init", "other", "model")
    _, cleaned = disk.run()
    (begun,) = configs.run()
    for done, file in ((cleaned, f"artifacts/{tiny_project.NAME}/report.html"), (begun, "configs/other.yaml")):
        one_clear_error(done, "Read-only file system", f"{project.root / file}", "next: the file system is read-only")


def test_a_read_only_store_gives_what_it_has(tmp_path: Path) -> None:
    """As a store of a team does, to who may not write there."""
    project = create(tmp_path)
    disk = SmallDisk(project.store, "64m")
    disk.doit(project, "build")
    disk.remount("ro")
    disk.shell(["mv", str(project.root / ".build"), str(project.root / "artifacts"), str(tmp_path)])
    disk.doit(project, "build")
    _, restored = disk.run()
    assert restored.status == 0, restored.text
    assert "0 built, 13 restored from the store" in restored.text.replace("1 built, 13", "0 built, 13")
    assert tree(project.root / "artifacts") == tree(tmp_path / "artifacts")


@pytest.mark.parametrize("where", ["store", "artifacts"])
def test_a_disk_that_is_too_small_is_told_before_anything_runs(where: str, tmp_path: Path) -> None:
    project = create(tmp_path)
    disk = SmallDisk(tmp_path / FOLDERS[where], "64k")
    disk.doit(project, "build")
    disk.remount("size=64m")
    disk.doit(project, "build")
    first, again = disk.run()
    one_clear_error(first, "the build would fill the disk")
    assert "] built" not in first.text
    assert again.status == 0, again.text


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_somebody_else_owns(tmp_path: Path) -> None:
    project = create(tmp_path)
    project.doit("build")
    shutil.rmtree(project.root / "artifacts")
    (project.root / "artifacts").mkdir(mode=0o555)
    run = project.doit("build", check=False)
    one_clear_error(Done(run.status, run.text), "Permission denied")
    (project.root / "artifacts").chmod(0o755)
    project.doit("build")
