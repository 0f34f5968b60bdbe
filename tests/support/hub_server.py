"""A local server that speaks as much of the Hugging Face hub's API as its client needs to look up, download and upload.

In a test, as a context manager or by the fixture `hub` (import `hub_fixture`)::

    with HubServer() as hub:
        repo = hub.add("owner/name", {"onnx/model.onnx": b"...", "tokenizer.json": b"..."})
        hub.faults.append(Fault("*.onnx", cut_after=1000))
        ...                                    # with HF_ENDPOINT=hub.url
        assert hub.sent("onnx/model.onnx") ...

From a shell, with files served from folders::

    python -m tests.support.hub_server --repo owner/name=FOLDER [--repo owner/other@<commit>=FOLDER ...] [--port 8123]

Two ports are opened: the hub, and the storage that it redirects to for LFS files, as the real one does. Endpoints and
headers are those of https://huggingface.co/docs/hub/api and of the client's source; there is Xet where a test asks
for it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NoReturn, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from tests.support.hub_faults import Fault, Request
from tests.support.hub_repos import Blob, Repo, file_entry
from tests.support.hub_uploads import CommitError, Uploads, read_body
from tests.support.hub_xet import XetStorage

_BLOCK = 1 << 16


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}


class _AnsweredError(Exception):
    """What to answer in place of what was asked for."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


