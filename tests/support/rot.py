"""Bits that a disk flips."""

from __future__ import annotations

import os
from pathlib import Path


def rot(path: Path) -> None:
    """Flip a bit as a disk does it: neither size nor time tell."""
    times, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
