"""Publishing releases: to folders, to what fsspec writes to, and to repos of the hub by its real client."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.errors import ConfigError, StoreError, VerificationError
from pipeline.release.places import fsspec_destination
from pipeline.release.places.destinations import FolderDestination
from pipeline.release.places.hub_destination import HubDestination
from pipeline.release.publish import publish
from pipeline.store.shared import call_timeouts
from pipeline.store.urls import redacted
from tests.support.hub_faults import Fault
from tests.support.hub_repos import Repo
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.hub_xet import XetStorage
from tests.support.project import ROOT
from tests.support.releases import payload, release
from tests.support.s3_server import Deaf, S3Server, s3_fixture  # noqa: F401

TOKEN = "hf_aTokenThatNobodyMaySee"
NAME, INDEX = "bert-1.0.qnn.zip", "bert-1.0.qnn.json"
_QUICK = "import sys; from pipeline.inputs.hub import failures; failures.WAITS_S = (0.01, 0.02); "
_PUBLISH = _QUICK + (
    "from pipeline.release.publish import main\n"
    "for at in range(1, len(sys.argv), 2): print('status', main(sys.argv[at : at + 2]), flush=True)"
)


_KILLED = """
import os, signal, sys
from pipeline.release import publish
from pipeline.release.places import destinations
name, when = sys.argv[1].split()
act = getattr(destinations, name)
def killed(*args):
    made = act(*args) if when == "after" else None
    os.kill(os.getpid(), signal.SIGKILL)
    return made
setattr(destinations, name, killed)
sys.exit(publish.main(sys.argv[2:]))
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return release(tmp_path / "made" / NAME)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec_destination, "WAITS_S", (0.0, 0.0))


def other(tmp_path: Path) -> Path:
    """Another release under the same name."""
    return release(tmp_path / "other" / NAME, payload(b"other weights"))


