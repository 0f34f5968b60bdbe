"""Hubs, mirrors, proxies and networks that misbehave: each gives one clear error, in bounded time and memory."""

from __future__ import annotations

import re
import shutil
import socket
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from tests.support.fetching import QUICK, TRIES, Machine
from tests.support.hub_faults import Fault
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.project import Project

REPO = "owner/name"
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB, kept in LFS
BIG = "model.onnx_data"
SMALL = "tokenizer.json"
FILES = {BIG: WEIGHTS, SMALL: b'{"version": "1.0"}'}
IMPATIENT = QUICK + (
    "from pipeline.inputs.hub import answers; from pipeline.inputs.hub import files; "
    "answers.LIMIT_S = {limit}; files._LEAST_S = 0.3; files._LEAST_BYTES = 10_000; "
)
LOGIN_PAGE = b"<!doctype html><title>Log in to the Wi-Fi</title>"


@pytest.fixture
def machine(tmp_path: Path, hub: HubServer) -> Machine:
    hub.add(REPO, FILES)
    return Machine(tmp_path, hub)


def commit(hub: HubServer) -> str:
    return hub.repos[REPO].branches["main"]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_loop_of_redirects_ends(hub: HubServer, machine: Machine, method: str) -> None:
    hub.faults.append(Fault(SMALL, method=method, redirect="{url}", times=None))
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [SMALL])
    assert "TooManyRedirects" in raised.value.why
    assert len(hub.requests) < 60


@pytest.mark.parametrize("target", ["file:///etc/passwd", "https://[", "//"])
def test_a_redirect_to_nowhere_is_refused(hub: HubServer, machine: Machine, target: str) -> None:
    hub.faults.append(Fault(BIG, redirect=target, times=None))
    with pytest.raises(SourceError):
        machine.fetch(REPO, commit(hub), [BIG])
    assert machine.blobs() == [] or machine.blobs()[0].stat().st_size == 0


def test_a_redirect_does_not_take_the_token_along(hub: HubServer, machine: Machine) -> None:
    hub.tokens = {"hf_secret"}
    with HubServer() as stranger:
        stranger.add(REPO, {SMALL: b"x" * len(FILES[SMALL])}, commit=commit(hub))
        to = f"{stranger.url}/{REPO}/resolve/{commit(hub)}/{SMALL}"
        hub.faults.append(Fault(SMALL, redirect=to, times=None))
        with pytest.raises(SourceError, match="is not that file"):
            machine.fetch(REPO, commit(hub), [SMALL], HF_TOKEN="hf_secret")
        assert stranger.asked(SMALL)
        assert {request.token for request in stranger.requests} == {""}
    assert any(request.token == "hf_secret" for request in hub.requests)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_login_page_is_no_file(hub: HubServer, machine: Machine, method: str) -> None:
    hub.faults.append(Fault(SMALL, method=method, page=LOGIN_PAGE, times=None))
    with pytest.raises(SourceError) as raised:
        machine.fetch(REPO, commit(hub), [SMALL])
    if method == "HEAD":
        assert raised.value.what == f"what answers there is no Hugging Face hub: {SMALL} of {REPO} can't be had"
    else:
        assert "is not that file" in raised.value.what or "is not what commit" in raised.value.what
    assert not [blob for blob in machine.blobs() if not blob.name.endswith(".incomplete")]


def test_a_page_that_is_shorter_than_the_file_is_asked_for_again_and_refused(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, page=LOGIN_PAGE, times=None))
    with pytest.raises(SourceError, match="can't be reached"):
        machine.fetch(REPO, commit(hub), [BIG])
    assert len(hub.asked(BIG)) == TRIES


def test_a_file_that_trickles_in_is_given_up(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, drip=True, pause_s=0.02, times=None))
    since = time.monotonic()
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [BIG], prelude=IMPATIENT.format(limit=20))
    assert time.monotonic() - since < 50
    assert "ReadTimeout" in raised.value.why
    assert "bytes in 0.3 s" in raised.value.why


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_headers_that_never_end_are_given_up(hub: HubServer, machine: Machine, method: str) -> None:
    hub.faults.append(Fault(SMALL, method=method, endless_head=True, pause_s=0.05, times=None))
    since = time.monotonic()
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], prelude=IMPATIENT.format(limit=0.5))
    assert time.monotonic() - since < 30
    assert raised.value.why == "ReadTimeout: no answer within 0.5 s"


