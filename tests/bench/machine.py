"""What the figures were measured on: they mean little elsewhere."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn", "numpy", "tokenizers", "doit")


def describe() -> dict[str, str | int]:
    """The machine: CPU, cores in use, memory in bytes, system, Python."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int((_field(Path("/proc/meminfo"), "MemTotal") or "0").split()[0]) << 10,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of the packages that this environment has."""
    return {name: metadata.version(name) for name in packages}


def use_cores(count: int) -> None:
    """Run on this many cores from now on, child processes too."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def _field(path: Path, name: str) -> str:
    for line in path.read_text("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