def check_index(index: bytes, archive: bytes) -> None:
    raw = json.loads(index)
    assert raw["archive"] == NAME
    assert raw["sha256"] == hashlib.sha256(archive).hexdigest()
    assert raw["bytes"] == len(archive)
    assert [target["name"] for target in raw["targets"]] == ["sm8650"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_to_a_folder(archive: Path, tmp_path: Path, scheme: str) -> None:
    folder = tmp_path / "releases"
    assert publish(archive, f"{scheme}{folder}") == f"{NAME} in {scheme}{folder}: published, not signed"
    assert {path.name for path in folder.iterdir()} == {NAME, INDEX}
    assert (folder / NAME).read_bytes() == archive.read_bytes()
    check_index((folder / INDEX).read_bytes(), archive.read_bytes())
    assert publish(archive, str(folder)).endswith("was there already")
    with pytest.raises(ConfigError, match="another release was published under this name") as error:
        publish(other(tmp_path), str(folder))
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in str(error.value)
    assert (folder / NAME).read_bytes() == archive.read_bytes()


def test_an_archive_without_its_index_is_what_an_end_in_the_middle_leaves_and_is_replaced(
    archive: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / NAME).write_bytes(b"half")
    publish(archive, str(tmp_path / "out"))
    assert (tmp_path / "out" / NAME).read_bytes() == archive.read_bytes()


def damages(data: bytes) -> dict[str, bytes | None]:
    """What may have become of an archive, by what is said of it."""
    cut = f"it has {len(data) - 1} bytes, not {len(data)}"
    return {"it is missing": None, cut: data[:-1], "its SHA-256 is another one": data[:-1] + bytes([data[-1] ^ 1])}


def test_what_is_not_there_any_more_as_it_was_published_is_sent_again(
    archive: Path, tmp_path: Path, flaky: type[Flaky]
) -> None:
    folder, system = tmp_path / "out", flaky()
    for url in (str(folder), "flaky://bucket/releases"):
        publish(archive, url)
        for fault, data in damages(archive.read_bytes()).items():
            if url == str(folder):
                (folder / NAME).unlink() if data is None else (folder / NAME).write_bytes(data)
            elif data is None:
                system.rm_file(f"/bucket/releases/{NAME}")
            else:
                system.pipe_file(f"/bucket/releases/{NAME}", data)
            assert f"{NAME} in {url}: was there, but {fault}: sent again" in publish(archive, url)
            assert publish(archive, url).endswith("was there already")
    assert (folder / NAME).read_bytes() == archive.read_bytes() == system.cat_file(f"/bucket/releases/{NAME}")


def test_what_is_not_as_it_was_made_is_not_published(archive: Path, tmp_path: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[100] ^= 1
    archive.write_bytes(data)
    with pytest.raises(VerificationError):
        publish(archive, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_can_not_be_is_said(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder to publish to"):
        publish(archive, str(tmp_path / "file" / "below"))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_of_a_mistyped_path_no_folder_is_made(archive: Path, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "releases").mkdir()
    folder = tmp_path / "relaeses" / "of-today"
    with pytest.raises(ConfigError, match=r"relaeses does not exist; did you mean 'releases'\?") as error:
        publish(archive, f"{scheme}{folder}")
    assert f"mkdir -p {tmp_path / 'relaeses'}" in error.value.remedy
    assert not (tmp_path / "relaeses").exists()
    publish(archive, f"{scheme}{tmp_path / 'releases' / 'of-today'}")
    assert {path.name for path in (tmp_path / "releases" / "of-today").iterdir()} == {NAME, INDEX}


def test_who_comes_second_changes_nothing(archive: Path, tmp_path: Path) -> None:
    folder = FolderDestination(tmp_path / "out")
    assert folder.read(INDEX) is None
    publish(archive, str(folder.folder))
    assert folder.send(other(tmp_path), INDEX, b"{}", None) is None
    assert (folder.folder / NAME).read_bytes() == archive.read_bytes()
    check_index((folder.folder / INDEX).read_bytes(), archive.read_bytes())


@pytest.mark.slow
def test_two_that_publish_another_archive_under_one_name_at_once(tmp_path: Path) -> None:
    archives = [release(tmp_path / side / NAME, payload(side.encode() * 1_000_000)) for side in ("one", "two")]
    for attempt in range(5):
        out = tmp_path / f"out{attempt}"
        command = [sys.executable, "-m", "pipeline.release.publish"]
        running = [subprocess.Popen([*command, archive, out], cwd=ROOT, stderr=subprocess.PIPE) for archive in archives]
        told = [process.communicate()[1] for process in running]
        assert sorted(process.returncode for process in running) == [0, 10], told
        assert b"another release was published" in b"".join(told)
        assert {path.name for path in out.iterdir()} == {NAME, INDEX}
        check_index((out / INDEX).read_bytes(), (out / NAME).read_bytes())


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ("held before", set()),
        ("copy_hashed before", {f".{NAME}.lock"}),
        ("copy_hashed after", {f".{NAME}.lock", f".{NAME}.tmp"}),
        ("write_atomically before", {f".{NAME}.lock", NAME}),
        ("write_atomically after", {f".{NAME}.lock", NAME, INDEX}),
    ],
)
def test_killed_while_publishing_the_index_is_last_and_the_next_time_tidies(
    archive: Path, tmp_path: Path, moment: str, left: set[str]
) -> None:
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", _KILLED, moment, archive, out], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert {path.name for path in out.iterdir()} == left
    if INDEX in left:
        check_index((out / INDEX).read_bytes(), (out / NAME).read_bytes())
    publish(archive, str(out))
    assert {path.name for path in out.iterdir()} - {f".{NAME}.lock"} == {NAME, INDEX}
    check_index((out / INDEX).read_bytes(), (out / NAME).read_bytes())


class Flaky(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """A file system in memory that refuses what it is told to, and notes in which order files came."""

    protocol = "flaky"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012  # as the class it is of has it
    pseudo_dirs = [""]  # noqa: RUF012
    failures: list[Exception] = []  # noqa: RUF012
    written: list[str] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("flaky://", "memory://")))

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self._may(rpath)
        super().put_file(lpath, rpath, *args, **kwargs)

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        self._may(path)
        super().pipe_file(path, value, *args, **kwargs)

    def _may(self, path: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(path.rpartition("/")[2])


@pytest.fixture
def flaky() -> type[Flaky]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    for kept in (Flaky.store, Flaky.failures, Flaky.written):
        kept.clear()
    return Flaky


def test_to_what_fsspec_writes_to_the_archive_first_and_its_index_last(
    archive: Path, tmp_path: Path, flaky: type[Flaky]
) -> None:
    assert publish(archive, "flaky://bucket/releases").endswith("published, not signed")
    assert flaky.written == [NAME, INDEX]
    system = flaky()
    assert system.cat_file(f"/bucket/releases/{NAME}") == archive.read_bytes()
    check_index(system.cat_file(f"/bucket/releases/{INDEX}"), archive.read_bytes())
    assert publish(archive, "flaky://bucket/releases").endswith("was there already")
    assert flaky.written == [NAME, INDEX]
    with pytest.raises(ConfigError, match="another release"):
        publish(other(tmp_path), "flaky://bucket/releases")


def test_failures_that_pass_are_tried_again_and_others_are_not(
    archive: Path, flaky: type[Flaky], capsys: pytest.CaptureFixture[str]
) -> None:
    flaky.failures += [ConnectionResetError("gone"), RuntimeError("a library's own")]
    publish(archive, "flaky://u:secret@b")
    told = capsys.readouterr().out
    assert "try 2 of 3" in told
    assert "try 3 of 3" in told

    flaky.store.clear()
    flaky.failures[:] = [OSError("busy at flaky://u:secret@b")] * 3
    with pytest.raises(StoreError, match=rf"{NAME} can't be published") as error:
        publish(archive, "flaky://u:secret@b")
    assert "secret" not in str(error.value) + capsys.readouterr().out
    assert INDEX not in {name.rpartition("/")[2] for name in flaky.store}

    class ParamValidationError(Exception): ...  # as the client of S3 has it

    for final in (PermissionError("no"), ValueError("a mistake"), ParamValidationError("Invalid bucket name")):
        flaky.failures[:] = [final, final]
        with pytest.raises(StoreError, match=str(final)):
            publish(archive, "flaky://b")
        assert len(flaky.failures) == 1, "it is not tried again"


def test_a_library_that_takes_the_url_apart_tells_no_password(
    archive: Path, flaky: type[Flaky], capsys: pytest.CaptureFixture[str]
) -> None:
    flaky.failures[:] = [OSError('no such host: "u:pw@b"')] * 3
    with pytest.raises(StoreError, match="no such host") as error:
        publish(archive, "flaky://u:pw@b")
    assert "u:pw" not in str(error.value) + repr(error.value) + capsys.readouterr().out
    for url in ("s3://user:passwordX1@bucket/y", "hf://user:passwordX1@owner"):
        with pytest.raises(
            ConfigError, match=r"names a bucket and no user: s3://bucket/y|no repo of the hub"
        ) as mistake:
            publish(archive, url)
        assert "passwordX1" not in str(mistake.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "not said where to publish"),
        ("nothing://x", "kind of URL is not known"),
        ("memory://there", "gone when this process ends"),
        ("s3:bucket/x", "neither a folder nor a URL"),
        ("file://host/x", "three slashes, or names a host"),
        ("hf://name-alone", "no repo of the hub"),
        ("hf://a/b/../c", "no repo of the hub"),
        ("hf://a/b c", "no repo of the hub"),
    ],
)
def test_a_destination_that_is_none(archive: Path, url: str, why: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=why):
        publish(archive, url)