def test_a_file_that_unpacks_to_more_than_was_announced_is_refused(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, bomb_bytes=200 << 20, times=None))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
    with pytest.raises(SourceError, match="is not what commit") as raised:
        machine.fetch(REPO, commit(hub), [BIG], prelude=limit)
    assert raised.value.why == f"the hub announced {len(WEIGHTS)} bytes and sends more"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault("", bomb_bytes=200 << 20, times=None), "ValueError: its answer has more than 16 MB"),
        (Fault("", page=LOGIN_PAGE, times=None), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (Fault("", page=b'["a list"]', times=None), "ValueError: its answer is no JSON object"),
        (Fault("", page=b"[" * 100_000, times=None), "ValueError: its answer is nested too deeply"),
    ],
)
def test_a_branch_is_not_looked_up_from_nonsense(
    hub: HubServer, machine: Machine, tmp_path: Path, fault: Fault, why: str
) -> None:
    hub.faults.append(fault)
    pinned = machine.pin(REPO, "main", tmp_path / "pins.yaml")
    assert f"what answers there is no Hugging Face hub: {REPO} can't be had" in pinned.stderr
    assert why in pinned.stderr
    assert "Traceback" not in pinned.stderr
    assert not (tmp_path / "pins.yaml").exists()


@pytest.mark.parametrize("sha", [b'{"sha": "../../etc"}', b"{}"])
def test_a_commit_that_is_none_is_never_pinned(hub: HubServer, machine: Machine, tmp_path: Path, sha: bytes) -> None:
    hub.faults.append(Fault("", page=sha, times=None))
    error = machine.pin(REPO, "main", tmp_path / "pins.yaml").stderr
    assert f"the hub does not say which commit 'main' of {REPO} is at" in error
    assert not (tmp_path / "pins.yaml").exists()


def test_a_date_to_come_back_at_is_kept_to_within_a_bound(hub: HubServer, machine: Machine) -> None:
    in_an_hour = formatdate(time.time() + 3600, usegmt=True)
    hub.faults.append(Fault(BIG, status=429, headers={"Retry-After": in_an_hour}))
    bound = QUICK + "failures.LONGEST_WAIT_S = 0.7; "
    fetched = machine.fetch(REPO, commit(hub), [BIG], prelude=bound)
    assert fetched.files == {BIG: WEIGHTS}
    assert f"{BIG}: HTTP 429; try 2 of {TRIES} in 0.7 s" in fetched.log


@pytest.mark.parametrize("value", ["-5", "١٢", "Mon, 99 Foo 2026 99:99:99 GMT"])
def test_a_wait_that_can_not_be_read_is_passed_by(hub: HubServer, machine: Machine, value: str) -> None:
    hub.faults.append(Fault(SMALL, status=503, headers={"Retry-After": value.encode().decode("latin-1")}))
    assert machine.fetch(REPO, commit(hub), [SMALL]).files == {SMALL: FILES[SMALL]}


def test_a_proxy_of_the_environment_is_used(hub: HubServer, machine: Machine) -> None:
    environ = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": hub.url, "NO_PROXY": "", "no_proxy": ""}
    assert machine.fetch(REPO, commit(hub), [SMALL], **environ).files == {SMALL: FILES[SMALL]}
    assert all(request.path.startswith("http://hub.invalid/") for request in hub.asked(SMALL))


def test_a_proxy_that_is_not_there(hub: HubServer, machine: Machine) -> None:
    environ = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "", "no_proxy": ""}
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], **environ)
    assert "the proxy" in raised.value.remedy


def test_a_hub_whose_name_does_not_resolve(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], HF_ENDPOINT="http://hub.invalid")
    assert "ConnectError" in raised.value.why
    assert raised.value.where.startswith("http://hub.invalid/owner/name at ")


def test_a_hub_on_ipv6(hub: HubServer, machine: Machine) -> None:
    try:
        with socket.socket(socket.AF_INET6) as taken:
            taken.bind(("::1", 0))
            port = taken.getsockname()[1]
    except OSError:
        pytest.skip("no IPv6 here")
    with pytest.raises(SourceError, match="can't be reached"):
        machine.fetch(REPO, commit(hub), [SMALL], HF_ENDPOINT=f"http://[::1]:{port}")


def test_encryption_that_fails_is_not_tried_again(hub: HubServer, machine: Machine) -> None:
    plain = hub.url.replace("http:", "https:")
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], HF_ENDPOINT=plain)
    assert "SSL" in raised.value.why
    assert "SSL_CERT_FILE" in raised.value.remedy
    assert "try 2" not in machine.log