class HubServer:
    """The server; it runs while the context is open."""

    def __init__(self, port: int = 0) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.tokens: set[str] = set()
        self.requests: list[Request] = []
        self.page = 1000
        """Entries in one page of a listing."""
        self.sent_bytes: dict[str, int] = {}
        self.uploads = Uploads()
        self.xet: XetStorage | None = None
        """Set, the hub takes large files by Xet, as the real one does."""
        self.signature = secrets.token_hex(8)
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._servers = {
            host: ThreadingHTTPServer(("127.0.0.1", at), type(host, (_Handler,), {"hub": self, "host": host}))
            for host, at in (("hub", port), ("storage", 0))
        }
        self.url, self.storage_url = (f"http://127.0.0.1:{s.server_port}" for s in self._servers.values())

    def __enter__(self) -> Self:
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: Mapping[str, bytes] | Path, *, commit: str = "") -> Repo:
        """A repo with one commit on `main`, whose id may be given; `datasets/owner/name` is one of data."""
        repo = self.repos[name] = Repo(name)
        repo.commit(files, commit=commit)
        return repo

    def environ(self, home: Path) -> dict[str, str]:
        """The variables that make the client use this server and a cache of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def asked(self, name: str, method: str = "GET") -> list[Request]:
        """The requests for a file, without those that were redirected."""
        return [request for request in self.requests if (request.name, request.method) == (name, method)]

    def note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def count(self, name: str, sent: int) -> None:
        with self._lock:
            self.sent_bytes[name] = self.sent_bytes.get(name, 0) + sent

    def fault(self, name: str, method: str, kind: str) -> Fault | None:
        """The fault to act out now, if any; `kind` is a field that it must set."""
        with self._lock:
            for fault in self.faults:
                hit = fnmatch(name, fault.name) and fault.method in (method, "*") and fault.times != 0
                if hit and getattr(fault, kind) not in (None, False, {}):
                    fault.times = fault.times - 1 if fault.times else None
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[HubServer]
    host: ClassVar[str]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.segments = [unquote(part) for part in parts.path.split("/")[1:]]
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.body = read_body(self.headers, self.rfile)
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        try:
            (self._storage if self.host == "storage" else self._hub)()
        except _AnsweredError as answer:
            self._head(answer.status, {**answer.headers, "Content-Length": str(len(answer.body))})
            if self.command != "HEAD":
                self.wfile.write(answer.body)
        except _RefusedError as refusal:
            self._json({"error": str(refusal)}, refusal.status, refusal.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _note(self, name: str = "") -> None:
        asked = Request(self.host, self.command, self.path, name, self.headers.get("Range") or "", self.token)
        self.hub.note(asked)
        if fault := self.hub.fault(name, self.command, "status"):
            assert fault.status
            echo = fault.message.replace("{token}", self.token)
            raise _RefusedError(fault.status, "", echo, fault.headers)

        if fault := self.hub.fault(name, self.command, "redirect"):
            raise _AnsweredError(302, {"Location": str(fault.redirect).replace("{url}", self.path)})
        if fault := self.hub.fault(name, self.command, "page"):
            raise _AnsweredError(200, {"Content-Type": "text/html"}, fault.page or b"")
        if fault := self.hub.fault(name, self.command, "bomb_bytes"):
            zeros = gzip.compress(bytes(fault.bomb_bytes or 0))
            raise _AnsweredError(200, {"Content-Encoding": "gzip", "Content-Type": "application/json"}, zeros)
        if fault := self.hub.fault(name, self.command, "endless_head"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not self.hub.stopped.wait(fault.pause_s):
                self.wfile.write(b"x")
            self.close_connection = True
            raise BrokenPipeError

    def _hub(self) -> None:
        match self.segments:
            case ["api", "whoami-v2"]:
                self._note()
                if self.token not in self.hub.tokens:
                    raise _RefusedError(401, "", "Invalid username or password.")
                self._json({"type": "user", "name": "someone"})
            case ["api", "agent-harnesses"]:
                self._json({"standardEnvVars": [], "harnesses": {}})
            case ["api", "models", owner, name, ("preupload" | "commit") as kind, branch]:
                self._upload(f"{owner}/{name}", kind, branch)
            case ["api", "models", owner, name, "xet-write-token", _] if self.hub.xet:
                self._note("xet-write-token")
                if self.token not in self._repo(f"{owner}/{name}").writers:
                    raise _RefusedError(403, "", f"You don't have the rights to write to {owner}/{name}")
                until = int(time.time()) + 3600
                self._json({"accessToken": self.hub.xet.token, "exp": until, "casUrl": self.hub.storage_url})
            case ["api", "models", owner, name, *rest]:
                self._note()
                self._api(self._repo(f"{owner}/{name}"), rest)
            case ["api", "datasets", owner, name, *rest]:
                self._note()
                self._api(self._repo(f"datasets/{owner}/{name}"), rest)
            case ["api", "resolve-cache", "datasets", owner, name, revision, *path]:
                self._file(self._repo(f"datasets/{owner}/{name}"), revision, "/".join(path), redirected=True)
            case ["datasets", owner, name, "resolve", revision, *path]:
                self._file(self._repo(f"datasets/{owner}/{name}"), revision, "/".join(path))
            case ["api", "resolve-cache", "models", owner, name, revision, *path]:
                self._file(self._repo(f"{owner}/{name}"), revision, "/".join(path), redirected=True)
            case [owner, name, "info", "lfs", *rest] if name.endswith(".git"):
                self._upload(f"{owner}/{name.removesuffix('.git')}", rest[-1], "")
            case [owner, name, "resolve", revision, *path]:
                self._file(self._repo(f"{owner}/{name}"), revision, "/".join(path))
            case _:
                raise _RefusedError(404, "", "Sorry, we can't find the page you are looking for.")

    def _repo(self, name: str) -> Repo:
        if self.token and self.token not in self.hub.tokens:
            raise _RefusedError(401, "", "Invalid credentials in Authorization header")
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.token not in repo.allowed):
            if self.token:
                raise _RefusedError(404, "RepoNotFound", "Repository not found")
            raise _RefusedError(401, "RepoNotFound", "Invalid username or password.")
        return repo

    def _upload(self, name: str, kind: str, branch: str) -> None:
        self._note(kind)
        repo = self._repo(name)
        try:
            if self.token not in repo.writers:
                raise CommitError(403 if self.token else 401, f"You don't have the rights to write to {name}")
            storage = f"{self.hub.storage_url}/upload/{{oid}}?Signature={self.hub.signature}"
            self._json(self.hub.uploads.answer(repo, kind, branch, self.body, self.hub.url, storage))
        except CommitError as error:
            raise _RefusedError(error.status, "", str(error)) from None

    def _commit(self, repo: Repo, revision: str) -> str:
        commit = repo.find(revision)
        if commit is None:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _api(self, repo: Repo, rest: list[str]) -> None:
        match rest:
            case [] | ["revision", _]:
                commit = self._commit(repo, rest[1] if rest else "main")
                siblings = [{"rfilename": name} for name in repo.commits[commit]]
                gated = "manual" if repo.gated else False
                about = {"id": repo.name, "modelId": repo.name, "private": repo.private, "gated": gated, "tags": []}
                self._json({**about, "sha": commit, "siblings": siblings})
            case ["refs"]:
                refs = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
                listed = {
                    kind: [{"name": n, "ref": f"refs/{folder}/{n}", "targetCommit": c} for n, c in known.items()]
                    for kind, (folder, known) in refs.items()
                }
                self._json({**listed, "converts": []})
            case ["tree", revision, *path]:
                self._tree(repo, self._commit(repo, revision), "/".join(path))
            case ["paths-info", revision]:
                files = repo.commits[self._commit(repo, revision)]
                paths = parse_qs(self.body.decode()).get("paths", [])
                self._json([file_entry(name, files[name]) for name in paths if name in files])
            case _:
                raise _RefusedError(404, "", "Not found")

    def _tree(self, repo: Repo, commit: str, folder: str) -> None:
        entries = repo.tree(commit, folder, recursive=self.query.get("recursive", "").lower() == "true")
        start = int(self.query.get("cursor", "0"))
        more = {}
        if start + self.hub.page < len(entries):
            recursive = self.query.get("recursive", "False")
            here = self.hub.url + urlsplit(self.path).path
            more["Link"] = f'<{here}?recursive={recursive}&cursor={start + self.hub.page}>; rel="next"'
        self._json(entries[start : start + self.hub.page], headers=more)

    def _file(self, repo: Repo, revision: str, name: str, *, redirected: bool = False) -> None:
        if repo.gated and self.token not in repo.allowed:
            text = f"Access to model {repo.name} is restricted."
            raise _RefusedError(403 if self.token else 401, "GatedRepo", text)
        commit = self._commit(repo, revision)
        blob = repo.commits[commit].get(name)
        if redirected or blob is None or (blob.lfs and self.command == "HEAD"):
            self._note(name)
        if blob is None:
            raise _RefusedError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(blob.bytes), "X-Linked-Etag": f'"{blob.etag}"'}
        claimed = self.hub.fault(name, self.command, "claim")
        headers |= {"ETag": f'"{blob.oid}"', **(claimed.claim if claimed else {})}
        if redirected:
            self._send(blob, name, headers)
        elif blob.lfs:
            storage = f"{self.hub.storage_url}/{blob.sha256}/{repo.name}/{commit}/{quote(name)}"
            self._head(302, {**headers, "Location": f"{storage}?Signature={self.hub.signature}"})
        else:
            kind = "" if repo.name.startswith("datasets/") else "models/"
            same_host = f"/api/resolve-cache/{kind}{repo.name}/{commit}/{quote(name)}"
            self._head(307, {**headers, "Location": same_host})

    def _xet(self, xet: XetStorage, what: list[str]) -> None:
        self._note(what[1])
        if self.token != xet.token:
            raise _RefusedError(401, "", "Unauthorized")
        match what:
            case ["v1", "xorbs", "default", _] if self.command == "POST":
                xet.take_xorb(self.body)
                self._json({"was_inserted": True})
            case ["v1", "shards"] if self.command == "POST":
                xet.shards += 1
                self.hub.uploads.blobs |= xet.files()
                self._json({"result": 1})
            case _:  # chunks that others may have sent before, grants, later versions
                raise _RefusedError(404, "", "Not found")

    def _storage(self) -> None:
        if self.hub.xet and self.segments[0] in ("v1", "v2"):
            self._xet(self.hub.xet, self.segments)
            return
        if self.segments[0] == "upload":
            self._note("upload")
            if self.query.get("Signature") != self.hub.signature:
                raise _RefusedError(403, "", "Request has expired")
            self._json({}, 200 if self.hub.uploads.take(self.segments[1], self.body) else 400)
            return
        _, *place = self.segments
        kind = [place.pop(0)] if place[0] == "datasets" else []
        owner, repo, commit, *path = place
        name = "/".join(path)
        self._note(name)
        if self.query.get("Signature") != self.hub.signature:
            raise _RefusedError(403, "", "Request has expired")
        self._send(self.hub.repos["/".join([*kind, owner, repo])].commits[commit][name], name, {})

    def _send(self, blob: Blob, name: str, headers: Mapping[str, str]) -> None:
        start, status = 0, 200
        asked = self.headers.get("Range")
        if asked and not self.hub.fault(name, self.command, "ignore_range"):
            start, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            if start >= blob.bytes:
                self._head(416, {"Content-Range": f"bytes */{blob.bytes}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{blob.bytes - 1}/{blob.bytes}"}
        self._head(status, {"Accept-Ranges": "bytes", **headers, "Content-Length": str(blob.bytes - start)})
        if self.command != "HEAD":
            self._stream(blob, name, start)

    def _stream(self, blob: Blob, name: str, start: int) -> None:
        cut = self.hub.fault(name, self.command, "cut_after")
        wrong = self.hub.fault(name, self.command, "wrong_byte")
        slow = self.hub.fault(name, self.command, "bytes_per_s")
        left = blob.bytes - start if cut is None or cut.cut_after is None else min(cut.cut_after, blob.bytes - start)
        drip = self.hub.fault(name, self.command, "drip")
        with blob.open() as stream:
            stream.seek(start)
            while drip and left and not self.hub.stopped.wait(drip.pause_s):
                left -= 1
                self.wfile.write(stream.read(1))
            while left and (block := stream.read(min(_BLOCK, left))):
                left -= len(block)
                if wrong:
                    block, wrong = bytes([block[0] ^ 0xFF]) + block[1:], None
                self.wfile.write(block)
                self.hub.count(name, len(block))
                if slow and slow.bytes_per_s:
                    time.sleep(len(block) / slow.bytes_per_s)
        if cut:
            time.sleep(cut.pause_s)
            self.close_connection = True

    def _json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        text = json.dumps(value).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(text)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(text)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": "0", **headers}.items():
            self.send_header(key, value)
        self.end_headers()


@pytest.fixture(name="hub")
def hub_fixture() -> Iterator[HubServer]:
    """A server without repos."""
    with HubServer() as hub:
        yield hub


def main(arguments: list[str] | None = None) -> NoReturn:
    """Serve folders until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.hub_server", description=main.__doc__)
    parser.add_argument("--repo", action="append", required=True, metavar="OWNER/NAME[@COMMIT]=FOLDER")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    with HubServer(options.port) as hub:
        for given in options.repo:
            name, _, folder = given.partition("=")
            name, _, commit = name.partition("@")
            repo = hub.add(name, Path(folder), commit=commit)
            print(f"{name} main {repo.branches['main']}", flush=True)
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    raise SystemExit


if __name__ == "__main__":
    main()
