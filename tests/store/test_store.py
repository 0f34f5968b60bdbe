from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.model import FileEntry, Manifest
from pipeline.store.digests import sha256_file
from pipeline.store.durable import write_atomically
from pipeline.store.manifests import read_manifest, write_manifest
from pipeline.store.store import DamagedError, Store
from tests.support.project import ROOT

KEY = "ab" * 32


@pytest.fixture
def told() -> list[str]:
    """What the store had to say."""
    return []


@pytest.fixture
def store(tmp_path: Path, told: list[str]) -> Store:
    return Store(tmp_path / "store", told.append)


def fill(store: Store, key: str = KEY, text: str = "payload") -> Manifest:
    with store.scratch() as scratch:
        (scratch / "sub").mkdir()
        (scratch / "sub" / "a.bin").write_text(text)
        return store.publish("shape", key, scratch, {"nodes": 3}, {})


def test_what_was_published_is_found_again_under_its_key(store: Store) -> None:
    published = fill(store)
    assert store.get(KEY) == published
    assert published.files["sub/a.bin"].bytes == len("payload")
    assert store.get("cd" * 32) is None


def test_equal_payloads_are_stored_once(store: Store) -> None:
    first, second = fill(store), fill(store, "cd" * 32)
    assert first.files == second.files
    assert len([path for path in (store.root / "objects").rglob("*") if path.is_file()]) == 1


def test_reused_files_join_the_manifest_without_a_copy(store: Store) -> None:
    entry = fill(store).files["sub/a.bin"]
    with store.scratch() as scratch:
        manifest = store.publish("quantize", "ef" * 32, scratch, {}, {"weights.bin": entry})
    assert store.get("ef" * 32) == manifest
    assert manifest.files == {"weights.bin": entry}


def test_place_gives_a_stage_the_files_under_their_names(store: Store, tmp_path: Path) -> None:
    store.place(fill(store), tmp_path / "in")
    assert (tmp_path / "in" / "sub" / "a.bin").read_text() == "payload"


def test_a_step_does_not_see_a_payload_whose_bytes_changed(store: Store, tmp_path: Path) -> None:
    manifest = fill(store)
    payload = store.object_path(manifest.files["sub/a.bin"].sha256)
    payload.chmod(0o644)
    payload.write_text("paylaod")
    with pytest.raises(DamagedError, match=r"a stored file is corrupt: sub/a\.bin"):
        store.place(manifest, tmp_path / "in")
    assert not payload.exists(), "so that it is made again"


def count_hashes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    monkeypatch.setattr("pipeline.store.payloads.sha256_file", counted)
    return hashed


def test_a_payload_is_hashed_once_in_a_build_however_many_steps_use_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = count_hashes(monkeypatch)
    manifest = fill(store)
    assert len(hashed) == 1
    for number in range(3):
        store.place(manifest, tmp_path / str(number))
    assert len(hashed) == 1
    other = Store(store.root)
    assert other.intact(manifest)
    assert len(hashed) == 1, "by its seal"
    for number in range(3):
        other.place(manifest, tmp_path / f"another build {number}")
    assert len(hashed) == 2


def test_a_payload_that_was_touched_is_hashed_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = fill(store)
    os.utime(store.object_path(manifest.files["sub/a.bin"].sha256))
    hashed = count_hashes(monkeypatch)
    store.place(manifest, tmp_path / "1")
    store.place(manifest, tmp_path / "2")
    assert len(hashed) == 1


