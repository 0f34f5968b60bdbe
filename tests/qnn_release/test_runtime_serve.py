"""Two processes: the server, the one-file client, and what happens when either gets something odd or ends."""

from __future__ import annotations

import ast
import errno
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pipeline.qnn_release import Release, serve
from pipeline.qnn_release.client import (
    ArraysError,
    CallTimeoutError,
    Client,
    ClientError,
    FrameError,
    RemoteError,
    ServerDiedError,
    read_frame,
)
from tests.support import runtime_releases, tiny_models
from tests.support.project import ROOT

CLIENT = ROOT / "pipeline" / "qnn_release" / "client.py"
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of a tiny model, for the CPU."""
    return runtime_releases.tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def opened(release: Path) -> Iterator[Release]:
    """The same, open in this process."""
    with Release.open(release, device="cpu") as local:
        yield local


@pytest.fixture(scope="module")
def remote(release: Path) -> Iterator[Client]:
    """The same, open in another, for tests that leave it as it is."""
    with Client(command(release)) as client_of_all:
        yield client_of_all


def command(release: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.qnn_release.serve", str(release), "--device", "cpu", *more]


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def x(length: int = 5, seed: int = 0) -> dict[str, Any]:
    return {"x": tiny_models.sample(length, seed)}


def test_a_call_gives_what_the_release_gives(remote: Client, opened: Release) -> None:
    for length in (1, 8, 9, 16):
        given_x = x(length, seed=length)
        assert np.array_equal(remote.run("layers", given_x)["y"], opened.run("layers", given_x)["y"])
    assert remote.report()["sessions"][0]["provider"] == "CPUExecutionProvider"
    assert remote.hello["model"] == "tiny"
    assert remote.hello["components"]["layers"] == {
        "inputs": [{"name": "x", "dtype": "float32", "dims": [1, "sequence", 32]}],
        "outputs": [{"name": "y", "dtype": "float32", "dims": [1, "sequence", 32]}],
        "buckets": [{"sequence": 8}, {"sequence": 16}],
    }


def test_an_error_of_the_release_is_one_of_the_client_and_the_server_goes_on(remote: Client) -> None:
    for inputs, kind, why in (
        (x(17), "TooLongError", "the largest bucket is sequence 16"),
        ({}, "InputError", "x missing"),
        ({"x": np.zeros((1, 3, 32), np.float64)}, "InputError", "its type is float64, not float32"),
    ):
        with pytest.raises(RemoteError) as raised:
            remote.run("layers", inputs)
        assert (raised.value.kind, raised.value.why) == (kind, why)
        assert f"  why: {why}\n  next: " in str(raised.value)
    with pytest.raises(RemoteError, match="no component 'no'"):
        remote.load("no")
    remote.load()
    assert remote.run("layers", x())["y"].shape == (1, 5, 32)


def test_what_can_not_be_sent_is_refused_here(release: Path) -> None:
    with Client(command(release, "--max-bytes", "1000")) as remote:
        with pytest.raises(ArraysError, match="x can't be sent: its type is complex128"):
            remote.run("layers", {"x": np.zeros(3, np.complex128)})
        with pytest.raises(ArraysError, match=r"\+ 2048 bytes; 1048576 \+ 1000 are the most"):
            remote.run("layers", x(16))
        assert remote.run("layers", x(2))["y"].shape == (1, 2, 32)


def test_no_release_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="there is no such release") as raised:
        Client(command(tmp_path / "none"))
    assert raised.value.kind == "FormatError"


@posix
def test_a_crash_is_an_error_with_the_log(release: Path) -> None:
    program = f"""
