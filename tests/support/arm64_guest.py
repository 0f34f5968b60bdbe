"""Process 1 of the namespaces in which :mod:`tests.arm64` runs something: `python arm64_guest.py JSON`.

All that is mounted is mounted in a mount namespace of our own, and ends with the last process in it. Our standard input
ends when whoever started us does, whatever ended it: then we end, and the kernel kills every process of the namespace.
Linux only; needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

BINFMT = Path("/proc/sys/fs/binfmt_misc")
# Of the header of an ELF file: 64 bits, little-endian, an executable or shared object, for machine 183 (AArch64).
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_DEVICES = ("null", "zero", "full", "random", "urandom")


def registration(qemu: str) -> str:
    """The line by which the kernel runs ARM64 executables with qemu, from any root; see its binfmt-misc.rst."""
    return f":qemu-aarch64:M::{_MAGIC}:{_MASK}:{qemu}:F"


def main(given: str) -> int:
    """Run a command in a root; its exit status."""
    asked = json.loads(given)  # root, folder in it, command, environ, qemu: to be registered, or empty
    threading.Thread(target=_end_with_whoever_started_us, daemon=True).start()
    root = Path(asked["root"])
    if asked["qemu"]:
        _run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)])
        (BINFMT / "register").write_text(registration(asked["qemu"]), "ascii")
    if root != Path("/"):
        _prepare(root)

    def enter() -> None:
        os.chroot(root)
        os.chdir(asked["folder"])

    try:
        started = subprocess.Popen(
            asked["command"], env=asked["environ"], stdin=subprocess.DEVNULL, preexec_fn=enter, start_new_session=True
        )
    except FileNotFoundError as error:
        print(f"error: there is no {error.filename} in {root}", file=sys.stderr)
        return 127
    return _waited(started.pid)


def _prepare(root: Path) -> None:
    """Mount what programs expect. /sys is left out: with it, `import onnxruntime` crashes under qemu."""
    _run(["mount", "-t", "proc", "proc", str(root / "proc")])
    _run(["mount", "-t", "tmpfs", "tmpfs", str(root / "dev")])
    for name in _DEVICES:
        (root / "dev" / name).touch()
        _run(["mount", "--bind", f"/dev/{name}", str(root / "dev" / name)])
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        (root / "dev" / name).symlink_to(f"/proc/self/fd{target}")
    (root / "dev" / "shm").mkdir(mode=0o1777)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _waited(child: int) -> int:
    """The exit status of a child; meanwhile, what orphans leave is taken away, as process 1 has to."""
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_with_whoever_started_us() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
