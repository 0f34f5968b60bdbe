"""The shared store by itself: what comes from there is checked, and a place that fails costs seconds and a warning.

Each test is about a folder and about S3 alike, the latter by the real client and a real server.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.errors import ConfigError
from pipeline.model import FileEntry, Manifest
from pipeline.store import sealed_json
from pipeline.store.manifests import dump_manifest, parse_manifest
from pipeline.store.shared import address, tier
from pipeline.store.shared import call_timeouts as patience_module
from pipeline.store.shared import connection as reach_module
from pipeline.store.shared import place as places
from pipeline.store.shared.call_timeouts import GoneError, Patience
from pipeline.store.shared.connection import Reach
from pipeline.store.shared.fsspec_place import FsspecPlace
from pipeline.store.shared.place import FolderPlace, SharedPlace
from pipeline.store.shared.tier import SharedStore
from pipeline.store.store import Store
from pipeline.store.urls import redacted, told
from tests.support.s3_server import Deaf, Refusing, S3Server, s3_fixture  # noqa: F401

_LIMIT_S = 120
KEY = hashlib.sha256(b"a key").hexdigest()
DATA = {"model.onnx": b"graph" * 1000, "weights.bin": b"weights" * 50_000, "empty": b""}


@dataclass
class Machine:
    """A store, and its way to what is shared."""

    root: Path
    url: str
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store(self.root / "store", self.lines.append)
        self.shared = self.opened()

    def opened(self) -> SharedStore:
        """As the next build has it."""
        self.shared = SharedStore(
            self.url, "configs/project.yaml:1:2", self.root, self.root / "shared.json", self.store
        )
        self.shared.open()
        return self.shared

    def make(self, key: str = KEY, data: dict[str, bytes] = DATA, stage: str = "quantize") -> Manifest:
        with self.store.scratch() as folder:
            for name, content in data.items():
                (folder / name).write_bytes(content)
            return self.store.publish(stage, key, folder, {"a": 1}, {})

    def push(self, manifest: Manifest) -> None:
        self.shared.offer(manifest)
        self.shared.close()

    def restore(self, key: str = KEY, stage: str = "quantize") -> Manifest | None:
        """What a build would do."""
        self.opened()
        found = self.shared.find(key, stage)
        return found if found and self.shared.fetch(found, "the step") else None

    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "shared")
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    return f"{server.bucket()}/our/store"


def place_of(url: str) -> SharedPlace:
    return FsspecPlace.of(url, "") if "://" in url else FolderPlace(Path(url))


def machine(tmp_path: Path, name: str, url: str) -> Machine:
    return Machine(tmp_path / name, url)


def object_name(data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    return f"objects/{sha256[:2]}/{sha256}"


MANIFEST = f"manifests/{KEY[:2]}/{KEY}.json"


def payloads(store: Store, manifest: Manifest) -> dict[str, bytes]:
    return {name: store.object_path(entry.sha256).read_bytes() for name, entry in manifest.files.items()}


def test_what_one_machine_made_another_restores(tmp_path: Path, url: str) -> None:
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    assert second.restore() is None
    made = first.make()
    first.push(made)
    restored = second.restore()
    assert restored == made
    assert payloads(second.store, restored) == DATA
    assert second.store.get(KEY) == made
    assert first.lines == second.lines == []
    assert not [*(tmp_path / "second" / "store" / "tmp").iterdir()]


def test_what_is_there_is_neither_asked_for_nor_sent_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    first.push(first.make())
    made = second.make()
    kind = FolderPlace if url[0] == "/" else FsspecPlace
    sent: list[str] = []
    send = kind.send

    def note(self: Any, source: Path, name: str, moved: Callable[[int], None]) -> None:
        sent.append(name)
        send(self, source, name, moved)

    monkeypatch.setattr(kind, "send", note)
    second.push(made)
    assert sent == []
    third = machine(tmp_path, "third", url)
    third.push(third.make(hashlib.sha256(b"another").hexdigest(), DATA | {"more": b"more"}))
    assert sent == [object_name(b"more")]
    with monkeypatch.context() as patched:
        patched.setattr(Reach, "_open", lambda _: pytest.fail("it was known to be there"))
        second.opened()
        second.push(made)
    # A day later it is asked again, as a bucket may have expired a payload that is older than the manifest.
    place = place_of(url)
    place.remove(object_name(DATA["weights.bin"]))
    now = time.time()
    monkeypatch.setattr("pipeline.store.shared.remote_index.time.time", lambda: now + 25 * 3600)
    second.opened()
    second.push(made)
    assert place.read(object_name(DATA["weights.bin"]), 1 << 20) == DATA["weights.bin"]
    assert second.lines == []


def test_the_first_to_write_a_manifest_wins(tmp_path: Path, url: str) -> None:
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    first.push(first.make())
    second.push(second.make(data={"model.onnx": b"otherwise"}))
    found = parse_manifest(place_of(url).read(MANIFEST, 1 << 20) or b"")
    assert found == first.store.get(KEY)
    place = place_of(url)
    assert place.create("new/name", b"1")
    assert not place.create("new/name", b"2")
    assert place.read("new/name", 10) == b"1"
    place.replace("new/name", b"")
    assert place.read("new/name", 10) == b""
    assert (place.size("new/name"), place.size("new"), place.size("none")) == (0, None, None)
    place.remove("new/name")
    assert place.read("new/name", 10) is None


def flipped(data: bytes) -> bytes:
    return data[:9] + bytes([data[9] ^ 1]) + data[10:]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (flipped, "its SHA-256 is another one"),
        (lambda data: data[:-3], "not 350000"),
        (lambda data: data * 2, "not 350000"),
        (lambda _: b"", "it has 0 bytes, not 350000"),
        (None, "it is missing"),
    ],
)
def test_a_damaged_payload_is_named_not_used_and_healed(
    change: Callable[[bytes], bytes] | None, why: str, tmp_path: Path, url: str
) -> None:
    first, second, third = (machine(tmp_path, name, url) for name in ("first", "second", "third"))
    first.push(first.make())
    place, name = place_of(url), object_name(DATA["weights.bin"])
    if change:
        place.replace(name, change(DATA["weights.bin"]))
    else:
        place.remove(name)
    assert second.restore() is None
    assert "damaged in the shared store: weights.bin of the step" in second.text()
    assert why in second.text()
    assert second.store.get(KEY) is None
    second.opened()  # the build that found it died before it had made it again
    second.push(second.make())
    assert place.read(name, 1 << 20) == DATA["weights.bin"]
    assert third.restore() == second.store.get(KEY)
    assert third.lines == []


def test_what_is_damaged_there_and_may_not_be_made_here_comes_back_from_who_has_it(tmp_path: Path, url: str) -> None:
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    made = first.make()
    first.push(made)
    place, name = place_of(url), object_name(DATA["weights.bin"])
    place.replace(name, flipped(DATA["weights.bin"]))
    assert not second.shared.drop_damaged(KEY), "nothing is known of it"
    assert second.restore() is None
    assert second.shared.drop_damaged(KEY)
    assert place.size(name) is None
    first.opened()
    first.push(made)
    assert place.size(name) is None, "it is known to be there, and asked again after a day"
    (first.root / "shared.json").unlink()
    first.opened()
    first.push(made)
    assert second.restore() == made


@pytest.mark.parametrize("change", [flipped, lambda data: data[:-3], lambda _: b"", lambda data: b"\0" * len(data)])
def test_a_damaged_manifest_is_named_not_used_and_healed(
    change: Callable[[bytes], bytes], tmp_path: Path, url: str
) -> None:
    first, second, third = (machine(tmp_path, name, url) for name in ("first", "second", "third"))
    first.push(first.make())
    place = place_of(url)
    place.replace(object_name(DATA["weights.bin"]), flipped(DATA["weights.bin"]))  # of which nobody can know then
    good = place.read(MANIFEST, 1 << 20) or b""
    place.replace(MANIFEST, change(good))
    assert second.restore() is None
    assert "damaged in the shared store: what it knows of a step (quantize)" in second.text()
    second.push(second.make())
    assert place.read(MANIFEST, 1 << 20) == good
    assert third.restore() is not None
    assert third.lines == []


def test_whoever_is_to_write_what_is_damaged_there_heals_it(tmp_path: Path, url: str) -> None:
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    place = place_of(url)
    place.replace(MANIFEST, b"not a manifest")
    first.push(first.make())
    assert "damaged in the shared store" in first.text()
    assert second.restore() is not None


def sealed(**changes: Any) -> bytes:
    entry = {"sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1}
    raw: dict[str, Any] = {"schema": 2, "stage": "quantize", "key": KEY, "files": {"model.onnx": entry}, "facts": {}}
    return sealed_json.dump(raw | changes)


def of_file(name: str = "model.onnx", **changes: Any) -> dict[str, Any]:
    return {"files": {name: {"sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1} | changes}}


@pytest.mark.parametrize(
    "hostile",
    [
        sealed(key=hashlib.sha256(b"of another step").hexdigest()),
        sealed(stage="context"),
        sealed(schema=99),
        sealed(**of_file("../../../escaped")),
        sealed(**of_file("/etc/escaped")),
        sealed(**of_file("a\\..\\b")),
        sealed(**of_file("c:escaped")),
        sealed(**of_file("a\0b")),
        sealed(**of_file(sha256="../../../../escaped")),
        sealed(**of_file(bytes=-1)),
        sealed(**of_file(bytes=True)),
        sealed(**of_file(bytes=1e300)),
        sealed(**of_file(bytes="1")),
        sealed(files=[]),
        sealed(facts=[]),
        sealed(facts={"parts": {"8": {"files": {"x": "../../escaped"}, "facts": {}}}}),
        b"[" * 100_000,
        b"{}",
    ],
)
def test_a_hostile_manifest_is_refused(hostile: bytes, tmp_path: Path) -> None:
    there = tmp_path / "shared"
    there.mkdir()
    FolderPlace(there).replace(object_name(b"x"), b"x")
    FolderPlace(there).replace(MANIFEST, sealed())
    assert machine(tmp_path, "before", str(there)).restore() is not None
    FolderPlace(there).replace(MANIFEST, hostile)
    here = machine(tmp_path, "here", str(there))
    assert here.restore() is None
    assert "damaged in the shared store: what it knows of a step (quantize): it is not what was written" in here.text()
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name]


def test_sizes_that_no_disk_has(tmp_path: Path, url: str) -> None:
    place = place_of(url)
    place.replace(MANIFEST, sealed(**of_file(bytes=1 << 62)))
    here = machine(tmp_path, "here", url)
    assert here.restore() is None
    assert "not restored from the shared store: the step has 4611686018.4 GB" in here.text()
    # A payload that is larger than is said fills no disk: it is given up at its first bytes.
    place.replace(MANIFEST, sealed(**of_file(bytes=1)))
    place.replace(object_name(b"x"), b"x" * (40 << 20))
    here = machine(tmp_path, "here", url)
    assert here.restore() is None
    assert f"it has {40 << 20} bytes, not 1" in here.text()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    first = machine(tmp_path, "first", str(tmp_path / "shared"))
    first.push(first.make())
    path = tmp_path / "shared" / object_name(DATA["model.onnx"])
    for make in (os.mkfifo, os.mkdir):
        path.unlink() if path.is_file() or path.is_fifo() else path.rmdir()
        make(path)
        second = machine(tmp_path, f"second-{make.__name__}", str(tmp_path / "shared"))
        assert second.restore() is None
        assert "it is not a file" in second.text(), "had it been waited for, it would be out of reach"


def test_what_is_damaged_here_is_not_sent(tmp_path: Path, url: str) -> None:
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    made = first.make()
    path = first.store.object_path(made.files["weights.bin"].sha256)
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(flipped(DATA["weights.bin"]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    first = Machine(first.root, url)  # a later build: it has hashed nothing yet
    first.push(made)
    assert second.restore() is None
    assert second.lines == []


@pytest.mark.slow
def test_large_files_are_not_held_in_memory(tmp_path: Path, s3: S3Server) -> None:
    """Sent in parts and fetched in pieces: 200 MB in a process that gets 60 MB more than it has at rest."""
    url = f"{s3.bucket()}/store"
    done = subprocess.run(
        [sys.executable, "-c", _LARGE, str(tmp_path), url],
        env=os.environ | s3.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent, fetched = map(int, done.stdout.split())
    assert sent < 60 << 20, sent
    assert fetched < 60 << 20, fetched


_LARGE = """\
import os, resource, sys
from pathlib import Path
from tests.store.shared.test_shared_tier import Machine, DATA, KEY
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
root, url = Path(sys.argv[1]), sys.argv[2]
first = Machine(root / "first", url)
first.push(first.make("0" * 64, {"small": b"1"}))
block = os.urandom(1 << 20)
with first.store.scratch() as folder:
    with (folder / "large").open("wb") as stream:
        for number in range(200):
            stream.write(number.to_bytes(8, "little") + block)
    made = first.store.publish("quantize", KEY, folder, {}, {})