def test_names_in_a_listing_are_data(hub: HubServer, machine: Machine) -> None:
    """What a hub calls its files is shown at most, and never with what a terminal would obey."""
    files = {"../../escaped.onnx": b"x", "model\x1b[31m.onnx": b"x", "model.onnx2": b"x", "/etc/model.onnx": b"x"}
    at = hub.repos[REPO].commit(files)
    with pytest.raises(SourceError, match=r"has no file model\.onnx") as raised:
        machine.fetch(REPO, at, ["model.onnx"])
    assert "\x1b" not in raised.value.what + raised.value.why + machine.log
    assert "model.onnx2" in raised.value.why
    assert not [*machine.folder.rglob("escaped.onnx")]


CONFIG = """\
source: {{hub: {repo}, revision: {revision}}}
components: {{net: {{file: net.onnx}}}}
fixed: {{batch: 1}}
quantization: {{precision: fp16}}
verification: {{enabled: false}}
targets: [sm8650]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.create(tmp_path / "project", tmp_path / "store")


def test_a_commit_that_changes_is_refused_also_without_a_cache(
    hub: HubServer, project: Project, tmp_path: Path
) -> None:
    """The HF cache is gone, the code of fetch is another (so its key is), and the hub serves other bytes."""
    at = "ab" * 20
    hub.add(REPO, {"net.onnx": b"\x08\x0afirst"}, commit=at)
    project.environ |= hub.environ(tmp_path / "home1")
    project.write("configs/net.yaml", CONFIG.format(repo=REPO, revision=at))
    first = project.doit("fetch:net")
    assert first.built == {"fetch:net"}

    hub.add(REPO, {"net.onnx": b"\x08\x0aother"}, commit=at)
    project.environ |= hub.environ(tmp_path / "home2")
    stage = project.root / "pipeline/stages/fetch.py"
    stage.write_text(stage.read_text("utf-8") + "\nANOTHER_VERSION = True\n", "utf-8")
    run = project.doit("fetch:net", check=False)
    assert run.status == 11, run.text
    assert f"net.onnx of {REPO} changed under a pinned revision" in run.text
    assert "Traceback" not in run.text

    hub.add(REPO, {"net.onnx": b"\x08\x0afirst"}, commit=at)
    project.environ |= hub.environ(tmp_path / "home3")
    assert project.doit("fetch:net").built == {"fetch:net"}

    hub.add(REPO, {"net.onnx": b"\x08\x0aother"}, commit=at)
    project.environ |= hub.environ(tmp_path / "home4")
    shutil.rmtree(project.store / "objects")
    run = project.doit("fetch:net", check=False)
    assert run.status == 11, run.text
    told = re.search(r"to take the new file, delete (.*)", run.text)
    assert told, run.text
    Path(told[1]).unlink()
    run = project.doit("fetch:net")
    assert run.built == {"fetch:net"}
    assert "fetch:net was made again and came out otherwise: net.onnx is" in run.text


def test_a_pinned_branch_builds_with_the_hub_gone(hub: HubServer, project: Project, tmp_path: Path) -> None:
    hub.add(REPO, {"net.onnx": b"\x08\x0afirst"})
    project.environ |= hub.environ(tmp_path / "home")
    project.write("configs/net.yaml", CONFIG.format(repo=REPO, revision="main"))
    project.doit("fetch:net")
    hub.repos.clear()
    gone = {"HF_HUB_OFFLINE": {"HF_HUB_OFFLINE": "1"}, "nobody": {"HF_ENDPOINT": "http://127.0.0.1:9"}}
    for name, environ in gone.items():
        project.store = tmp_path / name
        hub.requests.clear()
        project.environ |= environ
        assert project.doit("fetch:net").built == {"fetch:net"}
        assert hub.requests == []


def test_the_server_of_these_tests_is_stopped(hub: HubServer) -> None:
    """A fault without an end must not outlive its test."""
    hub.faults.append(Fault("", endless_head=True, pause_s=0.05))
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2]))) as open_:
        open_.sendall(b"GET /api/whoami-v2 HTTP/1.1\r\n\r\n")
        assert open_.recv(8).startswith(b"HTTP/1.1")
        hub.stopped.set()
        open_.settimeout(10)
        while open_.recv(1000):
            pass
