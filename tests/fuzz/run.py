"""Trying inputs on a reader in a process that may end, hang or grow; the input that it was at is written down."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline.errors import PipelineError
from tests.fuzz.mutate import mutated
from tests.fuzz.readers import Reader

CORPUS = Path(__file__).parent / "corpus"
LONGEST_S = 40
"""Seconds for one input."""
MEMORY_BYTES = 6 << 30
"""Address space of the process, libraries included."""
_LARGEST_KEPT = 1 << 13


def corpus(name: str) -> Mapping[str, bytes]:
    """The inputs that are kept for a reader, by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


def attempt(reader: Reader, data: bytes) -> str:
    """What a reader makes of an input: `read` or `refused`. Any other exception goes through."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        reader.read(data, folder)
        return "read"
    except PipelineError:
        return "refused"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Fuzzer:
    """Inputs for one reader, made from its corpus, and what they broke. Needs `fork`."""

    def __init__(self, name: str, reader: Reader, seeds: Mapping[str, bytes], out: Path) -> None:
        self.name = name
        self.tried = 0
        self.refused = 0
        self.found: dict[str, Path] = {}
        self._reader = reader
        self._seeds = list(seeds.values())
        self._out = out

    def batch(self, seed: int, seconds: float) -> None:
        """Try as many inputs as there is time for."""
        ends, step = time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            step += 1
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                self._forked(self._changed(f"{self.name}/{seed}/{step}"), Path(folder), ends)

    def replay(self) -> None:
        """Try the inputs of the corpus as they are."""
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            self._forked(self._seeds, Path(folder), math.inf)

    def _changed(self, seed: str) -> Iterator[bytes]:
        chosen, pool = random.Random(seed), list(self._seeds)
        while True:
            data = mutated(chosen.choice(pool), self._seeds, self._reader.kind, chosen)
            yield data
            if len(data) <= _LARGEST_KEPT and chosen.random() < 0.02:
                pool.append(data)  # changes of changes lead further in

    def _forked(self, inputs: Iterable[bytes], folder: Path, ends: float) -> None:
        assert sys.platform != "win32"
        child = os.fork()
        if child == 0:
            try:
                _child(self._reader, inputs, folder, ends)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        counts = (folder / "counts").read_text().split() if (folder / "counts").exists() else ["0", "0"]
        self.tried += int(counts[0])
        self.refused += int(counts[1])
        code = os.waitstatus_to_exitcode(status)
        error = folder / "error"
        if error.exists() or code:
            what = json.loads(error.read_text()) if error.exists() else f"exit {code}"
            self._keep(what, (folder / "input").read_bytes())

    def _keep(self, what: str, data: bytes) -> None:
        if what not in self.found:
            self._out.mkdir(parents=True, exist_ok=True)
            path = self._out / hashlib.sha256(data).hexdigest()[:12]
            path.write_bytes(data)
            self.found[what] = path
            print(f"{self.name}: {path}\n  {what}", flush=True)


def _child(reader: Reader, inputs: Iterable[bytes], folder: Path, ends: float) -> None:
    """Try inputs until one breaks the reader, or the time is up; each is written down first."""
    assert sys.platform != "win32"
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # a test runner's would print what is expected here
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    tempfile.tempdir = str(folder)
    tried = refused = 0
    for data in inputs:
        if time.monotonic() > ends:
            break
        (folder / "input").write_bytes(data)
        signal.alarm(LONGEST_S)
        tried += 1
        try:
            accepted = attempt(reader, data) == "read"
        except BaseException as error:
            (folder / "error").write_text(json.dumps(_spelt(error)))
            break
        refused += not accepted
        signal.alarm(0)
        if tried % 20 == 0:
            (folder / "counts").write_text(f"{tried} {refused}")
    (folder / "counts").write_text(f"{tried} {refused}")


def _spelt(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/pipeline/" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:120]}"