def test_addresses_of_repos() -> None:
    assert HubDestination.of("a/b") == HubDestination("a/b", "main", "")
    assert HubDestination.of("a/b@next/x/y/") == HubDestination("a/b", "next", "x/y")
    assert HubDestination.of("a/b/x") == HubDestination("a/b", "main", "x")
    assert redacted("s3://me:pass@host/x@y") == "s3://host/x@y"


@pytest.fixture
def repo(hub: HubServer) -> Repo:
    hub.tokens.add(TOKEN)
    made = hub.add("our/releases", {"README.md": b"ours"})
    made.writers.add(TOKEN)
    return made


def send(hub: HubServer, home: Path, *what: tuple[Path, str], **environ: str) -> list[tuple[int, str]]:
    """Publish in a process of its own, as a hub client reads its environment once.

    The exit status of each, and what was printed about it.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {**inherited, **hub.environ(home), "HF_TOKEN": TOKEN, **environ}
    done = subprocess.run(
        [sys.executable, "-c", _PUBLISH, *(str(each) for pair in what for each in pair)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert TOKEN not in done.stdout
    assert done.returncode == 0, done.stdout
    texts = re.split(r"status (\d+)\n", done.stdout)
    return [(int(status), told) for told, status in zip(texts[:-1:2], texts[1::2], strict=True)]


def files(repo: Repo, branch: str = "main") -> dict[str, bytes]:
    found = repo.commits[repo.branches[branch]]
    return {name: blob.open().read() for name, blob in found.items()}


@pytest.mark.slow
def test_to_the_hub_in_one_commit(hub: HubServer, repo: Repo, archive: Path, tmp_path: Path) -> None:
    before, url = len(repo.commits), "hf://our/releases/bert"
    first, again, another = send(hub, tmp_path, (archive, url), (archive, url), (other(tmp_path), url))
    assert first[0] == 0, first[1]
    assert f"published, not signed, commit {repo.branches['main']}" in first[1]
    assert again[1].endswith("was there already\n")
    assert (another[0], "another release was published" in another[1]) == (10, True)
    assert len(repo.commits) == before + 1, "readers see both files or none"
    there = files(repo)
    assert there.keys() == {"README.md", f"bert/{NAME}", f"bert/{INDEX}"}
    assert there[f"bert/{NAME}"] == archive.read_bytes()
    check_index(there[f"bert/{INDEX}"], archive.read_bytes())


@pytest.mark.slow
def test_to_a_place_that_does_not_answer(archive: Path, tmp_path: Path, s3: S3Server) -> None:
    with Deaf() as endpoint:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.release.publish", archive, "s3://bucket/x"],
            cwd=ROOT,
            env=os.environ | s3.environ() | {"AWS_ENDPOINT_URL": endpoint},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == StoreError.exit_code, done.stderr
    assert "it does not answer: nothing was heard for 8 s" in done.stderr
    assert time.monotonic() - began < 120, "the client gives up after minutes"


@pytest.mark.slow
def test_to_s3(archive: Path, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(call_timeouts, "SILENT_S", 120.0)  # the server shares a busy machine with us
    fsspec.filesystem("s3").clear_instance_cache()
    url = f"{s3.bucket()}/releases"
    assert publish(archive, url).endswith("published, not signed")
    assert publish(archive, url).endswith("was there already")
    s3.system().rm_file(f"{url}/{NAME}")
    assert "was there, but it is missing: sent again" in publish(archive, url)
    assert s3.system().cat_file(f"{url}/{NAME}") == archive.read_bytes()
    with pytest.raises(ConfigError, match="another release"):
        publish(other(tmp_path), url)


@pytest.mark.slow
def test_what_a_hub_has_not_any_more_is_sent_again(hub: HubServer, repo: Repo, archive: Path, tmp_path: Path) -> None:
    what = (archive, "hf://our/releases")
    send(hub, tmp_path, what)
    for fault, data in damages(archive.read_bytes()).items():
        kept = {name: content for name, content in files(repo).items() if name != NAME}
        repo.commit(kept if data is None else {**kept, NAME: data})
        again, then = send(hub, tmp_path, what, what)
        assert f"was there, but {fault}: sent again, commit" in again[1], again
        assert then[1].endswith("was there already\n"), then
        assert files(repo)[NAME] == archive.read_bytes()


@pytest.mark.slow
def test_to_a_hub_that_has_xet(hub: HubServer, repo: Repo, tmp_path: Path) -> None:
    hub.xet = XetStorage()
    archive = release(tmp_path / "made" / NAME, payload(os.urandom(300_000) + b"weights" * 60_000))
    ((status, told),) = send(hub, tmp_path, (archive, "hf://our/releases"))
    assert status == 0, told
    assert files(repo)[NAME] == archive.read_bytes()
    check_index(files(repo)[INDEX], archive.read_bytes())
    assert hub.xet.shards == 1
    assert not hub.uploads.received, "nothing came by LFS"

    hub.xet = XetStorage()
    ((status, told),) = send(hub, tmp_path, (archive, "hf://our/releases/by-lfs"), HF_HUB_DISABLE_XET="1")
    assert status == 0, told
    assert files(repo)[f"by-lfs/{NAME}"] == archive.read_bytes()
    assert hub.xet.shards == 0


@pytest.mark.slow
def test_what_a_hub_with_xet_refuses_is_said_without_its_tokens(
    hub: HubServer, repo: Repo, archive: Path, tmp_path: Path
) -> None:
    hub.xet = XetStorage()
    hub.faults.append(Fault("xorbs", method="POST", status=403, message="not with {token}", times=None))
    what = (archive, "hf://our/releases")
    (refused,) = send(hub, tmp_path, what)
    repo.writers.clear()
    (not_a_writer,) = send(hub, tmp_path, what)
    assert (refused[0], not_a_writer[0]) == (11, 11)
    assert hub.xet.token not in refused[1]
    assert f"the hub does not take {NAME}" in refused[1]
    assert "rights to write to our/releases" in not_a_writer[1]
    assert files(repo).keys() == {"README.md"}


@pytest.mark.slow
def test_to_another_branch(hub: HubServer, repo: Repo, archive: Path, tmp_path: Path) -> None:
    repo.branches["next"] = repo.branches["main"]
    done, no_branch, no_repo = send(
        hub, tmp_path, *((archive, f"hf://our/{name}") for name in ("releases@next", "releases@none", "none"))
    )
    assert done[0] == 0, done[1]
    assert {NAME, INDEX} < files(repo, "next").keys()
    assert files(repo).keys() == {"README.md"}
    assert (no_branch[0], "no revision 'none'" in no_branch[1]) == (11, True)
    assert (no_repo[0], "no repo our/none" in no_repo[1]) == (11, True)


@pytest.mark.slow
def test_what_the_hub_fails_at_for_a_moment_is_tried_again(
    hub: HubServer, repo: Repo, archive: Path, tmp_path: Path
) -> None:
    for name in ("preupload", "commit"):
        hub.faults.append(Fault(name, method="POST", status=503, message="busy"))
    ((status, told),) = send(hub, tmp_path, (archive, "hf://our/releases"))
    assert status == 0, told
    assert files(repo)[NAME] == archive.read_bytes()
    assert len(hub.uploads.received) == 1, "what was sent is not sent again"


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_without_the_token(
    hub: HubServer, repo: Repo, archive: Path, tmp_path: Path
) -> None:
    hub.faults.append(Fault("commit", method="POST", status=403, message="not with {token}"))
    repo.writers.clear()
    what = (archive, "hf://our/releases")
    (not_a_writer,) = send(hub, tmp_path, what)
    repo.writers.add(TOKEN)
    (echoed,) = send(hub, tmp_path, what)
    (nobody,) = send(hub, tmp_path, what, HF_TOKEN="")
    (unreachable,) = send(hub, tmp_path, what, HF_ENDPOINT="http://127.0.0.1:9")
    assert {not_a_writer[0], echoed[0], nobody[0], unreachable[0]} == {11}
    assert f"the hub does not take {NAME}" in not_a_writer[1]
    assert "rights to write to our/releases" in not_a_writer[1]
    assert "not with ***" in echoed[1]
    assert "set HF_TOKEN to a token that may write to it" in nobody[1]
    assert "can't be reached" in unreachable[1]
    assert files(repo).keys() == {"README.md"}


@pytest.mark.slow
def test_somebody_else_may_commit_meanwhile(
    hub: HubServer, repo: Repo, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = hub.uploads.answer
    moved: list[str] = []

    def after_another(to: Repo, kind: str, *rest: Any) -> Any:
        if kind == "commit" and not moved:
            moved.append(repo.commit({"README.md": b"changed"}))
        return answer(to, kind, *rest)

    monkeypatch.setattr(hub.uploads, "answer", after_another)
    ((status, told),) = send(hub, tmp_path, (archive, "hf://our/releases"))
    assert status == 0, told
    assert files(repo)["README.md"] == b"changed", "what the other committed is still there"
    assert files(repo)[NAME] == archive.read_bytes()
