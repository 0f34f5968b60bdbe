"""The long run: `python -m tests.fuzz --seconds 600 [--readers wire,model] [--seed 1] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.readers import READERS
from tests.fuzz.run import Fuzzer, corpus


def main(arguments: list[str]) -> int:
    """Fuzz each reader in turn until the time is up; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Change inputs until a reader breaks.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--readers", default=",".join(READERS), help="names, separated by commas")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, help="where inputs that break a reader are kept")
    given = parser.parse_args(arguments)
    names = given.readers.split(",")
    out = given.out or Path(tempfile.mkdtemp(prefix="fuzz-"))
    fuzzers = {name: Fuzzer(name, READERS[name], corpus(name), out / name) for name in names}
    for fuzzer in fuzzers.values():
        fuzzer.replay()
    ends, number = time.monotonic() + given.seconds, 0
    while time.monotonic() < ends:
        for name in names:
            fuzzers[name].batch(seed=given.seed + number, seconds=min(5.0, ends - time.monotonic()))
        number += 1
    for name, fuzzer in fuzzers.items():
        print(f"{name}: {fuzzer.tried} inputs, {fuzzer.refused} refused, {len(fuzzer.found)} ways to break it")
        for what, path in fuzzer.found.items():
            print(f"  {path}\n    {what}")
    return int(any(fuzzer.found for fuzzer in fuzzers.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
