"""`doit gc`: what it frees, and what it must never touch."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StoreError
from pipeline.model import Manifest
from pipeline.store import sealed_json
from pipeline.store.store import Store
from pipeline.upkeep import collection
from pipeline.upkeep.collection import Needed
from tests.support import tiny_project
from tests.support.project import Project

DAY_S = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def output(store: Store, key: str, age_days: float, **texts: str) -> Manifest:
    """An output with these files that was last of use so many days ago."""
    with store.scratch() as folder:
        for name, text in texts.items():
            (folder / name).write_text(text)
        manifest = store.publish("shape", key * 32, folder, {}, {})
    used = time.time() - age_days * DAY_S
    os.utime(store.manifest_path(manifest.key), (used, used))
    return manifest


def freed(store: Store, needs: Needed, *, days: float | None = None, max_bytes: int | None = None) -> set[str]:
    """Free, and the keys that are gone."""
    keys = {path.stem for path in (store.root / "manifests").glob("*/*.json")}
    plan = collection.plan(store, needs, days=days, max_bytes=max_bytes)
    before = sum(path.stat().st_size for path in (store.root / "objects").glob("*/*"))
    collection.free(plan, store)
    after = sum(path.stat().st_size for path in (store.root / "objects").glob("*/*"))
    assert before - after == plan.freed_bytes
    assert after == plan.kept_bytes
    left = {path.stem for path in (store.root / "manifests").glob("*/*.json")}
    assert all(store.get(key) for key in left), "no manifest is left without its payloads"
    return {key[:2] for key in keys - left}


def test_what_was_not_used_for_long_is_freed(store: Store) -> None:
    output(store, "aa", 40, a="old")
    output(store, "bb", 20, a="young")
    assert freed(store, Needed(), days=30) == {"aa"}
    assert freed(store, Needed(), days=30) == set()


def test_what_is_needed_stays_however_old(store: Store) -> None:
    needs = Needed()
    needs.add(output(store, "aa", 400, a="needed"))
    output(store, "bb", 400, a="not needed")
    assert freed(store, needs, days=0, max_bytes=0) == {"bb"}


def test_a_payload_that_is_shared_goes_with_the_last_that_names_it(store: Store) -> None:
    first = output(store, "aa", 40, weights="shared", graph="1")
    output(store, "bb", 1, weights="shared", graph="2")
    assert freed(store, Needed(), days=30) == {"aa"}
    assert not store.object_path(first.files["graph"].sha256).exists()
    assert freed(store, Needed(), days=0) == {"bb"}
    assert list((store.root / "objects").glob("*/*")) == []


def test_the_longest_unused_goes_first_until_the_rest_is_small_enough(store: Store) -> None:
    for age, key in enumerate(("aa", "bb", "cc", "dd"), 1):
        output(store, key, age, a=key * 500)
    assert freed(store, Needed(), max_bytes=2500) == {"cc", "dd"}
    assert freed(store, Needed(), max_bytes=2500) == set()


def test_artifacts_keep_what_they_were_published_from(store: Store) -> None:
    shipped = output(store, "aa", 400, a="shipped")
    output(store, "bb", 400, a="shipped", b="and more")
    needs = Needed(published={shipped.files["a"].sha256})
    assert freed(store, needs, days=30) == {"bb"}


def test_payloads_stay_that_only_the_record_of_a_step_names(store: Store) -> None:
    manifest = output(store, "aa", 400, a="current here")
    needs = Needed()
    needs.add(manifest)
    store.manifest_path(manifest.key).unlink()
    assert freed(store, needs, days=0, max_bytes=0) == set()
    assert store.intact(manifest)


def test_payloads_that_nobody_names_are_freed(store: Store) -> None:
    orphan = store.object_path(output(store, "aa", 0, a="orphan").files["a"].sha256)
    store.manifest_path("aa" * 32).unlink()
    assert freed(store, Needed(), days=30) == set()
    assert not orphan.exists()


def test_while_a_checkout_on_another_machine_uses_the_store_what_was_used_lately_stays(store: Store) -> None:
    output(store, "aa", 1, a="lately")
    output(store, "bb", 3, a="not so lately")
    root = store.root / "roots" / f"{'0' * 32}.json"
    root.parent.mkdir()
    root.write_bytes(sealed_json.dump({"folder": "/nowhere/here", "host": "another machine"}))
    assert freed(store, Needed(), days=0) == {"bb"}
    long_ago = time.time() - 100 * DAY_S
    os.utime(root, (long_ago, long_ago))
    assert freed(store, Needed(), days=0) == {"aa"}
    assert not root.exists(), "silent for too long"


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    copy = built.copy(tmp_path / "project", tmp_path / "store")
    for root in (copy.store / "roots").iterdir():
        root.unlink()  # of the checkout that this is a copy of
    copy.doit("build")
    return copy


def gc(project: Project, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project.doit("gc", "--json", *options).text)
    return found


def age(project: Project, days: float) -> None:
    """Have everything in the store be last of use so many days ago."""
    used = time.time() - days * DAY_S
    for path in (project.store / "manifests").glob("*/*.json"):
        os.utime(path, (used, used))


def change(project: Project) -> None:
    """Fewer samples to verify with, and other figures."""
    (project.root / "calibration" / "held_out" / "4.npy").unlink()


@pytest.mark.slow
def test_what_the_configs_need_is_never_freed(project: Project) -> None:
    age(project, 400)
    before = project.artifacts()
    assert gc(project, "--days", "0", "--max-size", "0")["freed_files"] == 0
    project.edit(tiny_project.CONFIG, "targets:", "on_request: true\ntargets:")
    assert gc(project, "--days", "0")["freed_files"] == 0, "models on request are needed, too"
    shutil.rmtree(project.root / ".build")
    assert gc(project, "--days", "0")["freed_files"] == 0, "found in the store from the configs alone"
    run = project.doit("build:tiny")
    assert not run.built
    assert project.artifacts() == before


@pytest.mark.slow
def test_an_old_configuration_is_freed_and_one_that_came_back_is_not(project: Project) -> None:
    sample = project.root / "calibration" / "held_out" / "4.npy"
    data = sample.read_bytes()
    change(project)
    project.doit("build")
    sample.write_bytes(data)  # back again, but not built yet
    age(project, 40)
    assert gc(project)["freed_outputs"] == 0, "the configs lead to the old outputs, the last build was of the new ones"
    assert not project.doit("build").built
    assert gc(project, "--dry-run")["freed_outputs"] > 0
    assert gc(project)["freed_outputs"] > 0
    run = project.doit("build")
    assert not run.built
    assert not run.restored
    assert project.doit("fsck").status == 0


@pytest.mark.slow
def test_what_was_used_today_is_not_old(project: Project) -> None:
    change(project)
    age(project, 40)
    project.doit("build")
    assert gc(project, "--days", "30")["freed_outputs"] > 0
    assert gc(project, "--days", "30")["freed_outputs"] == 0


@pytest.mark.slow
def test_another_checkout_keeps_what_it_needs_until_it_is_gone(project: Project, tmp_path: Path) -> None:
    other = project.copy(tmp_path / "other")
    change(other)
    other.doit("build")
    age(project, 40)
    assert gc(project, "--days", "0")["freed_outputs"] == 0
    run = other.doit("build")
    assert not run.built
    shutil.rmtree(other.root)
    age(project, 40)
    assert gc(project, "--days", "0")["freed_outputs"] > 0
    assert len(list((project.store / "roots").iterdir())) == 1
    assert not project.doit("build").built


@pytest.mark.slow
def test_freeing_says_what_it_did(project: Project) -> None:
    text = project.doit("gc", "--max-size", "1K").text
    assert "freed: 0 outputs, 0 files, 0 B" in text
    assert "more than 1K: " in text
    assert "are needed by configs or artifacts" in text


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--days=-1", "--days=soon", "--max-size=much"])
def test_an_option_that_is_no_number(project: Project, option: str) -> None:
    run = project.doit("gc", option, check=False)
    assert run.status == 10
    assert "write --" in run.text


@pytest.mark.slow
def test_space_is_not_freed_by_a_command_that_builds(project: Project) -> None:
    run = project.doit("build", "gc", check=False)
    assert run.status == 10
    assert "run 'doit gc' alone" in run.text


def loop(path: Path) -> Path:
    """Put something in a folder's place that nobody can read, root included; where the folder is now."""
    moved = path.with_name(f"{path.name}-moved")
    path.rename(moved)
    path.symlink_to(path)
    return moved