def faults(store: Store) -> dict[Path, str]:
    """What hashing all payloads finds."""
    paths = (store.root / "objects").glob("*/*")
    found = {path: store.payloads.hashed_fault(path.name) for path in paths}
    return {path: fault for path, fault in found.items() if fault}


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have `act` happen once, just after a payload was hashed and before anything follows from it."""
    acts = [act]

    def hashed(path: Path) -> str:
        found = sha256_file(path)
        if acts:
            acts.pop()()
        return found

    monkeypatch.setattr("pipeline.store.payloads.sha256_file", hashed)


def test_two_steps_may_seal_a_payload_at_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = fill(store)
    os.utime(store.object_path(manifest.files["sub/a.bin"].sha256))
    between(monkeypatch, lambda: store.place(manifest, tmp_path / "other"))
    store.place(manifest, tmp_path / "in")
    assert (tmp_path / "in" / "sub" / "a.bin").read_text() == "payload"
    assert store.intact(manifest)


def test_a_step_may_seal_a_payload_while_all_are_hashed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = fill(store)
    os.utime(store.object_path(manifest.files["sub/a.bin"].sha256))
    between(monkeypatch, lambda: store.place(manifest, tmp_path / "in"))
    assert faults(store) == {}
    assert store.intact(manifest)


def test_a_payload_that_is_written_to_while_it_is_hashed_is_corrupt(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = fill(store)
    payload = store.object_path(manifest.files["sub/a.bin"].sha256)
    payload.chmod(0o644)
    os.utime(payload)
    between(monkeypatch, lambda: payload.write_text("paylaod"))
    with pytest.raises(StoreError, match="a stored file is corrupt"):
        store.place(manifest, tmp_path / "in")
    assert not payload.exists()


def test_payloads_that_changed_places_are_found(store: Store, tmp_path: Path) -> None:
    first, second = fill(store, text="payload"), fill(store, "cd" * 32, text="paylaod")
    one, two = (store.object_path(each.files["sub/a.bin"].sha256) for each in (first, second))
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    for number, manifest in enumerate((first, second)):
        with pytest.raises(StoreError, match="a stored file is corrupt"):
            store.place(manifest, tmp_path / str(number))


def test_hashing_all_finds_what_no_stat_shows(store: Store) -> None:
    good, bad = fill(store), store.object_path(fill(store, "cd" * 32, text="other").files["sub/a.bin"].sha256)
    seal = bad.stat().st_mtime
    bad.chmod(0o644)
    bad.write_text("OTHER")
    os.utime(bad, (seal, seal))
    assert faults(store) == {bad: "its SHA-256 is not the one that it was stored under"}
    assert store.intact(good)


def test_a_payload_that_went_bad_is_named_and_replaced_when_it_is_made_again(
    store: Store, tmp_path: Path, told: list[str]
) -> None:
    payload = store.object_path(fill(store).files["sub/a.bin"].sha256)
    payload.chmod(0o644)
    payload.write_text("paylaod")
    store.place(fill(store), tmp_path / "in")
    assert len(told) == 1
    assert str(payload) in told[0]
    assert (tmp_path / "in" / "sub" / "a.bin").read_text() == "payload"


def rot(path: Path, data: bytes | None = None) -> None:
    """Change a file's bytes such that neither size nor modification time show it."""
    seal = path.stat().st_mtime_ns
    path.chmod(0o644)
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()) if data is None else data)
    os.utime(path, ns=(seal, seal))


def test_a_step_does_not_see_a_payload_that_the_disk_lost_bits_of(store: Store, tmp_path: Path) -> None:
    manifest = fill(store)
    payload = store.object_path(manifest.files["sub/a.bin"].sha256)
    rot(payload)
    another_build = Store(store.root, lambda _: None)
    assert another_build.intact(manifest), "no stat shows it"
    with pytest.raises(DamagedError):
        another_build.place(manifest, tmp_path / "in")
    assert not payload.exists()


def write(path: Path, text: str) -> None:
    path.chmod(0o644)
    path.write_text(text)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


HARMS: dict[str, Callable[[Path], None]] = {
    "it is missing": os.unlink,
    "it has 3 bytes, not 7": lambda path: write(path, "pay"),
    "its SHA-256 is not the one that it was stored under": lambda path: write(path, "PAYLOAD"),
    "it is not a file": link,
}


@pytest.mark.skipif(os.name == "nt", reason="a link's own times can't be set there")
def test_a_payload_that_is_a_link_is_not_believed_whatever_its_seal(store: Store, tmp_path: Path) -> None:
    manifest = fill(store)
    payload = store.object_path(manifest.files["sub/a.bin"].sha256)
    seal = payload.stat().st_mtime_ns
    payload.rename(tmp_path / "elsewhere")
    name = "x" * manifest.files["sub/a.bin"].bytes  # a link's size is that of the name
    payload.symlink_to(name)
    os.utime(payload, ns=(seal, seal), follow_symlinks=False)
    assert not store.intact(manifest)


@pytest.mark.parametrize("fault", HARMS)
def test_an_output_with_a_bad_payload_is_not_current_and_the_payload_is_named_and_dropped(
    store: Store, told: list[str], fault: str
) -> None:
    manifest = fill(store)
    payload = store.object_path(manifest.files["sub/a.bin"].sha256)
    HARMS[fault](payload)
    assert store.get(KEY) is None
    assert not os.path.lexists(payload)
    assert store.get(KEY) is None
    assert len(told) == 1, "once"
    if fault == "it is missing":
        assert told[0] == "missing in the store: a file of shape (e.g. sub/a.bin); made again when needed"
    else:
        assert f"sub/a.bin: {fault}" in told[0]
        assert str(payload) in told[0]


