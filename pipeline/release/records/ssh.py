"""Reaches a device with the system's own OpenSSH client: copies files by sftp, which can resume, and runs Python there.

Only hosts with a known key are contacted, and the user is asked for nothing: keys, agents, users and ports are those of
the usual configuration of ssh, or of a given file. No password is on any command line. Commands on the device are
Python with plain words as arguments, so any shell there will do.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pipeline.errors import ConfigError, DeviceError
from pipeline.frozen import dataclass
from pipeline.model import Json
from pipeline.qnn_release.measure import MARK, PART

_HOST = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9_][A-Za-z0-9._-]*")
_PYTHON = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./:~+-]*")
_FOLDER = re.compile(r"(?:[A-Za-z]:)?[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
_OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "PasswordAuthentication=no", "KbdInteractiveAuthentication=no",
    "ForwardAgent=no", "ForwardX11=no", "ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=4",
)  # fmt: skip
_TOLD_LINES = 4
_AWAY = ("Could not resolve hostname", "Connection refused", "timed out", "No route to host", "unreachable")
"""Parts of what ssh says if no device answers."""


@dataclass(frozen=True)
class Ssh:
    """A device: `host` as ssh knows it, the command for `python` there, and the `folder` there that is ours.

    `config` is a configuration file for ssh in place of the user's.
    """

    host: str
    python: str
    folder: str
    config: Path | None = None

    def __post_init__(self) -> None:
        for value, form, what in (
            (self.host, _HOST, "host: a name of your ssh configuration, or user@host"),
            (self.python, _PYTHON, "Python: a command or a path without spaces, such as C:/python/python.exe"),
            (self.folder, _FOLDER, "folder on a device: a path without spaces"),
        ):
            if not form.fullmatch(value):
                raise ConfigError(f"{value!r} is no {what}", where="command line", remedy="doit help device")

    def at(self, folder: str) -> Ssh:
        """This device with another folder."""
        return replace(self, folder=folder)

    def reach(self) -> None:
        """Check that the device can be reached and has a Python, by running it.

        Raises:
            DeviceError: the device is not reached, or has no such Python.
        """
        with tempfile.TemporaryFile() as said:
            process = _started(
                ["ssh", *self._options(), "-T", "--", self.host, f"{self.python} --version"], said.fileno()
            )
            try:
                told, _ = process.communicate()
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                said.seek(0)
                raise self._failed(process.returncode, said.read() + told)

    def ask(self, *words: str) -> Iterator[Mapping[str, Json]]:
        """Run our program on the device with these arguments, and yield its answers.

        The program ends when the iterator is closed, or this process ends.

        Raises:
            DeviceError: the device is not reached, or the program fails.
        """
        command = ["ssh", *self._options(), "-T", "--", self.host, f"{self.python} {' '.join(words)}"]
        with tempfile.TemporaryFile() as said:
            process = _started(command, said.fileno())
            assert process.stdin is not None
            assert process.stdout is not None
            noise = b""
            try:
                for line in process.stdout:
                    if line.startswith(MARK.encode()):
                        yield _told(line[len(MARK) :])
                    else:
                        noise = (noise + line)[-1000:]
                status = process.wait()
            finally:
                process.stdin.close()
                process.kill()
                process.wait()
            if status:
                said.seek(0)
                raise self._failed(status, said.read() + noise)

    def put(self, files: Mapping[str, Path], there: Mapping[str, int]) -> None:
        """Copy files into our folder under temporary names; our program there gives complete ones their final names.

        `there` has the sizes of the files that are there: copying a file of which a part is there is resumed.
        """
        batch = []
        for name, path in files.items():
            part = f"{name}{PART}"
            resumes = 0 < there.get(part, 0) < path.stat().st_size
            batch.append(f'{"reput" if resumes else "put"} "{_local(path)}" "{self.folder}/{part}"')
        self._sftp(batch)

    def put_small(self, files: Mapping[str, Path]) -> None:
        """Make our folder and copy files into it that are too small to be worth resuming."""
        parents = [*reversed(PurePosixPath(self.folder).parents), PurePosixPath(self.folder)]
        folders = [f'-mkdir "{each}"' for each in parents if str(each) not in (".", "/")]
        self._sftp([*folders, *(f'put "{_local(path)}" "{self.folder}/{name}"' for name, path in files.items())])

    def get(self, names: Sequence[str], out: Path) -> None:
        """Copy files of our folder to the folder `out`."""
        self._sftp([f'get "{self.folder}/{name}" "{_local(out / Path(name).name)}"' for name in names])

    def _sftp(self, batch: Sequence[str]) -> None:
        command = ["sftp", *self._options(), "-b", "-", "--", self.host]
        with tempfile.TemporaryFile() as said:
            process = _started(command, said.fileno())
            try:
                process.communicate(("\n".join(batch) + "\n").encode())
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                said.seek(0)
                raise self._failed(process.returncode, said.read())

    def _options(self) -> list[str]:
        config = [] if self.config is None else ["-F", str(self.config)]
        return [*config, *(word for option in _OPTIONS for word in ("-o", option))]

    def _failed(self, status: int, said: bytes) -> DeviceError:
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip() and "mkdir" not in line]
        text = " | ".join(line.strip() for line in lines[-_TOLD_LINES:]) or f"exit status {status}"
        remedy = f"see whether 'ssh {self.host}' works without a question, then the same command again: it goes on"
        if "Host key verification failed" in text or "host key is known" in text:
            remedy = (
                f"compare the fingerprint that 'ssh {self.host}' shows with the device's own, and accept it there once"
            )
        elif "Permission denied" in text:
            remedy = f"give the device your public key (ssh-copy-id {self.host}), or load it into your agent"
        elif "No module named" in text:
            remedy = f"on the device: {self.python} -m pip install numpy onnxruntime onnxruntime-qnn"
        elif "not found" in text or "not recognized" in text or "No such file" in text:
            remedy = f"name the device's Python: doit device --python PATH {self.host} …"
        away = any(sign in text for sign in _AWAY)
        what = "can't be reached" if away else "does not do what it was asked"
        return DeviceError(f"{self.host} {what}", where=self.host, why=text, remedy=remedy)


def _started(command: Sequence[str], errors: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    except FileNotFoundError:
        raise DeviceError(
            f"{command[0]} is not installed on this machine",
            remedy="install OpenSSH's client (Linux: openssh-client; Windows: an optional feature)",
        ) from None


def _told(line: bytes) -> Mapping[str, Json]:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) else {}


def _local(path: Path) -> str:
    """A path of this machine, escaped for quotes in a batch of sftp."""
    return str(path.absolute()).replace("\\", "/").replace('"', '\\"')
