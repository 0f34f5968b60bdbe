"""Whole builds with a shared store, a folder and a real S3 server: what is restored, and what a failure costs."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.store.manifests import parse_manifest
from pipeline.store.shared.address import VARIABLE
from tests.support import tiny_project
from tests.support.build_processes import Build, leftovers, until
from tests.support.project import Project, Run
from tests.support.s3_server import SECRET, Deaf, Relay, S3Server, s3_fixture  # noqa: F401
from tests.support.small_disk import SmallDisk, is_available

pytestmark = pytest.mark.slow

STEPS = 13
_LONG_S = 300
_PROMPT_S = 20  # what is not prompt takes minutes


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny model, not built yet, that :func:`tiny_built` is a build of. For tests to copy."""
    folder = tmp_path_factory.mktemp("origin")
    return tiny_project.create(folder / "project", folder / "store", buckets=[8], targets=["sm8650"])


def checkout(origin: Project, root: Path, url: str, **environ: str) -> Project:
    """Another checkout of it with an empty store of its own."""
    shutil.copytree(origin.root, root / "project", ignore=shutil.ignore_patterns(".build", "artifacts"))
    return Project(root / "project", root / "store", {VARIABLE: url, **environ})


def filled(tiny_built: Project, root: Path, environ: dict[str, str]) -> Project:
    """A checkout that was built without a shared store, and has written all it has to one."""
    project = tiny_built.copy(root / "project", root / "store")
    project.environ |= environ
    assert "Nothing to do" in project.doit("build").text
    return project