first.opened()
before = peak()
first.push(made)
sent = peak() - before
assert all(line.startswith("writing to the shared store: ") for line in first.lines), first.lines
second = Machine(root / "second", url)
before = peak()
assert second.restore() == made, second.lines
print(sent, peak() - before)
"""


def in_vain(here: Machine) -> tuple[float, list[str]]:
    """How long a build with much to ask and to write takes, and what it says."""
    began = time.monotonic()
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(12)]
    threads = [threading.Thread(target=here.shared.find, args=(key, "quantize")) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in keys:
        assert here.shared.find(key, "quantize") is None
        here.shared.offer(here.make(key, {"x": key.encode()}))
    here.shared.close()
    return time.monotonic() - began, here.lines


@pytest.mark.slow
def test_a_black_hole_costs_ten_seconds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    with Deaf() as endpoint:
        for name, value in (s3.environ() | {"AWS_ENDPOINT_URL": endpoint}).items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        took, lines = in_vain(machine(tmp_path, "here", "s3://bucket/x"))
    assert took < 40, "each of its questions alone would be waited for for 8 s"
    assert len(lines) == 1
    assert "s3://bucket/x is left alone in this build: it does not answer: nothing was heard for 8 s" in lines[0]


@pytest.mark.slow
def test_a_name_server_that_does_not_answer_keeps_no_process_from_ending(tmp_path: Path, s3: S3Server) -> None:
    """Clients look up names in threads that the interpreter would wait for."""
    environ = os.environ | s3.environ() | {"AWS_ENDPOINT_URL": "http://s3.invalid"}
    command = [sys.executable, "-c", _NO_NAMES, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "it does not answer: nothing was heard for 1 s" in done.stdout


def test_what_fails_in_a_task_that_nobody_awaits_is_not_printed() -> None:
    """A request whose connection breaks leaves such a task behind, whose traceback has the URL in it."""
    done = subprocess.run([sys.executable, "-c", _UNAWAITED], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")


_UNAWAITED = """\
import asyncio, gc
from fsspec.asyn import get_loop, sync
from pipeline.store.shared import fsspec_place
fsspec_place.load("memory://x", "here")
async def fail():
    raise OSError("https://user:secret@host/")
