"""fetch from the hub: the real client, in a process of its own, against a local server that speaks the hub's API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import ModelError, SourceError
from tests.support.fetching import TRIES, Fetched, Machine, facts_text, model_with
from tests.support.hub_faults import Fault
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401

REPO = "owner/name"
WEIGHTS = bytes(range(256)) * 8192  # 2 MiB, kept in LFS
FILES = {
    "README.md": b"# a model",
    "onnx/model.onnx": model_with("model.onnx_data", "./model.onnx_data", "more/part2.bin"),
    "onnx/model.onnx_data": WEIGHTS,
    "onnx/more/part2.bin": b"second part",
    "onnx/model_int8.onnx": b"not needed",
    "tokenizer.json": b'{"version": "1.0"}',
}
BIG = "onnx/model.onnx_data"
SMALL = "tokenizer.json"


@pytest.fixture
def machine(tmp_path: Path, hub: HubServer) -> Machine:
    hub.add(REPO, FILES)
    return Machine(tmp_path, hub)


def commit(hub: HubServer) -> str:
    return hub.repos[REPO].branches["main"]


def test_only_what_is_needed_is_fetched(hub: HubServer, machine: Machine) -> None:
    fetched = machine.fetch(REPO, commit(hub), ["onnx/model.onnx", SMALL])
    needed = {"onnx/model.onnx", BIG, "onnx/more/part2.bin", SMALL}
    assert fetched.files == {name: FILES[name] for name in needed}
    assert {request.name for request in hub.requests} - {""} == needed
    assert fetched.facts == {}, "the same files at another commit must be the same content"
    assert f"{BIG}: 100 %, 2.1 of 2.1 MB" in fetched.log
    assert "\r" not in fetched.log


def test_a_name_that_is_not_there_is_told_before_the_weights_come(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(SourceError, match=r"has no file tokeniser\.json; did you mean 'tokenizer\.json'"):
        machine.fetch(REPO, commit(hub), ["onnx/model.onnx", "tokeniser.json"])
    assert BIG not in hub.sent_bytes


def test_cached_files_need_no_hub(hub: HubServer, machine: Machine) -> None:
    first = machine.fetch(REPO, commit(hub), ["onnx/model.onnx", SMALL])
    hub.requests.clear()
    offline = machine.fetch(REPO, commit(hub), ["onnx/model.onnx", SMALL], HF_HUB_OFFLINE="1")
    assert offline.files == first.files
    assert offline.facts == first.facts
    assert f"{BIG}: cached, verified" in offline.log
    assert machine.fetch(REPO, commit(hub), [SMALL]).files == {SMALL: FILES[SMALL]}
    assert hub.requests == []


def test_the_cache_is_the_one_the_client_reads(hub: HubServer, machine: Machine, tmp_path: Path) -> None:
    machine.fetch(REPO, commit(hub), [BIG], HF_HUB_CACHE=str(tmp_path / "elsewhere"))
    code = (
        f"from huggingface_hub import hf_hub_download as get; print(get('{REPO}', '{BIG}', revision='{commit(hub)}'))"
    )
    environ = machine.environ | {"HF_HUB_CACHE": str(tmp_path / "elsewhere"), "HF_HUB_OFFLINE": "1"}
    path = subprocess.check_output([sys.executable, "-c", code], env=environ, text=True).strip()
    assert Path(path).is_relative_to(tmp_path / "elsewhere")
    assert Path(path).read_bytes() == WEIGHTS


def test_a_cut_connection_resumes_where_it_ended(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, cut_after=1_500_000))
    fetched = machine.fetch(REPO, commit(hub), [BIG])
    assert fetched.files == {BIG: WEIGHTS}
    assert [request.range for request in hub.asked(BIG)] == ["bytes=0-", "bytes=1500000-"]
    assert hub.sent_bytes[BIG] == len(WEIGHTS)
    assert f"try 2 of {TRIES}" in fetched.log


def test_progress_earns_new_tries_but_drops_are_bounded(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, cut_after=1000, times=None))
    with pytest.raises(SourceError, match="can't be reached") as raised:
        machine.fetch(REPO, commit(hub), [BIG])
    assert "ended after 3000 of 2097152 bytes" in raised.value.why or "peer closed connection" in raised.value.why
    assert "it resumes" in raised.value.remedy
    assert len(hub.asked(BIG)) == TRIES
    hub.faults.clear()
    assert machine.fetch(REPO, commit(hub), [BIG]).files == {BIG: WEIGHTS}
    assert hub.asked(BIG)[-1].range == f"bytes={1000 * TRIES}-"


def test_progress_is_shown_about_once_a_second(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, bytes_per_s=1_000_000))
    log = machine.fetch(REPO, commit(hub), [BIG]).log
    shown = re.findall(rf"^{re.escape(BIG)}: (\d+) %, [\d.]+ of 2\.1 MB$", log, re.MULTILINE)
    assert shown[-1] == "100"
    assert 3 <= len(shown) <= 6
    assert "\r" not in log


def test_a_killed_download_resumes(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, bytes_per_s=2_000_000))
    child = machine.start(REPO, commit(hub), [BIG])
    deadline = time.monotonic() + 30
    while not any(blob.stat().st_size > 200_000 for blob in machine.blobs()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.kill()
    child.wait()
    (partial,) = machine.blobs()
    have = partial.stat().st_size
    assert machine.fetch(REPO, commit(hub), [BIG]).files == {BIG: WEIGHTS}
    assert [request.range for request in hub.asked(BIG)] == ["bytes=0-", f"bytes={have}-"]
    assert [blob.name for blob in machine.blobs()] == [hub.repos[REPO].commits[commit(hub)][BIG].etag]


def test_a_server_without_ranges_is_asked_from_the_start(hub: HubServer, machine: Machine) -> None:
    hub.faults += [Fault(BIG, ignore_range=True, times=2), Fault(BIG, cut_after=1_500_000)]
    assert machine.fetch(REPO, commit(hub), [BIG]).files == {BIG: WEIGHTS}


def test_a_stalled_connection_is_given_up(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, cut_after=1_500_000, pause_s=5))
    fetched = machine.fetch(REPO, commit(hub), [BIG], HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert fetched.files == {BIG: WEIGHTS}
    assert "ReadTimeout" in fetched.log


@pytest.mark.parametrize("name", [BIG, SMALL])
def test_content_that_is_not_what_was_announced_is_refused(hub: HubServer, machine: Machine, name: str) -> None:
    hub.faults.append(Fault(name, wrong_byte=True, times=None))
    with pytest.raises(SourceError, match=f"what the hub sent as {name} of {REPO} is not that file") as raised:
        machine.fetch(REPO, commit(hub), [name])
    assert hub.repos[REPO].commits[commit(hub)][name].etag in raised.value.why
    assert machine.blobs() == []
    assert len(hub.asked(name)) == 1


@pytest.mark.parametrize("size", [3000, len(WEIGHTS) + 1])
def test_a_damaged_partial_download_is_dropped(hub: HubServer, machine: Machine, size: int) -> None:
    hub.faults.append(Fault(BIG, cut_after=1000, times=None))
    with pytest.raises(SourceError):
        machine.fetch(REPO, commit(hub), [BIG])
    hub.faults.clear()
    machine.blobs()[0].write_bytes(b"\0" * size)
    assert machine.fetch(REPO, commit(hub), [BIG]).files == {BIG: WEIGHTS}


@pytest.mark.parametrize("name", [BIG, SMALL])
def test_a_damaged_cached_file_is_never_used(hub: HubServer, machine: Machine, name: str) -> None:
    machine.fetch(REPO, commit(hub), [name])
    damaged = FILES[name][:-1] + b"!"
    machine.blobs()[0].write_bytes(damaged)
    assert machine.fetch(REPO, commit(hub), [name]).files == {name: FILES[name]}
    assert "the copy in the HF cache is damaged" in machine.log
    machine.blobs()[0].write_bytes(damaged)
    with pytest.raises(SourceError, match="is not in the HF cache, and the build is offline"):
        machine.fetch(REPO, commit(hub), [name], HF_HUB_OFFLINE="1")
    assert machine.blobs() == []


def test_a_blob_shared_between_repos_is_verified_by_its_own_name(hub: HubServer, machine: Machine) -> None:
    machine.fetch(REPO, commit(hub), [BIG])
    (blob,) = machine.blobs()
    shared = machine.cache / "blobs" / "00" / ("0" * 64)  # named by another kind of hash
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    try:
        blob.symlink_to(shared)
    except OSError:
        pytest.skip("this account can't make links")
    fetched = machine.fetch(REPO, commit(hub), [BIG], HF_HUB_OFFLINE="1")
    assert f"{BIG}: cached, verified" in fetched.log
    assert fetched.files == {BIG: WEIGHTS}


def test_a_cache_without_links_says_what_it_cannot_verify(hub: HubServer, machine: Machine) -> None:
    machine.fetch(REPO, commit(hub), [SMALL], HF_HUB_DISABLE_SYMLINKS="1")
    again = machine.fetch(REPO, commit(hub), [SMALL], HF_HUB_DISABLE_SYMLINKS="1", HF_HUB_OFFLINE="1")
    assert again.files == {SMALL: FILES[SMALL]}
    assert f"{SMALL}: cached, not verified" in again.log


def test_a_busy_hub_is_tried_again(hub: HubServer, machine: Machine) -> None:
    hub.faults += [
        Fault(BIG, method="HEAD", status=503, times=1),
        Fault(BIG, status=429, headers={"Retry-After": "1"}),
    ]
    fetched = machine.fetch(REPO, commit(hub), [BIG])
    assert fetched.files == {BIG: WEIGHTS}
    assert f"{BIG}: HTTP 503; try 2 of {TRIES} in 0.01 s" in fetched.log
    assert f"{BIG}: HTTP 429; try 2 of {TRIES} in 1 s" in fetched.log


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_hub_that_is_down_is_said_to_be(hub: HubServer, machine: Machine, method: str) -> None:
    hub.faults.append(Fault(BIG, method=method, status=503, times=None))
    with pytest.raises(SourceError, match="the hub is out of order") as raised:
        machine.fetch(REPO, commit(hub), [BIG])
    assert raised.value.why == "HTTP 503"
    assert len(hub.asked(BIG, method)) == TRIES


def test_a_hub_that_is_not_there(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(SourceError, match=f"can't be reached, so {SMALL} of {REPO} can't be had") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], HF_ENDPOINT="http://user:secret@127.0.0.1:9")
    assert "ConnectError" in raised.value.why
    assert "HF_ENDPOINT" in raised.value.remedy
    assert "secret" not in machine.log + str(raised.value)


def test_a_gated_repo(hub: HubServer, machine: Machine) -> None:
    repo = hub.repos[REPO]
    repo.gated, repo.allowed, hub.tokens = True, {"hf_member"}, {"hf_member", "hf_stranger"}
    page = f"{hub.url}/{REPO}"
    with pytest.raises(SourceError, match=f"{REPO} is gated and the hub refuses {BIG}") as raised:
        machine.fetch(REPO, commit(hub), [BIG])
    assert raised.value.remedy == f"accept its licence at {page}, then set HF_TOKEN to a token of that account"
    with pytest.raises(SourceError, match="is gated") as raised:
        machine.fetch(REPO, commit(hub), [BIG], HF_TOKEN="hf_stranger")
    assert raised.value.remedy.endswith(f"{page} with the account that HF_TOKEN belongs to")
    assert "HTTP 403" in raised.value.why
    fetched = machine.fetch(REPO, commit(hub), [BIG], HF_TOKEN="hf_member")
    assert fetched.files == {BIG: WEIGHTS}
    assert "hf_member" not in fetched.log + facts_text(fetched)
    assert {request.token for request in hub.requests if request.host == "storage"} == {""}


def test_the_token_stays_out_of_messages(hub: HubServer, machine: Machine) -> None:
    hub.tokens = {"hf_secret"}
    hub.faults.append(Fault(SMALL, method="HEAD", status=403, message="not for {token}", times=None))
    with pytest.raises(SourceError, match=f"the hub refuses {SMALL}") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], HF_TOKEN="hf_secret")
    assert raised.value.why == "HTTP 403: not for ***"
    assert "hf_secret" not in machine.log
    with pytest.raises(SourceError, match="HF_TOKEN holds characters that no token has"):
        machine.fetch(REPO, commit(hub), [SMALL], HF_TOKEN="hf_sec ret\x01")
    assert "hf_sec" not in machine.log


def test_a_wrong_token(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(SourceError, match="the hub does not accept the token") as raised:
        machine.fetch(REPO, commit(hub), [SMALL], HF_TOKEN="hf_wrong")
    assert "unset it if the repo is public" in raised.value.remedy


@pytest.mark.parametrize(("token", "remedy"), [({}, "set HF_TOKEN"), ({"HF_TOKEN": "hf_any"}, "use an HF_TOKEN whose")])
def test_a_repo_that_is_not_there(hub: HubServer, machine: Machine, token: dict[str, str], remedy: str) -> None:
    hub.tokens = {"hf_any"}
    with pytest.raises(SourceError, match="the hub has no repo owner/nema, or does not show it") as raised:
        machine.fetch("owner/nema", "0" * 40, [SMALL], **token)
    assert remedy in raised.value.remedy


def test_a_commit_that_is_not_there(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(SourceError, match=f"{REPO} has no revision '{'0' * 40}'") as raised:
        machine.fetch(REPO, "0" * 40, [SMALL])
    assert raised.value.why == "its branches and tags: main"


def test_a_file_that_is_not_there(hub: HubServer, machine: Machine) -> None:
    hub.page = 2
    with pytest.raises(SourceError) as raised:
        machine.fetch(REPO, commit(hub), ["model.onnx"])
    assert raised.value.what == f"{REPO} has no file model.onnx; did you mean 'onnx/model.onnx'?"
    assert raised.value.why.startswith("nearest of its 6 files: onnx/model.onnx, ")


def test_external_data_that_is_not_there(hub: HubServer, machine: Machine) -> None:
    at = hub.repos[REPO].commit({"model.onnx": model_with("weights.bin")})
    with pytest.raises(SourceError, match=f"{REPO} has no file weights.bin") as raised:
        machine.fetch(REPO, at, ["model.onnx"])
    assert raised.value.where == f"{hub.url}/{REPO} at {at}, named by model.onnx"


def test_external_data_that_leads_out_is_refused(hub: HubServer, machine: Machine) -> None:
    at = hub.repos[REPO].commit({"onnx/model.onnx": model_with("../weights.bin"), "weights.bin": b""})
    with pytest.raises(ModelError, match=r"onnx/model\.onnx names external data outside its folder"):
        machine.fetch(REPO, at, ["onnx/model.onnx"])
    assert hub.asked("weights.bin", "HEAD") == []


def test_a_file_that_is_no_onnx(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(ModelError, match=r"model_int8\.onnx is not an ONNX model"):
        machine.fetch(REPO, commit(hub), ["onnx/model_int8.onnx"])


def test_offline_with_an_empty_cache(hub: HubServer, machine: Machine) -> None:
    with pytest.raises(
        SourceError, match=f"{SMALL} of {REPO} is not in the HF cache, and the build is offline"
    ) as raised:
        machine.fetch(REPO, commit(hub), [SMALL], HF_HUB_OFFLINE="1")
    assert str(machine.cache) in raised.value.why
    assert hub.requests == []


@pytest.mark.parametrize(
    ("claim", "what"),
    [
        ({"X-Linked-Etag": '"v1"'}, "what answers there is no Hugging Face hub"),
        ({"X-Repo-Commit": "1" * 40}, "is not what commit [0-9a-f]{40} holds"),
        ({"X-Linked-Size": "1000"}, "is not what commit [0-9a-f]{40} holds"),
        ({"X-Linked-Size": str(10**18)}, "there is no room for"),
    ],
)
def test_what_the_hub_announces_is_checked(hub: HubServer, machine: Machine, claim: dict[str, str], what: str) -> None:
    hub.faults.append(Fault(BIG, method="HEAD", claim=claim, times=None))
    with pytest.raises(SourceError, match=what):
        machine.fetch(REPO, commit(hub), [BIG])


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are a POSIX thing")
def test_a_disk_that_fills_up(hub: HubServer, machine: Machine) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)); "
    with pytest.raises(SourceError, match=f"there is no room for {BIG}") as raised:
        machine.fetch(REPO, commit(hub), [BIG], prelude=limit)
    assert "set HF_HOME to a larger disk" in raised.value.remedy
    assert machine.fetch(REPO, commit(hub), [BIG]).files == {BIG: WEIGHTS}
    assert hub.asked(BIG)[-1].range != "bytes=0-"


def test_two_downloads_of_one_file_share_it(hub: HubServer, machine: Machine) -> None:
    hub.faults.append(Fault(BIG, bytes_per_s=4_000_000, times=None))
    children = [machine.start(REPO, commit(hub), [BIG]) for _ in range(2)]
    results: list[Fetched] = [machine.wait(child) for child in children]
    assert [fetched.files for fetched in results] == [{BIG: WEIGHTS}] * 2
    assert hub.sent_bytes[BIG] == len(WEIGHTS)


def test_the_server_runs_from_a_shell(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / SMALL).write_bytes(FILES[SMALL])
    at = "ab" * 20
    command = [sys.executable, "-m", "tests.support.hub_server", "--repo", f"{REPO}@{at}={tmp_path / 'model'}"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            assert server.stdout.readline() == f"{REPO} main {at}\n"
            found = re.fullmatch(r"HF_ENDPOINT=(http://127\.0\.0\.1:\d+)\n", server.stdout.readline())
            assert found
            machine = Machine(tmp_path)
            environ = {"HF_ENDPOINT": found[1], "HF_HOME": str(tmp_path / "home")}
            assert machine.fetch(REPO, at, [SMALL], **environ).files == {SMALL: FILES[SMALL]}
        finally:
            server.terminate()


def test_a_local_model_is_copied_without_the_hubs_client(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"# a model")
    code = """if True:
        import json, sys
        from pathlib import Path
        from pipeline.build import worker
        from pipeline.contracts.fetch import Params
        from pipeline.model import StageRequest
        from pipeline.stages import fetch

        folder, name = Path(sys.argv[1]), "README.md"
        fetch.run(StageRequest("fetch:m", Params(None, (name,)).to_json(), {}, {name: folder / name}, folder / "out"))
        print(json.dumps([*sys.modules]))
    """
    done = subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], text=True)
    assert (tmp_path / "out" / "README.md").read_bytes() == b"# a model"
    imported = set(json.loads(done))
    assert "pipeline.inputs.source" in imported
    assert not imported & {"huggingface_hub", "httpx2", "asyncio", "yaml", "numpy", "onnx"}
