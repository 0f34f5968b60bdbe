"""The archive of a release: unpacked once, whole, and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from pipeline.qnn_release import DamagedError, FormatError, Release, ReleaseError
from pipeline.qnn_release.archive import _remove_abandoned, unpack
from tests.support import runtime_releases
from tests.support.project import ROOT
from tests.support.small_disk import SmallDisk, is_available


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A release without models: two files, one of them for the application."""
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "two").write_bytes(b"two" * 1000)
    files = {"files/tokenizer.json": tmp_path / "one", "licenses/LICENSE": tmp_path / "two"}
    return runtime_releases.write(tmp_path / "release", {}, files)


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    """The same as an archive."""
    return runtime_releases.archive(folder, tmp_path / "release.qnn.zip", {"provenance.json": b"{}"})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def opened(path: Path, cache: Path) -> Release:
    return Release.open(path, device="cpu", cache=cache)


def test_an_archive_is_unpacked_once(archive: Path, folder: Path, tmp_path: Path) -> None:
    first = opened(archive, tmp_path / "cache")
    assert contents(first.folder) == contents(folder)
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second = opened(archive, tmp_path / "cache")
    assert second.folder == first.folder
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.folder.name]


def test_a_file_of_the_application_is_checked(archive: Path, tmp_path: Path) -> None:
    release = opened(archive, tmp_path / "cache")
    path = release.file("tokenizer.json")
    assert path.read_bytes() == b"one"
    assert release.report().verified == ("files/tokenizer.json",)
    with pytest.raises(ReleaseError, match=r"no file 'vocab.txt'\n.*\n  why: it has tokenizer.json"):
        release.file("vocab.txt")


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "files/tokenizer.json"
    path.write_bytes(b"onE")
    release = Release.open(folder, device="cpu")
    for check in (release.verify, lambda: release.file("tokenizer.json")):
        with pytest.raises(DamagedError) as raised:
            check()
        assert raised.value.what == "files/tokenizer.json is not the file that the release names"
        assert raised.value.where == str(path)
    path.unlink()
    with pytest.raises(DamagedError, match="No such file"):
        release.verify()


def test_every_flipped_byte_of_an_archive_is_refused(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    with zipfile.ZipFile(archive) as read:
        spans = [
            (entry.filename, entry.header_offset) for entry in read.infolist() if entry.filename != "provenance.json"
        ]
    for name, start in spans:
        at = whole.index(b"one" if "token" in name else b"twotwo" if "LIC" in name else b"{", start)
        damaged = tmp_path / "damaged.zip"
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ReleaseError) as raised:
            opened(damaged, tmp_path / "cache")
        assert name in str(raised.value) or name == "release.json"
        assert not list((tmp_path / "cache").glob("*")), "nothing is left behind"


def test_a_file_that_was_replaced_by_another_of_its_size_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "licenses/LICENSE").write_bytes(b"owt" * 1000)  # whose checksum in the archive is right
    replaced = runtime_releases.archive(folder, tmp_path / "replaced.zip")
    with pytest.raises(DamagedError, match="licenses/LICENSE is not the file that the release names"):
        opened(replaced, tmp_path / "cache")


@pytest.mark.parametrize(
    "name", ["../escaped", "/escaped", "a/../../escaped", "..\\escaped", "c:escaped", "more", "files/tokenizer.json/x"]
)
def test_an_entry_that_is_not_listed_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    wrong = runtime_releases.archive(folder, tmp_path / "wrong.zip", {name: b"escaped"})
    with pytest.raises(FormatError, match="doesn't list"):
        opened(wrong, tmp_path / "cache")
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    "name",
    ["../escaped", "a/../../escaped", "/escaped", "c:/escaped", "a\\..\\..\\escaped", "a/NUL", "com1.txt", "Con .x/y"],
)
def test_a_listed_path_that_escapes_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    def change(index: runtime_releases.Json) -> None:
        index["files"][name] = index["files"]["files/tokenizer.json"]

    runtime_releases.edit(folder, change)
    wrong = runtime_releases.archive(folder, tmp_path / "wrong.zip", {name: b"one"})
    for path in (wrong, folder):
        with pytest.raises(FormatError, match="a path inside the release is needed"):
            opened(path, tmp_path / "cache")
    assert not list(tmp_path.rglob("escaped"))


