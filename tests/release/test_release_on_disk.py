"""`artifacts/releases/` on disk: written once, checked, removed; what is damaged is not kept to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.plan.workspace import Workspace
from pipeline.release.archives import on_disk
from pipeline.release.archives.archive import Archive, Member
from pipeline.store.store import DamagedError
from tests.support.project import ROOT
from tests.support.releases import release
from tests.support.rot import rot


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.at(tmp_path / "project", {})


def archive(workspace: Workspace, name: str = "bert-1.0") -> Path:
    return workspace.artifacts / "releases" / f"{name}.qnn.zip"


def stored(workspace: Workspace, data: bytes) -> Member:
    """A payload of the store, as packaging has them."""
    with workspace.store.scratch() as folder:
        (folder / "out").mkdir()
        (folder / "out" / "x.bin").write_bytes(data)
        entry = workspace.store.publish("context", "aa" * 32, folder / "out", {}, {}).files["x.bin"]
    return Member(entry.sha256, entry.bytes, workspace.store.object_path(entry.sha256))


def again(workspace: Workspace) -> Workspace:
    """The same checkout as another process sees it, which has hashed nothing yet."""
    workspace.memo.save()
    return Workspace.at(workspace.root, {})


def test_it_is_written_once_and_again_when_it_is_damaged(workspace: Workspace) -> None:
    path, members = archive(workspace), {"a": Member.of(b"a")}
    digest, written = on_disk.write(path, "bert", members, workspace)
    assert (written, on_disk.write(path, "bert", members, again(workspace))) == (True, (digest, False))
    before = path.read_bytes()
    path.write_bytes(before[:-1])
    assert on_disk.write(path, "bert", members, again(workspace)) == (digest, True)
    assert path.read_bytes() == before
    assert on_disk.write(path, "bert", members | {"b": Member.of(b"b")}, workspace)[1]


def test_a_payload_that_went_bad_is_dropped_so_that_it_is_made_again(workspace: Workspace) -> None:
    told: list[str] = []
    member = stored(workspace, b"weights")
    assert isinstance(member.source, Path)
    rot(member.source)
    other = again(workspace)
    other.store.tell = told.append
    with pytest.raises(DamagedError, match=r"corrupt: contexts/x\.bin"):
        on_disk.write(archive(other), "bert", {"a": Member.of(b"a"), "contexts/x.bin": member}, other)
    assert not member.source.exists()
    assert "damaged in the store" in told[0]
    with pytest.raises(DamagedError):
        on_disk.write(archive(other), "bert", {"contexts/x.bin": member}, other)
    assert [*archive(other).parent.iterdir()] == []
    assert [*other.scratch.parent.iterdir()] == []


def test_another_file_that_changed_is_no_fault_of_the_store(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"other")
    member = Member.of(b"right")
    with pytest.raises(StoreError, match="corrupt: x") as caught:
        on_disk.write(archive(workspace), "bert", {"x": Member(member.sha256, 5, tmp_path / "f")}, workspace)
    assert not isinstance(caught.value, DamagedError)


@pytest.mark.skipif(os.name == "nt", reason="a process is held in the middle of its reading by a FIFO")
def test_what_a_killed_process_left_is_removed_by_the_next_build(workspace: Workspace, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import sys; from pathlib import Path\n"
        "from pipeline.release.archives import on_disk; from pipeline.release.archives.archive import Member\n"
        "from pipeline.plan.workspace import Workspace\n"
        "workspace, path = Workspace.at(Path(sys.argv[1]), {}), Path(sys.argv[2])\n"
        "members = {'a': Member.of(b'a' * 100_000), 'b': Member('0' * 64, 9, Path(sys.argv[3]))}\n"
        "on_disk.write(path, 'bert', members, workspace)\n"
    )
    arguments = [str(workspace.root), str(archive(workspace)), str(tmp_path / "fifo")]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not [*workspace.scratch.parent.glob("*/*")]:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert [*archive(workspace).parent.iterdir()] == []
    workspace.scratch.collect()
    assert [*workspace.scratch.parent.iterdir()] == []


def test_a_check_reads_every_byte_and_names_what_is_wrong(workspace: Workspace, tmp_path: Path) -> None:
    made, old, received = archive(workspace), archive(workspace, "bert-0.9"), archive(workspace, "other-1.0")
    members = {"a": Member.of(b"a" * 1000)}
    digest, _ = on_disk.write(made, "bert", members, workspace)
    on_disk.write(old, "bert", members, workspace)
    release(received)
    archive(workspace).with_name("notes.txt").write_text("mine")
    notes = [*on_disk.check([made], workspace)]
    assert [(each.path.name, each.is_wrong) for each in notes] == [("notes.txt", False)]

    for path in (made, old, received):
        rot(path)
    workspace.memo.remember(made, digest)  # where a disk loses a bit, not even the ctime tells
    found = {each.path: each for each in on_disk.check([made], workspace) if each.is_wrong}
    assert {*found} == {made, old, received}
    assert found[made].problem.startswith("a is corrupt") or "release.json" in found[made].problem
    assert (found[made].done, found[old].done) == (
        "the next 'doit package' writes it again",
        "left alone: no config makes it any more",
    )
    assert on_disk.write(made, "bert", members, workspace)[1], "though no stat shows it"
    assert made not in {each.path for each in on_disk.check([made], workspace)}

    release(old)
    problems = [each.problem for each in on_disk.check([made], workspace) if each.path == old]
    assert problems == ["it is not what was packaged here"]


def test_all_versions_of_a_model_are_removed_and_nothing_else(workspace: Workspace) -> None:
    members = {"a": Member.of(b"a")}
    new, old, other = archive(workspace), archive(workspace, "bert-0.9"), archive(workspace, "bert-large-1.0")
    for path, model in ((new, "bert"), (old, "bert"), (other, "bert-large")):
        on_disk.write(path, model, members, workspace)
    unrecorded = release(archive(workspace, "bert-1.1"))
    assert on_disk.remove("bert", [unrecorded, archive(workspace, "bert-2.0")], workspace) == [old, new, unrecorded]
    assert [path.name for path in other.parent.iterdir()] == [other.name]
    with Archive(other) as opened:
        assert [*opened.entries] == ["a"]
    on_disk.remove("bert-large", [], workspace)
    assert not other.parent.exists()