needs_links = pytest.mark.skipif(os.name == "nt", reason="a link that leads to itself needs rights on Windows")


@needs_links
@pytest.mark.parametrize("name", ["manifests", "manifests/aa", "objects", "roots"])
def test_nothing_is_freed_while_a_folder_of_the_store_cannot_be_read(store: Store, name: str) -> None:
    payload = store.object_path(output(store, "aa", 40, a="old").files["a"].sha256)
    (store.root / "roots").mkdir()
    moved = loop(store.root / name)
    with pytest.raises(StoreError, match="nothing is freed") as caught:
        freed(store, Needed(), days=0)
    assert caught.value.where == str(store.root / name)
    (store.root / name).unlink()
    moved.rename(store.root / name)
    assert payload.exists()


@pytest.mark.parametrize("name", [f"manifests/aa/{'aa' * 32}.json", f"roots/{'0' * 32}.json"])
def test_nothing_is_freed_while_it_is_damaged_what_says_what_is_needed(store: Store, name: str) -> None:
    payload = store.object_path(output(store, "aa", 40, a="old").files["a"].sha256)
    (store.root / name).parent.mkdir(exist_ok=True)
    (store.root / name).write_bytes(b"{}")
    with pytest.raises(StoreError, match="doit fsck"):
        freed(store, Needed(), days=0)
    assert payload.exists()


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root can become somebody who may read less"
)
def test_a_folder_that_a_user_may_not_read_is_not_empty(store: Store) -> None:
    if sys.platform == "win32":
        return
    output(store, "aa", 40, a="old")
    (store.root / "manifests").chmod(0)
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.setuid(65534)
            collection.plan(store, Needed(), days=0, max_bytes=None)
        except StoreError:
            status = 17
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


@needs_links
@pytest.mark.slow
@pytest.mark.parametrize("name", [".build/steps/context", "artifacts", "artifacts/tiny"])
def test_what_cannot_be_read_of_this_checkout_keeps_all_and_of_another_what_is_young(
    project: Project, tmp_path: Path, name: str
) -> None:
    other = project.copy(tmp_path / "other")
    other.store = project.store
    other.doit("build")
    name = name.replace("tiny", next((project.root / "artifacts").iterdir()).name)
    loop(project.root / name)
    run = project.doit("gc", "--days", "0", check=False)
    assert (run.status, "nothing is freed" in run.text) == (17, True)
    change(other)
    kept = gc(other, "--days", "0")
    assert kept["freed_outputs"] == 0, "it was used today"