async def leave():
    asyncio.create_task(fail())
    await asyncio.sleep(0.01)
    gc.collect()
sync(get_loop(), leave)
print("over")
"""


_NO_NAMES = """\
import socket, sys, time
from pathlib import Path
socket.getaddrinfo = lambda *_, **__: time.sleep(3600)
from pipeline.store.shared import call_timeouts
from tests.store.shared.test_shared_tier import KEY, Machine
here = Machine(Path(sys.argv[1]), "s3://bucket/x")
call_timeouts.SILENT_S = 1.0
assert here.shared.find(KEY, "quantize") is None
here.shared.close()
print(here.text(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user", "endpoint", "bucket", "why"),
    [
        ("builder", "closed", "bucket", "Could not connect to the endpoint URL"),
        ("builder", "", "no-such-bucket", "The specified bucket does not exist"),
        ("wrong", "", "bucket", "The request signature we calculated does not match"),
        ("nobody", "", "bucket", "The access key ID you provided does not exist"),
        ("none", "", "bucket", "Unable to locate credentials"),
    ],
)
def test_what_refuses_is_said_once_and_left_alone(
    user: str, endpoint: str, bucket: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> None:
    environ = s3.environ()
    if user == "wrong":
        environ["AWS_SECRET_ACCESS_KEY"] = "AnotherSecretThatNobodyMaySee"
    elif user == "nobody":
        environ["AWS_ACCESS_KEY_ID"] = "AKNOBODY"
    elif user == "none":
        del environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"]
    url = s3.bucket() if bucket == "bucket" else f"s3://{bucket}"
    with Refusing() as closed:
        for name, value in (environ | ({"AWS_ENDPOINT_URL": closed} if endpoint else {})).items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        _, lines = in_vain(machine(tmp_path, "here", f"{url}/x"))
    assert len(lines) == 1, lines
    assert f"{url}/x is left alone in this build" in lines[0]
    assert why in lines[0]
    assert "SecretThatNobodyMaySee" not in lines[0]


@pytest.mark.slow
def test_who_may_only_read_restores_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> None:
    url = f"{s3.bucket()}/store"
    for user in ("builder", "reader"):
        for name, value in s3.environ(user).items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        here = machine(tmp_path, user, url)
        if user == "builder":
            here.push(here.make())
            continue
        _, lines = in_vain(here)
        assert len(lines) == 1, lines
        assert (
            f"nothing more is written to the shared store {url} in this build: PermissionError: Access Denied"
            in lines[0]
        )
        assert here.restore() is not None


def test_a_server_that_stops_answering_in_the_middle(
    tmp_path: Path, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "://" not in url:
        pytest.skip("is about a server")
    server: S3Server = request.getfixturevalue("s3")
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    made = first.make(data={f"{number}": os.urandom(100_000) for number in range(10)})
    sent: list[str] = []
    send = FsspecPlace.send

    def halting(self: Any, source: Path, name: str, moved: Callable[[int], None]) -> None:
        sent.append(name)
        if len(sent) == 5:
            server.halt()
        send(self, source, name, moved)

    with monkeypatch.context() as patched:
        patched.setattr(FsspecPlace, "send", halting)
        patched.setattr(patience_module, "_UNSURE_S", 2.0)
        try:
            first.push(made)
            assert "it does not answer" in first.text(), "and what waits for it is given up"
        finally:
            server.resume()
    assert len(sent) == 5
    assert second.restore() is None
    assert second.lines == [], "half of it is seen by nobody"
    first.opened()
    first.push(made)
    assert second.restore() == made


def test_slow_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that moves slowly, or not for a while, is waited for as long as small questions are answered."""
    monkeypatch.setattr(patience_module, "_UNSURE_S", 1.0)
    never, asked = threading.Event(), threading.Event()

    def stalls(moved: Callable[[int], None]) -> str:
        assert asked.wait(_LIMIT_S)
        moved(1)
        return "done"

    assert Patience(asked.set).move(stalls) == "done"
    with pytest.raises(GoneError, match="nothing was heard for 1 s"):
        Patience(lambda: never.wait(_LIMIT_S)).move(lambda _: never.wait(_LIMIT_S))
    monkeypatch.setattr(patience_module, "_STALLED_S", 3.0)
    with pytest.raises(GoneError, match="nothing was heard for 3 s"):
        Patience().move(lambda _: never.wait(_LIMIT_S))
    never.set()


def test_who_was_stopped_himself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and `fg` much time has passed in which nothing was heard."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(patience_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    again, looks, asked = threading.Event(), list[int](), list[str]()

    def during(moved: int) -> None:
        looks.append(moved)
        clock.now += 10_000 if len(looks) == 2 else 0
        if len(looks) == 5:
            again.set()

    def waits(_: object) -> bool:
        return again.wait(_LIMIT_S)

    assert Patience(lambda: asked.append("alive?")).move(waits, during)
    assert asked == []


def test_two_that_write_the_same_at_once(tmp_path: Path, url: str) -> None:
    machines = [machine(tmp_path, str(number), url) for number in range(4)]
    shared = os.urandom(6 << 20)
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(6)]
    made = [[each.make(key, {"own": key.encode(), "common": shared}) for key in keys] for each in machines]
    for each, manifests in zip(machines, made, strict=True):
        for manifest in manifests:
            each.shared.offer(manifest)
    threads = [threading.Thread(target=each.shared.close) for each in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line for each in machines for line in each.lines] == []
    last = machine(tmp_path, "last", url)
    for key, manifest in zip(keys, made[0], strict=True):
        assert last.restore(key) == manifest
    assert last.lines == []


def test_nothing_half_written_is_left_in_a_folder_and_what_the_dead_left_goes(tmp_path: Path) -> None:
    there = tmp_path / "shared"
    (there / "tmp").mkdir(parents=True)
    old, new = there / "tmp" / "old", there / "tmp" / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 3 * 86400,) * 2)
    here = machine(tmp_path, "here", str(there))
    here.push(here.make())
    assert [path.name for path in (there / "tmp").iterdir()] == ["new"]


def test_a_folder_whose_parent_is_missing_is_not_made(tmp_path: Path) -> None:
    here = machine(tmp_path, "here", str(tmp_path / "not-mounted" / "shared"))
    assert here.restore() is None
    here.push(here.make())
    assert "nothing more is written" in here.text()
    assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s33://bucket/x", "this kind of URL is not known: s33://bucket/x"),
        ("s3:bucket/x", "neither a folder nor a URL: s3:bucket/x"),
        ("::", "neither a folder nor a URL: ::"),
        ("-x", "neither a folder nor a URL: -x"),
        ("file://host/x", "a file:// URL has three slashes, or names a host"),
        ("s3://", "no bucket is named"),
        ("store", "nothing is shared by store"),
        (".", r"nothing is shared by \."),
        ("memory://x", "nothing is shared by memory://x"),
        ("s3://me:geheim@bucket/x", "a URL of S3 names a bucket and no user: s3://bucket/x"),
        ("gdrive://x", "the package for this kind of URL is not installed"),
    ],
)
def test_mistakes_say_where_they_are(url: str, what: str, tmp_path: Path) -> None:
    here = machine(tmp_path, "here", url)
    made = here.make()
    with pytest.raises(ConfigError, match=what) as error:
        here.shared.find(KEY, "quantize")
    assert error.value.where == "configs/project.yaml:1:2"
    assert error.value.remedy
    with pytest.raises(ConfigError, match=what):
        here.shared.offer(made)


class Shelf(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """A file system in memory under a name of its own."""

    protocol = "shelf"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("shelf://", "memory://")))


def test_any_file_system_of_fsspec(tmp_path: Path) -> None:
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    first, second = machine(tmp_path, "first", "shelf://a/b"), machine(tmp_path, "second", "shelf://a/b")
    first.push(first.make())
    assert second.restore() is not None
    # One whose files are seen while they are written, as those of SFTP are: by a rename.
    (tmp_path / "there").mkdir()
    url = f"local://{tmp_path}/there"
    first, second = machine(tmp_path, "third", url), machine(tmp_path, "fourth", url)
    first.push(first.make())
    assert second.restore() is not None
    assert not [*(tmp_path / "there" / "tmp").iterdir()]
    assert first.lines == second.lines == []


@pytest.mark.slow
def test_trying_it_out(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    assert machine(tmp_path, "here", url).shared.try_out() == tier.Reachability(redacted(url))
    if "://" in url:
        assert not [name for name in s3.system().find(url) if "doctor" in name]
        for name, value in s3.environ("reader").items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        trial = machine(tmp_path, "reader", url).shared.try_out()
        assert (trial.unread, "Access Denied" in trial.unwritten) == ("", True)
        trial = machine(tmp_path, "none", "s3://no-such-bucket").shared.try_out()
        assert "bucket does not exist" in trial.unread


def test_the_environment_goes_before_the_config() -> None:
    assert address.configured({}, None, "p") == ("", "p")
    assert address.configured({}, "s3://a", "p") == ("s3://a", "p")
    assert address.configured({address.VARIABLE: "/b"}, "s3://a", "p") == (
        "/b",
        "PIPELINE_SHARED_STORE in the environment",
    )
    assert address.configured({address.VARIABLE: ""}, "s3://a", "p")[0] == ""


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/x", "s3://bucket/x"),
        ("sftp://me:geheim123@host/x", "sftp://host/x"),
        ("sftp://me:ge@heim@host/x@y", "sftp://host/x@y"),
        ("sftp://me:ge/heim@host/x", "sftp://host/x"),
        ("http://host:8080/x@y", "http://host:8080/x@y"),
        ("https://host/x?sv=1&sig=abc%2Fdef&x=1", "https://host/x?sv=1&sig=***&x=1"),
        ("s3://b?X-Amz-Signature=abc", "s3://b?X-Amz-Signature=***"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert redacted(f"no '{url}' there") == f"no '{shown}' there"


def test_what_libraries_say_is_shown_without_secrets() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "a/Secret+Key", "FSSPEC_S3_KEY": "anotherOne", "HOME": "/home/user"}
    error = OSError("denied: a/Secret+Key, anotherOne, my%20pass from /home/user, my pass")
    text = told(error, "sftp://me:my%20pass@host", environ)
    assert text == "OSError: denied: <AWS_SECRET_ACCESS_KEY>, <FSSPEC_S3_KEY>, *** from /home/user, my pass"
    assert "geheimes" not in told(OSError("user geheimes"), "sftp://geheimes:x@host", {})
    for url in ("s3://me:pw@bucket/x", "sftp://me:p/w@host/x"):
        error = OSError(f"no bucket '{url.removeprefix('s3://').removeprefix('sftp://')}'")
        assert "***@" in told(error, url, {})
        assert "me:p" not in told(error, url, {})
    assert told(OSError("no bucket/folder@2"), "s3://bucket/folder@2", {}) == "OSError: no bucket/folder@2"


def test_manifests_survive_the_way(tmp_path: Path) -> None:
    made = Manifest("fetch", KEY, {"a": FileEntry("0" * 64, 1)}, {"b": [1, None, "한"]})
    assert parse_manifest(dump_manifest(made)) == made
    assert json.loads(dump_manifest(made))["key"] == KEY
    assert places.StoppedError.__mro__[1] is Exception, "libraries tidy up after no other"


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not about waiting waits long: the server shares a busy machine with us."""
    monkeypatch.setattr(reach_module, "_LONG_S", 1e6)  # nor says how far it is
    if request.node.originalname != "test_a_black_hole_costs_ten_seconds_once":
        monkeypatch.setattr(patience_module, "SILENT_S", float(_LIMIT_S))
        monkeypatch.setattr(patience_module, "_UNSURE_S", float(_LIMIT_S))


@pytest.fixture(autouse=True)
def no_leftover_threads() -> Iterator[None]:
    yield
    deadline = time.monotonic() + _LIMIT_S
    while any("writer" in each.name for each in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [each for each in threading.enumerate() if "writer" in each.name]