import os, signal, sys
from pipeline.qnn_release import Release, serve
def crash(*_, **__):
    os.write(1, b"printed by native code\\n")
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
Release.load = crash
sys.exit(serve.main([{str(release)!r}, "--device", "cpu"]))
"""
    with Client(python(program)) as remote:
        assert remote.run("layers", x())["y"].shape == (1, 5, 32)
        with pytest.raises(ServerDiedError) as raised:
            remote.load()
        assert str(raised.value) == (
            f"the server ended, killed by signal {int(signal.SIGSEGV)}\n  | printed by native code\n  | the last words"
        )
        with pytest.raises(ServerDiedError, match="the last words"):
            remote.run("layers", x())
        remote.restart()
        assert remote.run("layers", x())["y"].shape == (1, 5, 32)


@posix
def test_a_thousand_calls_with_kills_in_between(release: Path, opened: Release) -> None:
    inputs = {length: x(length, seed=length) for length in range(1, 17)}
    wanted = {length: opened.run("layers", given_x)["y"] for length, given_x in inputs.items()}
    right: list[bool] = []
    kill_at = {333, 666}
    lock = threading.Lock()
    pids = set()

    def work(number: int, remote: Client) -> None:
        for call in range(250):
            length = (number + call) % 16 + 1
            got = remote.run("layers", inputs[length])["y"]
            with lock:
                right.append(np.array_equal(got, wanted[length]))
                if len(right) in kill_at:
                    pids.add(remote.hello["pid"])
                    os.kill(remote.hello["pid"], signal.SIGKILL)

    with Client(command(release), recover=True) as remote:
        threads = [threading.Thread(target=work, args=(number, remote)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert remote.hello["pid"] not in pids
    assert len(right) == 1000
    assert all(right)
    assert len(pids) == 2


@posix
def test_without_recovery_a_kill_is_an_error_in_every_waiting_call(release: Path) -> None:
    with Client(command(release)) as remote:
        pid = remote.hello["pid"]
        os.kill(pid, signal.SIGSTOP)
        found: list[ClientError] = []

        def call() -> None:
            try:
                remote.run("layers", x())
            except ClientError as error:
                found.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
        assert [type(error) for error in found] == [ServerDiedError] * 3
        assert "killed by signal 9" in str(found[0])


@posix
@pytest.mark.parametrize("length", [5, 200_000])  # the second is more than a pipe holds: it can't even be written
def test_a_server_that_hangs_is_a_timeout(release: Path, length: int) -> None:
    with Client(command(release)) as remote:
        os.kill(remote.hello["pid"], signal.SIGSTOP)
        with pytest.raises(CallTimeoutError, match=r"did not answer within 0\.2 s"):
            remote.run("layers", x(length), timeout_s=0.2)
        remote.restart()
        assert remote.run("layers", x(), timeout_s=60)["y"].shape == (1, 5, 32)


@posix
def test_with_recovery_a_server_that_hangs_is_replaced(release: Path) -> None:
    with Client(command(release), recover=True) as remote:
        os.kill(remote.hello["pid"], signal.SIGSTOP)
        with pytest.raises(CallTimeoutError):
            remote.run("layers", x(), timeout_s=0.2)
        assert remote.run("layers", x(), timeout_s=60)["y"].shape == (1, 5, 32)


def says(*data: bytes) -> str:
    """A program that writes these bytes as if it were a server, and then hangs."""
    return f"import os, time; os.write(1, {b''.join(data)!r}); time.sleep(600)"


def prefix(header_bytes: int, body_bytes: int = 0) -> bytes:
    return struct.pack("<4sIQ", b"QNR1", header_bytes, body_bytes)


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("import sys; sys.exit('no such option')", ServerDiedError, "exit status 1\n  | no such option"),
        (f"import os; os.write(1, {prefix(99) + b'{'!r})", ServerDiedError, "exit status 0"),
        (says(b"hello " * 9), FrameError, "begins with b'hello hello hell'"),
        (says(prefix(9, 1 << 60)), FrameError, "are the most"),
        (says(prefix(2), b"[]"), FrameError, "it is no object"),
        (says(prefix(10), b'{"id": nul'), FrameError, "header is not as it should be"),
        (says(prefix(2), b"{}"), FrameError, "another protocol: None"),
    ],
)
def test_what_is_no_server_is_an_error(program: str, error: type[ClientError], message: str) -> None:
    with pytest.raises(error) as raised:
        Client(python(program))
    assert message in str(raised.value)


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", says(prefix(99), b"{")])
def test_a_server_that_never_gets_ready_is_a_timeout(program: str) -> None:
    with pytest.raises(CallTimeoutError, match=r"did not open the release within 0\.5 s \(start_timeout_s\)"):
        Client(python(program), timeout_s=9, start_timeout_s=0.5)


def test_no_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerDiedError, match="can't be started"):
        Client([str(tmp_path / "none")])


def test_a_closed_client_and_a_server_whose_input_ends(release: Path) -> None:
    remote = Client(command(release))
    remote.run("layers", x())
    process = remote._server.process
    remote.close()
    assert process.returncode == 0, "it ended by itself"
    with pytest.raises(ClientError, match="closed"):
        remote.run("layers", x())
    remote.restart()
    assert remote.run("layers", x())["y"].shape == (1, 5, 32)
    remote.close()


def test_the_real_server_ends_on_what_is_no_frame(release: Path) -> None:
    done = subprocess.run(command(release), input=b"nonsense", capture_output=True, check=False, cwd=ROOT, timeout=120)
    assert done.returncode == 3
    assert b"error: it begins with b'nonsense'" in done.stderr
    stream = io.BytesIO(done.stdout)
    assert "hello" in cast("Any", read_frame(stream))[0]
    assert cast("Any", read_frame(stream))[0]["error"]["kind"] == "FrameError"


def test_the_client_is_one_file_for_old_pythons() -> None:
    source = CLIENT.read_text("utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.split(".")[0] for name in imported} - {"numpy", "__future__"} <= sys.stdlib_module_names


ALONE = """
import array, sys
if "--no-numpy" in sys.argv:
    sys.modules["numpy"] = None