@pytest.fixture(params=["folder", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The variables that name a shared store."""
    if request.param == "folder":
        return {VARIABLE: str(tmp_path / "shared")}
    server: S3Server = request.getfixturevalue("s3")
    return server.environ() | {VARIABLE: f"{server.bucket()}/store"}


def two(origin: Project, tmp_path: Path, environ: dict[str, str]) -> tuple[Project, Project]:
    first, second = (checkout(origin, tmp_path / name, "") for name in ("first", "second"))
    for each in (first, second):
        each.environ |= environ
    return first, second


def check_ended_well(run: Run, steps: int = STEPS) -> None:
    assert len(run.built | run.shared | run.restored) == steps, run.text
    assert "Traceback" not in run.text
    assert "never awaited" not in run.text


def check_whole(tier: Path, manifests: int = STEPS) -> None:
    """Every payload is what its name says, every manifest is sealed and all that it names is there."""
    objects = {path.name: path for path in (tier / "objects").glob("*/*")}
    for name, path in objects.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == name
    found = [parse_manifest(path.read_bytes()) for path in (tier / "manifests").glob("*/*.json")]
    assert len(found) == manifests
    assert all(manifest and {e.sha256 for e in manifest.files.values()} <= objects.keys() for manifest in found)


def test_a_second_checkout_restores_everything_and_ends_identical(
    origin: Project, shared: dict[str, str], tmp_path: Path
) -> None:
    first, second = two(origin, tmp_path, shared)
    built = first.doit("build")
    assert (len(built.built), len(built.shared)) == (STEPS, 0), built.text
    restored = second.doit("build")
    assert (len(restored.built), len(restored.shared)) == (0, STEPS), restored.text
    assert f"0 built, 0 restored from the store, {STEPS} from the shared store, 0 already current." in restored.text
    assert second.artifacts() == first.artifacts() != {}
    assert leftovers(first.store, second.store, first.root / ".build", second.root / ".build") == []
    again = second.doit("build")
    assert "Nothing to do" in again.text
    # A clean checkout on the first's store asks nobody.
    third = Project(tmp_path / "third", first.store, {**first.environ, VARIABLE: "s3://nowhere.invalid/x"})
    shutil.copytree(origin.root, third.root)
    shutil.copy(first.root / ".build" / "shared.json", tmp_path)
    assert len(third.doit("ingest").restored) == 2


def test_a_build_with_nothing_to_do_neither_imports_nor_asks(tiny_built: Project, tmp_path: Path, s3: S3Server) -> None:
    first = filled(tiny_built, tmp_path, s3.environ() | {VARIABLE: f"{s3.bucket()}/store"})
    with Deaf() as endpoint:
        command = [sys.executable, "-X", "importtime", "-m", "doit", "build"]
        environ = os.environ | first.environ | {"AWS_ENDPOINT_URL": endpoint, "PIPELINE_STORE": str(first.store)}
        done = subprocess.run(command, cwd=first.root, env=environ, capture_output=True, text=True, check=True)
    assert "Nothing to do" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "pipeline.store.shared.tier" in imported
    assert not {name for name in imported if name.split(".")[0] in ("fsspec", "s3fs", "botocore", "aiohttp", "asyncio")}


def test_a_server_that_dies_while_it_is_written_to(origin: Project, tiny_built: Project, tmp_path: Path) -> None:
    with S3Server(tmp_path / "server") as server:
        url = f"{server.bucket()}/store"
        first, second = two(origin, tmp_path, server.environ() | {VARIABLE: url})
        expected = tiny_built.artifacts()
        system = server.system()
        with Build(first, "build", log=tmp_path / "log") as build:
            assert until(lambda: len(system.find(f"{url}/manifests")) >= 3, build, _LONG_S)
            server.kill()
            ended = build.end(_LONG_S)
        assert ended.status == 0, ended.text
        assert ended.text.count("is left alone in this build") == 1, ended.text
        assert "Traceback" not in ended.text
        assert first.artifacts() == expected
        server.start()
        before = len(server.system().find(f"{url}/manifests"))
        assert before < STEPS
        again = first.doit("build")
        assert "Nothing to do" in again.text
        assert len(server.system().find(f"{url}/manifests")) == STEPS
        run = second.doit("build")
        assert len(run.shared) == STEPS, run.text
        assert second.artifacts() == expected


def test_a_server_that_dies_while_it_is_read(
    origin: Project, tiny_built: Project, tmp_path: Path, s3: S3Server
) -> None:
    environ = s3.environ() | {VARIABLE: f"{s3.bucket()}/store"}
    first = filled(tiny_built, tmp_path / "first", environ)
    second = checkout(origin, tmp_path / "second", "", **environ)
    asked: list[str] = []

    def dies(_: str, path: str) -> bool:
        asked.append(path)
        if sum("/manifests/" in each for each in asked) == 6:
            raise ConnectionError
        return False

    with Relay(s3, dies) as relay:
        run = second.doit("build", AWS_ENDPOINT_URL=relay.endpoint)
        assert relay.is_gone.is_set()
    assert run.text.count("is left alone in this build") == 1, run.text
    assert 1 <= len(run.shared) <= 5
    assert len(run.built) == STEPS - len(run.shared)
    assert second.artifacts() == first.artifacts()


def test_a_black_hole_is_waited_for_once(origin: Project, tmp_path: Path, s3: S3Server) -> None:
    first, second = two(origin, tmp_path, {VARIABLE: ""})
    began = time.monotonic()
    first.doit("build")
    without_s = time.monotonic() - began
    with Deaf() as endpoint:
        second.environ |= s3.environ() | {"AWS_ENDPOINT_URL": endpoint, VARIABLE: "s3://bucket/store"}
        began = time.monotonic()
        run = second.doit("build")
        with_s = time.monotonic() - began
    check_ended_well(run)
    assert run.text.count("is left alone in this build: it does not answer") == 1
    # The ten, imports, and the noise of two builds; were each question waited for, it would be minutes.
    assert with_s < 3 * without_s + 60, (with_s, without_s)
    assert second.artifacts() == first.artifacts()


def test_ctrl_c_while_it_is_written_ends_at_once_and_loses_nothing(
    origin: Project, tmp_path: Path, s3: S3Server
) -> None:
    url = f"{s3.bucket()}/store"
    first, second = two(origin, tmp_path, s3.environ() | {VARIABLE: url})
    held = threading.Event()
    held.set()
    # What is sent waits, and small questions are answered: the build waits at its end, and says so.
    with Relay(s3, lambda method, _: method == "PUT" and held.is_set()) as relay:
        with Build(first, "build", log=tmp_path / "log", AWS_ENDPOINT_URL=relay.endpoint) as build:
            assert until(lambda: "outputs to go" in build.text(), build, _LONG_S), build.text()
            assert f"[{STEPS}/{STEPS}]" in build.text()
            build.doit.send_signal(signal.SIGINT)
            ended = build.end(_PROMPT_S)
            assert build.orphans(_PROMPT_S) == []
        held.clear()
    assert ended.status == 130, ended.text
    assert leftovers(first.store, first.root / ".build") == []
    assert first.doit("build").built == frozenset()
    assert len(s3.system().find(f"{url}/manifests")) == STEPS
    assert len(second.doit("build").shared) == STEPS


def test_a_build_that_is_killed_while_it_writes_leaves_nothing_that_is_wrong(origin: Project, tmp_path: Path) -> None:
    tier = tmp_path / "shared"
    first, second = two(origin, tmp_path, {VARIABLE: str(tier)})
    with Build(first, "build", log=tmp_path / "log") as build:
        assert until(lambda: len([*tier.glob("manifests/*/*")]) >= 5, build, _LONG_S)
        build.doit.kill()
        build.destroy()
    first.doit("build")
    check_whole(tier)
    assert len(second.doit("build").shared) == STEPS
    assert second.artifacts() == first.artifacts()


def test_two_builds_that_write_at_once(origin: Project, shared: dict[str, str], tmp_path: Path) -> None:
    first, second = two(origin, tmp_path, shared)
    runs: dict[str, Run] = {}
    threads = [
        threading.Thread(target=lambda each=each: runs.update({each.root.parent.name: each.doit("build")}))
        for each in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs.values():
        check_ended_well(run)
        assert "damaged" not in run.text
        assert "left alone" not in run.text
    assert first.artifacts() == second.artifacts()
    third = checkout(origin, tmp_path / "third", "", **shared)
    assert len(third.doit("build").shared) == STEPS
    if shared[VARIABLE][0] == "/":
        check_whole(Path(shared[VARIABLE]))


def test_what_was_built_before_there_was_a_shared_store_is_written_by_a_later_build(
    origin: Project, tiny_built: Project, shared: dict[str, str], tmp_path: Path
) -> None:
    first, second = tiny_built.copy(tmp_path / "first", tmp_path / "store"), checkout(origin, tmp_path / "second", "")
    assert not (first.root / ".build" / "shared.json").exists()
    first.environ |= shared
    assert "Nothing to do" in first.doit("build").text
    second.environ |= shared
    assert len(second.doit("build").shared) == STEPS
    (first.root / ".build" / "shared.json").write_bytes(b"damaged")
    assert "damaged, and not used" in first.doit("build").text


def test_what_is_damaged_there_is_made_again_and_healed(
    origin: Project, tiny_built: Project, shared: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first, second = filled(tiny_built, tmp_path / "first", shared), checkout(origin, tmp_path / "second", "", **shared)
    if shared[VARIABLE][0] == "/":
        for path in Path(shared[VARIABLE]).glob("objects/*/*"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        system = request.getfixturevalue("s3").system()
        for name in system.find(f"{shared[VARIABLE]}/objects"):
            system.pipe_file(name, system.cat_file(name)[:-1] + b"?")
    run = second.doit("build")
    assert {"fetch:tiny", "quantize:tiny/net", "context:tiny/net/8/sm8650"} <= run.built
    assert "damaged in the shared store: model.onnx of fetch:tiny" in run.text
    assert second.artifacts() == first.artifacts()
    third = checkout(origin, tmp_path / "third", "", **shared)
    assert len(third.doit("build").shared) == STEPS


def test_what_is_damaged_there_and_only_others_may_make_comes_back_from_them(
    origin: Project, tiny_built: Project, tmp_path: Path
) -> None:
    environ = {VARIABLE: str(tmp_path / "shared")}
    first = filled(tiny_built, tmp_path / "first", environ)
    second = checkout(origin, tmp_path / "second", "", **environ)
    second.write("configs/project.yaml", "stages: {quantize: {hosts: [quantizer]}}\n")
    for path in (tmp_path / "shared").glob("objects/*/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    run = second.doit("build", check=False)
    assert run.status == 19, run.text
    assert "what the shared store had of it is damaged" in " ".join(run.text.split())
    assert "Nothing to do" in first.doit("build").text
    (first.root / ".build" / "shared.json").unlink()
    assert "Nothing to do" in first.doit("build").text
    run = second.doit("build")
    assert "quantize:tiny/net" in run.shared
    assert second.artifacts() == first.artifacts()


@pytest.mark.skipif(not is_available(), reason="needs a mount namespace")
@pytest.mark.parametrize(("size", "why"), [("60k", "No space left on device"), ("100m", "Read-only file system")])
def test_a_disk_that_takes_no_more_costs_a_warning(size: str, why: str, origin: Project, tmp_path: Path) -> None:
    first, second = two(origin, tmp_path, {VARIABLE: str(tmp_path / "disk" / "shared")})
    disk = SmallDisk(tmp_path / "disk", size)
    if "Read-only" in why:
        disk.remount("ro")
    disk.doit(first, "build")
    disk.remount("rw,size=100m")
    disk.doit(first, "build")
    disk.doit(second, "build")
    refused, again, restored = disk.run()
    assert refused.status == again.status == restored.status == 0, refused.text + again.text + restored.text
    assert refused.text.count("nothing more is written to the shared store") == 1, refused.text
    assert why in refused.text
    assert f"{STEPS} from the shared store" in restored.text


def test_a_mistake_is_an_error_with_its_place(origin: Project, tmp_path: Path) -> None:
    first = checkout(origin, tmp_path / "first", "")
    del first.environ[VARIABLE]
    first.write("configs/project.yaml", "store: {shared: 's33://bucket/x'}\n")
    run = first.doit("build", check=False)
    assert run.status == 10, run.text
    assert "this kind of URL is not known: s33://bucket/x" in run.text
    assert "configs/project.yaml:1:" in run.text
    doctor = first.doit("doctor", check=False)
    assert "this kind of URL is not known" in doctor.text
    first.doit("build", PIPELINE_SHARED_STORE="")
    assert "Nothing to do" in first.doit("build", PIPELINE_SHARED_STORE="").text
    assert first.doit("build", check=False).status == 10, "also of a build with nothing to do but to write there"
    first.write("configs/project.yaml", f"store: {{shared: '{tmp_path / 'shared'}'}}\n")
    first.doit("build")
    check_whole(tmp_path / "shared")


def test_secrets_are_nowhere(origin: Project, tmp_path: Path, s3: S3Server) -> None:
    url = s3.bucket().replace("s3://", "s3://someuser:passw0rdNobodyMaySee@")
    good = s3.environ() | {VARIABLE: f"{s3.bucket()}/store", "PIPELINE_TRACEBACK": "1"}
    wrong = good | {"AWS_SECRET_ACCESS_KEY": SECRET + "x"}
    texts = []
    for number, environ in enumerate((good, wrong, good | {VARIABLE: url})):
        project = checkout(origin, tmp_path / f"checkout{number}", "", **environ)
        with Build(project, "build", log=tmp_path / f"log{number}") as build:
            doit = Path(f"/proc/{build.doit.pid}/cmdline").read_bytes()
            held: set[bytes] = set()

            def look(build: Build = build, doit: bytes = doit, held: set[bytes] = held) -> bool:
                for process in build.alive():
                    try:
                        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                        given = Path(f"/proc/{process.pid}/environ").read_bytes()
                    except OSError:
                        continue
                    if command != doit and (SECRET.encode() in given or b"NobodyMaySee" in given):
                        held.add(command)
                return build.is_over()

            until(look, build, _LONG_S)
            texts.append(build.end(_LONG_S).text)
        assert held == set()
        texts.append(project.doit("doctor", check=False).text)
    assert "signature" in texts[2]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert SECRET[:16].encode() not in data, path
            assert b"NobodyMaySee" not in data, path
    assert not [text for text in texts if "NobodyMaySee" in text or "TheSecretKey" in text]
    found = s3.system()
    for name in found.find(good[VARIABLE]):
        assert b"NobodyMaySee" not in found.cat_file(name)