def test_what_no_packager_writes_is_refused(folder: Path, tmp_path: Path) -> None:
    def made(name: str, compression: int = zipfile.ZIP_STORED, mode: int = 0o100644, twice: bool = False) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w", compression) as out:
            for path, data in contents(folder).items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = mode << 16
                out.writestr(entry, data, compression)
            if twice:
                with pytest.warns(UserWarning, match="Duplicate"):
                    out.writestr("files/tokenizer.json", b"one")
        return tmp_path / name

    (tmp_path / "text.zip").write_bytes(b"no archive at all")
    (tmp_path / "empty.zip").write_bytes(b"")
    no_index = runtime_releases.archive(tmp_path / "none", tmp_path / "none.zip", {"a": b""})
    for path, why in {
        made("deflated.zip", zipfile.ZIP_DEFLATED): "compressed",
        made("link.zip", mode=0o120777): "no plain file",
        made("twice.zip", twice=True): "twice",
        no_index: "no release.json",
        tmp_path / "text.zip": "can't be read as a ZIP",
        tmp_path / "empty.zip": "can't be read as a ZIP",
    }.items():
        with pytest.raises(FormatError, match=why):
            opened(path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_sizes_are_bounded_by_the_index(folder: Path, tmp_path: Path) -> None:
    def grow(index: runtime_releases.Json) -> None:
        index["files"]["licenses/LICENSE"]["bytes"] = 10**15

    def shrink(index: runtime_releases.Json) -> None:
        index["files"]["licenses/LICENSE"]["bytes"] = 1

    for change in (grow, shrink):
        wrong = runtime_releases.archive(runtime_releases.edit(folder, change), tmp_path / "wrong.zip")
        with pytest.raises(DamagedError, match="licenses/LICENSE is not the file"):
            opened(wrong, tmp_path / "cache")


def test_a_truncated_archive_is_refused_at_every_length(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    for length in range(0, len(whole), 97):
        cut = tmp_path / "cut.zip"
        cut.write_bytes(whole[:length])
        with pytest.raises(ReleaseError):
            opened(cut, tmp_path / "cache")


def test_an_unpacked_folder_that_lost_a_file_is_made_again(archive: Path, folder: Path, tmp_path: Path) -> None:
    first = opened(archive, tmp_path / "cache").folder
    (first / "files/tokenizer.json").unlink()
    assert contents(opened(archive, tmp_path / "cache").folder) == contents(folder)
    (first / "release.json").write_text("{}")
    assert contents(opened(archive, tmp_path / "cache").folder) == contents(folder)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]


def test_many_open_an_archive_at_once(archive: Path, folder: Path, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(unpack(archive, tmp_path / "cache")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert contents(found[0]) == contents(folder)
    assert list((tmp_path / "cache").iterdir()) == [found[0]]


UNPACK = """
import sys
from pathlib import Path
from pipeline.qnn_release.archive import unpack
print("ready", flush=True)
sys.stdin.readline()
print(unpack(Path(sys.argv[1]), Path(sys.argv[2]))[0], flush=True)
"""


def unpacking(archive: Path, cache: Path) -> subprocess.Popen[str]:
    """A process that unpacks when it is sent a line."""
    command = [sys.executable, "-c", UNPACK, str(archive), str(cache)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def large(tmp_path: Path) -> Path:
    """An archive that takes a while to unpack."""
    data = bytes(range(256)) * 4096
    files = {f"files/{number}": tmp_path / f"large-{number}" for number in range(48)}
    for number, path in enumerate(files.values()):
        path.write_bytes(data + bytes([number]))
    folder = runtime_releases.write(tmp_path / "large", {}, files)
    return runtime_releases.archive(folder, tmp_path / "large.qnn.zip")


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
def test_several_processes_unpack_at_once(tmp_path: Path) -> None:
    archive, cache = large(tmp_path), tmp_path / "cache"
    processes = [unpacking(archive, cache) for _ in range(4)]
    for process in processes:
        go(process)
    folders = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert [str(path) for path in cache.iterdir()] == [*folders]
    opened(archive, cache).verify()


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_unpacks_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    archive, cache = large(tmp_path), tmp_path / "cache"
    killed = 0
    for files in (1, 20, 45):
        before = {*cache.glob(".unpacking-*")}
        process = unpacking(archive, cache)
        go(process)
        while process.poll() is None:
            begun = {*cache.glob(".unpacking-*")} - before
            if sum(path.is_file() for folder in begun for path in folder.rglob("*")) >= files:
                break
        process.kill()
        process.communicate()
        killed += not [*cache.glob("[!.]*")]
    assert killed, "none was killed in the middle"
    release = opened(archive, cache)
    release.verify()
    assert len([*(release.folder / "files").iterdir()]) == 48
    assert [*cache.iterdir()] == [release.folder]


STOP = """
import sys, threading
from pathlib import Path
from pipeline.qnn_release import archive
def stop(*_):
    print("unpacked", flush=True)
    threading.Event().wait()
archive._publish = stop
archive.unpack(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_killed_processes_left_is_removed_at_the_next_open_and_nothing_of_living_ones(tmp_path: Path) -> None:
    cache, archives = tmp_path / "cache", []
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        folder = runtime_releases.write(tmp_path / f"{name}-release", {}, {"files/a": tmp_path / name})
        archives.append(runtime_releases.archive(folder, tmp_path / f"{name}.qnn.zip"))
    processes: list[subprocess.Popen[str]] = []
    left: list[Path] = []
    for _ in range(2):
        before = {*cache.glob(".unpacking-*")}
        command = [sys.executable, "-c", STOP, str(archives[0]), str(cache)]
        processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == "unpacked\n"
        left += {*cache.glob(".unpacking-*")} - before
    killed, living = left
    held = contents(living)
    try:
        opened(archives[1], cache)
        assert killed.exists()
        processes[0].kill()
        processes[0].communicate()
        opened(archives[1], cache)
        assert not killed.exists(), "the release that is opened is another one, and was unpacked before"
        assert contents(living) == held
    finally:
        processes[1].kill()
        processes[1].communicate()
    opened(archives[0], cache)
    assert [*cache.glob(".*")] == []


@pytest.mark.parametrize("is_open", [True, False])
def test_on_windows_what_can_be_removed_has_nobody_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    work = tmp_path / ".unpacking-x"
    (work / "new" / "files").mkdir(parents=True)
    (work / "lock").touch()

    unlinked = Path.unlink

    def unlink(path: Path) -> None:
        if is_open:
            raise PermissionError(13, "The process cannot access the file", str(path))
        unlinked(path)

    with monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        windows.setattr(Path, "unlink", unlink)
        _remove_abandoned(tmp_path)
    assert work.exists() is is_open
    assert (work / "new" / "files").exists() is is_open


def test_what_is_old_and_has_no_lock_is_removed(archive: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "cache" / ".unpacking-old", tmp_path / "cache" / ".unpacking-new"
    for path in (old, new):
        path.mkdir(parents=True)
    day_ago = time.time() - 25 * 3600
    os.utime(old, (day_ago, day_ago))
    opened(archive, tmp_path / "cache")
    assert not old.exists()
    assert new.exists(), "it may belong to a process that is at work"


def test_a_cache_folder_that_can_not_be_written(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReleaseError, match=r"can't be unpacked[\s\S]*QNN_RELEASE_CACHE"):
        opened(archive, tmp_path / "file")


OPEN = """
import sys
from pathlib import Path
from pipeline.qnn_release import Release, ReleaseError
try:
    Release.open(sys.argv[1], device="cpu", cache=sys.argv[2]).verify()
    print("opened")
except ReleaseError as error:
    print(error)
print("left:", *Path(sys.argv[2]).iterdir())
"""


@pytest.mark.skipif(not is_available(), reason="no mount namespaces here")
def test_a_cache_on_a_disk_that_is_full_or_may_only_be_read(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    disk = SmallDisk(cache, "8k")
    disk.program(OPEN, archive, cache)
    disk.remount("ro,size=1m")
    disk.program(OPEN, archive, cache)
    disk.remount("rw")
    disk.program(OPEN, archive, cache)
    disk.remount("ro")
    disk.program(OPEN, archive, cache)
    full, read_only, unpacked, again = (done.text for done in disk.run())
    size = archive.stat().st_size
    assert f"where: {cache}\n  why: No space left on device\n  next: free {size} bytes, or name another" in full
    assert "why: Read-only file system\n  next: mend the cause, or name another folder: cache=..., or QNN" in read_only
    assert full.endswith("left:\n")
    assert read_only.endswith("left:\n")
    assert unpacked.startswith("opened\n")
    assert again == unpacked, "what is there needs no writing"


def test_what_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no such release"):
        Release.open(tmp_path / "none.zip")
    with pytest.raises(FormatError, match="this folder is no release"):
        Release.open(tmp_path)
    for version, why in ((7, "of a later form than this runtime knows: 7"), ("1", "schema_version"), (0, "from 1 on")):
        (tmp_path / "release.json").write_text(json.dumps({"schema_version": version}))
        with pytest.raises(FormatError, match=why):
            Release.open(tmp_path)
