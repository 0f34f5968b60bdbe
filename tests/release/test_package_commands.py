"""`doit package` and `doit publish`: what they say and leave when there is nothing to do, or nothing can be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_project
from tests.support.project import Project

RELEASE = "release: {version: '1.0'}\n"


def record(project: Project) -> dict[str, Any]:
    """What run.json says of the last build."""
    found: dict[str, Any] = json.loads((project.root / ".build" / "run.json").read_bytes())
    return found


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A project that was never built."""
    return tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))


def add(project: Project, text: str) -> None:
    path = project.root / tiny_project.CONFIG
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def test_without_a_release_they_say_so_and_leave_a_record(fresh: Project, tmp_path: Path) -> None:
    for command in (["package"], ["publish", str(tmp_path / "there")]):
        run = fresh.doit(*command)
        assert "Nothing to package: there is no 'release' section in tiny.yaml; docs/releases.md says" in run.text
        assert not run.built
        found = record(fresh)
        assert (found["result"], found["exit_code"], found["steps"]) == ("ok", 0, {})
    add(fresh, f"{RELEASE}on_request: true\n")
    assert "Nothing to package, as only on request: doit package:tiny\n" in fresh.doit("package").text


@pytest.mark.parametrize("command", [("package",), ("package:tiny",), ("publish", "there")])
def test_a_key_that_can_not_sign_is_refused_before_anything_is_built(fresh: Project, command: tuple[str, ...]) -> None:
    add(fresh, RELEASE)
    run = fresh.doit(*command, check=False, PIPELINE_SIGNING_KEY="/none.pem")
    assert run.status == 10
    assert "there is no ed25519 key to be had\n  where: PIPELINE_SIGNING_KEY\n  why: the file can't be read" in run.text
    assert not run.built
    assert record(fresh)["exit_code"] == 10


@pytest.mark.slow
def test_the_last_line_says_what_was_written(fresh: Project, tmp_path: Path) -> None:
    fresh.doit("build")
    add(fresh, RELEASE)
    run = fresh.doit("package")
    assert "tiny-1.0.qnn.zip: written" in run.text
    assert "Releases were written; all 13 steps are current." in run.text
    assert "Nothing to do: all 13 steps are current." in fresh.doit("package").text
    there = str(tmp_path / "there")
    assert "Nothing to build: all 13 steps are current." in fresh.doit("publish", there).text
    (fresh.root / "artifacts" / "releases" / "tiny-1.0.qnn.zip").unlink()
    (fresh.root / "artifacts" / "tiny" / "qdq" / "net_8.onnx").unlink()
    text = fresh.doit("publish", there).text
    assert "Artifacts and releases were written; all 13 steps are current." in text
    assert "Nothing to" not in text


@pytest.mark.slow
def test_in_a_copy_of_a_checkout_nothing_is_damaged(fresh: Project, tmp_path: Path) -> None:
    fresh.doit("build")
    copies = [fresh.copy(tmp_path / name) for name in ("same", "changed", "flipped")]
    for copy in copies[1:]:
        copy.edit(tiny_project.CONFIG, "sequence: [8]", "sequence: [8, 16]")
    path = copies[2].root / "artifacts" / "tiny" / "qdq" / "net_8.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert copies[1].doit("fsck").status == 0
    checked = copies[2].doit("fsck", "--dry-run", check=False)
    assert checked.status == 17
    assert "net_8.onnx" in checked.text
    same, changed, flipped = (copy.doit("build").text for copy in copies)
    assert "damaged" not in same + changed
    assert "damaged: artifacts/tiny/qdq/net_8.onnx is not what was published" in flipped
    assert "damaged: artifacts/tiny/sm8650" not in flipped
    assert copies[1].artifacts() == copies[2].artifacts()