sys.path.insert(0, sys.argv[1])
import client
values = memoryview(array.array("f", range(96))).cast("B").cast("f", [1, 3, 32])
if client.np is not None:
    values = client.np.asarray(values)
with client.Client(sys.argv[3:]) as remote:
    y = remote.run("layers", {"x": values})["y"]
    assert type(y).__name__ == ("memoryview" if client.np is None else "ndarray")
    assert tuple(y.shape) == (1, 3, 32), y.shape
    try:
        remote.run("layers", {"x": b"bytes"})
    except (client.RemoteError, client.ArraysError) as error:
        print("refused:", error)
print("%d.%d" % sys.version_info[:2])
"""


def old_python(version: str) -> str | None:
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    return found if subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0 else None


@pytest.mark.parametrize("version", ["3.8", "this one"])
def test_the_client_alone_in_another_python_without_numpy(version: str, release: Path, tmp_path: Path) -> None:
    interpreter = sys.executable if version == "this one" else old_python(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here")
    shutil.copy(CLIENT, tmp_path)
    (tmp_path / "alone.py").write_text(ALONE)
    arguments = [str(tmp_path), "--no-numpy", *command(release)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [interpreter, str(tmp_path / "alone.py"), *arguments], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EINVAL])  # EINVAL is what Windows says of a closed pipe
def test_a_client_that_is_gone_is_no_traceback(number: int, release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(number, os.strerror(number))

    ended: list[int] = []

    def end(status: int) -> None:
        ended.append(status)
        raise SystemExit(status)

    monkeypatch.setattr("pipeline.qnn_release.serve._streams", lambda: (io.BytesIO(), Closed()))
    monkeypatch.setattr("pipeline.qnn_release.serve.signal.signal", lambda *_: None)
    monkeypatch.setattr("pipeline.qnn_release.serve.os._exit", end)
    with pytest.raises(SystemExit):
        serve.main([str(release), "--device", "cpu"])
    assert ended == [0]