def test_a_payload_stays_when_it_is_not_its_fault_that_it_can_not_be_read(
    store: Store, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = fill(store)

    def refuse(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(store.payloads, "fault", refuse)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            store.get(KEY)
    assert store.get(KEY) == manifest
    assert told == []


@pytest.fixture
def samples(store: Store) -> Manifest:
    """An output of 200 payloads."""
    with store.scratch() as scratch:
        for number in range(200):
            (scratch / f"{number:05}.npz").write_text(f"sample {number}")
        return store.publish("samples", "cd" * 32, scratch, {}, {})


def test_what_is_missing_of_one_output_is_one_line(store: Store, told: list[str], samples: Manifest) -> None:
    for entry in samples.files.values():
        store.object_path(entry.sha256).unlink()
    assert not store.intact(samples)
    assert not store.intact(samples)
    assert told == ["missing in the store: 200 files of samples (e.g. 00000.npz); made again when needed"]


def test_of_many_damaged_files_a_few_are_named(store: Store, told: list[str], samples: Manifest) -> None:
    paths = [store.object_path(entry.sha256) for entry in samples.files.values()]
    for path in paths:
        write(path, "?")
    assert not store.intact(samples)
    assert not store.intact(samples), "and what was dropped is not told to be missing"
    assert [line.split(":")[1] for line in told[:5]] == [f" {number:05}.npz" for number in range(5)]
    assert told[5:] == ["damaged in the store: 195 more files of samples"]
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("left", [False, True])
def test_a_store_that_is_new_or_was_emptied_misses_nothing(
    tmp_path: Path, store: Store, told: list[str], samples: Manifest, left: bool
) -> None:
    new = Store(tmp_path / "new", told.append)
    if left:
        (new.root / "objects").mkdir(parents=True)
    assert not new.intact(samples)
    fill(new)
    assert not new.intact(samples), "not even when the first step has put its output there"
    assert told == []


def test_a_store_that_was_deleted_is_not_damaged(store: Store, told: list[str]) -> None:
    manifest = fill(store)
    shutil.rmtree(store.root)
    assert not store.intact(manifest)
    assert told == []


def test_a_manifest_with_any_bit_flipped_is_none(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write_manifest(path, Manifest("shape", KEY, {"a": FileEntry("1" * 64, 1)}, {"x": "한", "y": 1.5}))
    good = path.read_bytes()
    assert read_manifest(path) is not None
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        os.utime(path, ns=(0, bit))  # no two with the same stat
        assert read_manifest(path) is None, f"bit {bit}"


def test_a_damaged_manifest_of_the_store_is_named_and_dropped(store: Store, told: list[str]) -> None:
    fill(store)
    path = store.manifest_path(KEY)
    rot(path)
    assert store.get(KEY) is None
    assert not path.exists()
    assert str(path) in told[0]


def test_the_manifest_of_another_key_is_not_believed(store: Store) -> None:
    fill(store)
    other = store.manifest_path("cd" * 32)
    other.parent.mkdir(parents=True)
    shutil.copy(store.manifest_path(KEY), other)
    assert store.get("cd" * 32) is None
    assert store.get(KEY) is not None


def test_a_use_is_noted_once_a_day_and_puts_a_lost_manifest_back(store: Store, told: list[str]) -> None:
    manifest = fill(store)
    path = store.manifest_path(KEY)
    recent = time.time() - 3600
    os.utime(path, (recent, recent))
    store.used(manifest)
    assert path.stat().st_mtime == pytest.approx(recent, abs=1)
    os.utime(path, (recent - 86400,) * 2)
    store.used(manifest)
    assert path.stat().st_mtime > recent
    before = path.read_bytes()
    path.unlink()
    store.used(manifest)
    assert path.read_bytes() == before
    assert str(path) in told[0]


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """A folder for what is half-written."""
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


@pytest.mark.parametrize("keep_seal", [False, True])
def test_export_refuses_and_drops_a_payload_whose_bytes_changed(
    store: Store, tmp_path: Path, staging: Path, told: list[str], keep_seal: bool
) -> None:
    entry = fill(store).files["sub/a.bin"]
    payload = store.object_path(entry.sha256)
    seal = payload.stat().st_mtime
    payload.chmod(0o644)
    payload.write_text("PAYLOAD")
    if keep_seal:
        os.utime(payload, (seal, seal))
    with pytest.raises(DamagedError, match=r"a stored file is corrupt: a\.bin"):
        store.export(entry, tmp_path / "a.bin", staging)
    assert not payload.exists()
    assert not (tmp_path / "a.bin").exists()
    assert list(staging.iterdir()) == []
    assert told == [
        "damaged in the store: a.bin: its SHA-256 is not the one that it was stored under; "
        f"it is made again when it is needed ({payload})"
    ]


def test_export_writes_the_payload(store: Store, tmp_path: Path, staging: Path) -> None:
    entry = fill(store).files["sub/a.bin"]
    store.export(entry, tmp_path / "out" / "a.bin", staging)
    assert sha256_file(tmp_path / "out" / "a.bin") == entry.sha256


def test_export_works_from_one_file_system_to_another(
    store: Store, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = fill(store).files["sub/a.bin"]
    replace = os.replace

    def within_one(source: Path, destination: Path) -> None:
        if source.parent != destination.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, destination)

    monkeypatch.setattr("pipeline.store.durable.os.replace", within_one)
    store.export(entry, tmp_path / "out" / "a.bin", staging)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.bin"]
    assert list(staging.iterdir()) == []


def test_a_failed_export_says_what_the_disk_said(store: Store, tmp_path: Path, staging: Path) -> None:
    entry = fill(store).files["sub/a.bin"]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="the disk refused a write"):
        store.export(entry, tmp_path / "file" / "a.bin", staging)


def test_a_full_disk_between_is_named_and_not_that_of_the_destination(
    store: Store, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write that fails: it names no file

    monkeypatch.setattr("pipeline.store.store.copy_hashed", full)
    with pytest.raises(StoreError) as caught:
        store.export(fill(store).files["sub/a.bin"], tmp_path / "out" / "a.bin", staging)
    assert caught.value.where == str(staging / "a.bin")


def test_a_full_disk_says_so_and_leaves_nothing(
    store: Store, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    entry = fill(store).files["sub/a.bin"]
    monkeypatch.setattr("pipeline.store.store.copy_hashed", full)
    with pytest.raises(StoreError, match="the disk refused a write") as caught:
        store.export(entry, tmp_path / "a.bin", staging)
    assert "free some space" in caught.value.remedy
    assert list(tmp_path.glob("*a.bin*")) == []


def test_scratch_is_gone_afterwards_even_after_an_error(store: Store) -> None:
    def fail() -> None:
        with store.scratch() as scratch:
            (scratch / "half").write_text("x")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert list((store.root / "tmp").iterdir()) == []


def test_manifest_text_depends_on_nothing_but_the_manifest(tmp_path: Path) -> None:
    entries = {"b": FileEntry("2" * 64, 2), "a": FileEntry("1" * 64, 1)}
    write_manifest(tmp_path / "1", Manifest("shape", KEY, entries, {"y": 1, "x": "한"}))
    write_manifest(tmp_path / "2", Manifest("shape", KEY, dict(reversed(entries.items())), {"x": "한", "y": 1}))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"files": 3}', '{"schema": 2, "files": {"a": 1}}'])
def test_a_file_that_is_no_manifest_reads_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    assert read_manifest(tmp_path / "m.json") is None


def test_an_interrupted_write_leaves_the_old_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "m.json"
    write_atomically(path, b"old")
    monkeypatch.setattr("pipeline.store.durable.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_scratch_of_a_process_that_died_is_collected(store: Store) -> None:
    script = (
        "import os, sys; from pathlib import Path; from pipeline.store.store import Store\n"
        "with Store(Path(sys.argv[1])).scratch() as scratch:\n    (scratch / 'half').write_text('x'); os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(store.root)], cwd=ROOT, check=False)
    assert len(list((store.root / "tmp").iterdir())) == 2
    with store.scratch() as mine, store.scratch() as other:
        assert len(store.collect()) == 1
        assert mine.is_dir()
        assert other.is_dir()
        assert len([path for path in (store.root / "tmp").iterdir() if path.is_dir()]) == 2
    assert list((store.root / "tmp").iterdir()) == []


def test_steps_that_need_one_payload_at_once_find_it_whole(tmp_path: Path) -> None:
    """Its seal is lost, as after a copy of the store: each looks at the bytes, and the first restores the seal."""
    store = Store(tmp_path / "store")
    with store.scratch() as folder:
        (folder / "w").write_bytes(os.urandom(60 << 20))
        manifest = store.publish("ingest", "0" * 64, folder, {}, {})
    (entry,) = manifest.files.values()
    store.object_path(entry.sha256).touch()

    def place(number: int) -> None:
        time.sleep(0.015 * number)
        (tmp_path / str(number)).mkdir()
        store.place(manifest, tmp_path / str(number))

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(place, range(4)))
    assert not faults(store)
    assert all((tmp_path / str(number) / "w").stat().st_size == entry.bytes for number in range(4))
