"""A real OpenSSH server on this machine, with keys of its own; it takes one key, and no password."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HOST = "device"
"""What the server is called in the client's configuration."""
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
_WAIT_S = 20.0


@dataclass(frozen=True)
class SshServer:
    """The client's configuration for it, and the files that decide who trusts whom."""

    config: Path
    known_hosts: Path
    authorized_keys: Path


def find() -> Path:
    """The server's program; installed where that can be done in silence, else the test is skipped and says so."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *_PLACES))
    found = shutil.which("sshd", path=path)
    if found is None and shutil.which("apt-get") and getattr(os, "geteuid", lambda: 1)() == 0:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openssh-server", "openssh-client"]
        subprocess.run(command, capture_output=True, check=False, timeout=300)
        found = shutil.which("sshd", path=path)
    if found is None or shutil.which("sftp") is None:
        pytest.skip("no sshd here: apt-get install openssh-server openssh-client")
    return Path(found)


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[SshServer]:
    """A server that listens on this machine alone, until the context is left."""
    sshd = find()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    authorized, known, config = folder / "authorized_keys", folder / "known_hosts", folder / "client"
    shutil.copy(folder / "user.pub", authorized)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known.write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text('utf-8')}", "utf-8")
    config.write_text(
        f"Host {HOST}\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n",
        "utf-8",
    )
    (folder / "server").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder / 'host'}\nPidFile none\n"
        f"AuthorizedKeysFile {authorized}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n",
        "utf-8",
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)  # where it separates privileges
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([str(sshd), "-D", "-e", "-f", str(folder / "server")], stdout=log, stderr=log)
    try:
        _await(port, server, folder / "server.log")
        yield SshServer(config, known, authorized)
    finally:
        server.terminate()
        server.wait(timeout=_WAIT_S)


def _await(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text("utf-8")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen: {log.read_text('utf-8')}")
