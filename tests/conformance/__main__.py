"""`python -m tests.conformance [FOLDER] [--only OPERATOR] [--budget MINUTES]`: the sweep, and its page in docs/."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import psutil

from tests.conformance import elementwise, from_onnx, joined, layers, movers, reductions
from tests.conformance.cases import Case
from tests.conformance.page import PAGE, write
from tests.conformance.sweep import Results, sweep

_SOURCES = {
    "elementwise": elementwise.cases,
    "reductions": reductions.cases,
    "layers": layers.cases,
    "movers": movers.cases,
    "joined": joined.cases,
    "onnx": from_onnx.cases,
}


def main() -> None:
    """Run what has no outcome yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".build/conformance"))
    parser.add_argument("--only", action="append", default=[], metavar="OPERATOR")
    parser.add_argument("--format", action="append", default=[])
    parser.add_argument("--source", action="append", default=[], choices=[*_SOURCES])
    parser.add_argument("--budget", type=float, default=60, metavar="MINUTES")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    progress = _quieten(folder / "log.txt")

    def wanted(case: Case) -> bool:
        return (not arguments.only or case.operator in arguments.only) and (
            not arguments.format or case.number_format in arguments.format
        )

    def say(text: str) -> None:
        os.write(progress, f"{text}\n".encode())

    left = dict.fromkeys(_SOURCES, 0)
    began = time.monotonic()
    end = began + arguments.budget * 60
    for name, source in _SOURCES.items():
        if not arguments.source or name in arguments.source:
            left[name] = sweep(filter(wanted, source()), folder, end - time.monotonic(), say)
            say(f"{name}: {left[name]} cases left" if left[name] else f"{name}: done")
    say(f"took {time.monotonic() - began:.0f} s, {_cpu_s():.0f} s of CPU")
    if not (arguments.only or arguments.format or arguments.source):
        write([*Results(folder).read().values()], left, time.strftime("%Y-%m-%d"))
        say(f"wrote {PAGE}")


def _cpu_s() -> float:
    """What this process and those that it started have computed so far."""
    used = psutil.Process().cpu_times()
    return used.user + used.system + used.children_user + used.children_system


def _quieten(log: Path) -> int:
    """Send what libraries write to a file; returns a descriptor of what standard output was."""
    progress = os.dup(1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    return progress


if __name__ == "__main__":
    main()
