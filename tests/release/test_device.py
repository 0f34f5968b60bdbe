"""`doit device` over a real sshd on this machine, with QNN's emulator as the device."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.qnn_release.measure import PART, RELEASE
from pipeline.release.archives.archive import Archive
from pipeline.release.records.record import RECORD
from pipeline.release.records.replay import replay
from tests.support import sshd, tiny_project
from tests.support.build_processes import Build
from tests.support.project import Project
from tests.support.releases import keys as new_keys
from tests.support.sshd import SshServer

pytestmark = pytest.mark.slow

RELEASED = "artifacts/releases/tiny-1.0.qnn.zip"
RECORDED = "artifacts/releases/tiny-1.0.device.qnn-record.zip"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with sshd.serve(tmp_path_factory.mktemp("sshd")) as served:
        yield served


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("here")
    project = tiny_project.create(root / "project", root / "store", targets=["sm8650"])
    config = project.root / tiny_project.CONFIG
    config.write_text(config.read_text("utf-8") + 'release: {version: "1.0"}\n', "utf-8")
    project.doit("package:tiny")
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    return built.copy(tmp_path / "project")


def command(server: SshServer, folder: Path, seconds: int = 1) -> list[str]:
    options = ["--python", sys.executable, "--ssh-config", str(server.config), "--folder", str(folder)]
    return ["device", *options, "--seconds", str(seconds), "--samples", "1", sshd.HOST, "build:tiny"]


def work_of(folder: Path) -> Path:
    """The folder of the one release that was sent."""
    (found,) = folder.iterdir()
    return found


def record_of(project: Project) -> dict[str, Any]:
    with Archive(project.root / RECORDED) as opened:
        found: dict[str, Any] = json.loads(opened.read(RECORD, 1 << 20))
    return found


def test_a_release_is_measured_and_recorded_over_there(project: Project, server: SshServer, tmp_path: Path) -> None:
    secret, public = new_keys(tmp_path)
    run = project.doit(*command(server, tmp_path / "there"), PIPELINE_SIGNING_KEY=secret)
    assert "device: Linux x86_64, emulator" in run.text
    assert "net, sequence 8, sm8650: median" in run.text
    raw = record_of(project)
    assert (raw["where"]["name"], raw["where"]["device"], raw["where"]["driver"]) == ("device", "emulator", None)
    assert raw["where"]["performance_mode"] == {"sm8650": "default"}
    first, second = raw["measured"]
    assert (first["axes"], second["axes"]) == ({"sequence": 8}, {"sequence": 16})
    assert first["runs"] > 0
    assert 0 < first["median_ms"] <= first["p90_ms"]
    told = [*replay(project.root / RECORDED, project.root / RELEASED, public)]
    assert all(line.endswith("equal") for line in told[:-1]), "what came back is what the contexts give here"
    page = (project.root / "artifacts/tiny/report.html").read_text("utf-8")
    assert "Measured on devices" in page
    assert "device, Linux x86_64, QNN's emulator" in page
    assert "they tell nothing of an NPU" in page
    assert "Measured on devices" not in report_in(project.root / RELEASED), "a release tells of no run"


def report_in(archive: Path) -> str:
    with Archive(archive) as opened:
        return opened.read("report.html", 1 << 22).decode()


def test_what_was_cut_off_while_it_copied_goes_on(project: Project, server: SshServer, tmp_path: Path) -> None:
    there = tmp_path / "there"
    project.doit(*command(server, there))
    work = work_of(there)
    data = (work / RELEASE).read_bytes()
    for part, left in ((data[: len(data) // 2], "are there"), (b"x" * 100, "are there")):
        (work / RELEASE).unlink()
        (work / f"{RELEASE}{PART}").write_bytes(part)
        run = project.doit(*command(server, there))
        assert left in run.text
        assert (work / RELEASE).read_bytes() == data, "a part of something else is not gone on with"


def test_what_was_killed_while_it_measured_goes_on(project: Project, server: SshServer, tmp_path: Path) -> None:
    there = tmp_path / "there"
    with Build(project, *command(server, there, 4), log=tmp_path / "log") as build:
        while not (there.is_dir() and any(there.glob("*/results/0000.json"))):
            assert build.doit.is_running(), (tmp_path / "log").read_text("utf-8")
            time.sleep(0.01)
        build.doit.kill()
    first = work_of(there) / "results/0000.json"
    assert not (first.parent / "0001.json").exists(), "it was killed half-way"
    end = time.monotonic() + 20
    while running_on(there):
        assert time.monotonic() < end, "nothing goes on over there for a caller that is gone"
        time.sleep(0.05)
    assert not (first.parent / "0001.json").exists()
    written = first.stat().st_mtime_ns
    run = project.doit(*command(server, there, 4))
    assert "copying" not in run.text
    assert first.stat().st_mtime_ns == written, "it is not measured again"
    assert len(record_of(project)["measured"]) == 2


def running_on(folder: Path) -> list[str]:
    """The processes that have a word about the folder on their command line."""
    found = (each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"]))
    return [" ".join(words) for words in found if any(str(folder) in word for word in words)]


def test_only_a_host_whose_key_is_known_is_spoken_to(project: Project, server: SshServer, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    shutil.copy(server.known_hosts, other)
    host, kind, key, *rest = other.read_text("utf-8").split()
    config = tmp_path / "config"
    config.write_text(server.config.read_text("utf-8").replace(str(server.known_hosts), str(other)), "utf-8")
    stranger = SshServer(config, other, server.authorized_keys)
    for text in ("", f"{host} {kind} {key[:-6]}AAAAAA {' '.join(rest)}\n"):
        other.write_text(text, "utf-8")
        run = project.doit(*command(stranger, tmp_path / "there"), check=False)
        assert run.status == 20, run.text
        assert "device does not do what it was asked" in run.text
        assert "compare the fingerprint" in run.text, run.text
        assert "Traceback" not in run.text
        assert not (tmp_path / "there").exists()


def test_a_key_that_is_not_taken(project: Project, server: SshServer, tmp_path: Path) -> None:
    kept = server.authorized_keys.read_text("utf-8")
    server.authorized_keys.write_text("", "utf-8")
    try:
        run = project.doit(*command(server, tmp_path / "there"), check=False)
    finally:
        server.authorized_keys.write_text(kept, "utf-8")
    assert run.status == 20
    assert "give the device your public key" in run.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--python", "/no/such/python"], "name the device's Python"),
        (["--python", "python; rm -rf x"], "is no Python"),
        (["--folder", "a b"], "is no folder"),
        (["--samples", "0"], "at least 1"),
        (["--performance-mode", "bust"], "did you mean 'burst'"),
    ],
)
def test_options_that_make_no_sense(
    project: Project, server: SshServer, tmp_path: Path, given: list[str], told: str
) -> None:
    words = command(server, tmp_path / "there")
    run = project.doit(*words[:-2], *given, *words[-2:], check=False)
    assert run.status in (10, 20)
    assert told in run.text


def test_words_that_name_no_device_or_model(project: Project, server: SshServer, tmp_path: Path) -> None:
    words = command(server, tmp_path / "there")
    for given, told in (
        (["-oProxyCommand=x", "build:tiny"], ""),
        ([sshd.HOST], "why: 'device' alone is named"),
        ([sshd.HOST, "build:tin"], "did you mean 'build:tiny'"),
        (["user:password@device", "build:tiny"], "is no host"),
    ):
        run = project.doit(*words[:-2], *given, check=False)
        assert run.status != 0
        assert told in run.text
    assert not (tmp_path / "there").exists()


def test_a_device_that_does_not_answer_is_told_before_anything_is_built(tmp_path: Path) -> None:
    sshd.find()
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", targets=["sm8650"])
    project.write(
        tiny_project.CONFIG, (project.root / tiny_project.CONFIG).read_text("utf-8") + 'release: {version: "1.0"}\n'
    )
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        config = tmp_path / "config"
        config.write_text(f"Host gone\n  HostName 127.0.0.1\n  Port {nobody.getsockname()[1]}\n", "utf-8")
        run = project.doit("device", "--ssh-config", str(config), "gone", "build:tiny", check=False)
    assert run.status == 20
    assert "error: gone can't be reached" in run.text
    assert "Connection refused" in run.text
    assert not run.built
