"""Readers of foreign bytes return or raise a PipelineError: for everything that is kept, and for what is tried anew."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutated
from tests.fuzz.readers import READERS, Reader
from tests.fuzz.run import CORPUS, Fuzzer, attempt, corpus
from tests.support.project import ROOT

KEPT: Mapping[str, Mapping[str, bytes]] = {name: corpus(name) for name in READERS}
FORKS = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
CASES = [(name, file) for name, files in KEPT.items() for file in files]


def test_every_reader_has_a_corpus_and_it_is_small() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(READERS)
    assert all(KEPT.values())
    assert all(sum(map(len, files.values())) < 60_000 for files in KEPT.values())


@pytest.mark.parametrize(("name", "file"), [case for case in CASES if not READERS[case[0]].native])
def test_what_is_kept_is_read_or_refused(name: str, file: str) -> None:
    assert attempt(READERS[name], KEPT[name][file]) in ("read", "refused")


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False), at=st.integers(0, 1000))
@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if not reader.native])
def test_what_is_changed_is_read_or_refused(name: str, random: Random, at: int) -> None:
    seeds = list(KEPT[name].values())
    data = mutated(seeds[at % len(seeds)], seeds, READERS[name].kind, random)
    assert attempt(READERS[name], data) in ("read", "refused")


def _crash(data: bytes, _: Path) -> None:
    if len(data) > 3 and data[0] & 1:
        import ctypes

        ctypes.string_at(0)


def _raise(data: bytes, _: Path) -> None:
    if len(data) > 3:
        raise KeyError("found")


BROKEN = {"crash": (_crash, "exit -11"), "raise": (_raise, "KeyError at ?: 'found'")}


def fuzz_broken(name: str, out: str) -> None:
    """Fuzz a reader that breaks until that is found."""
    read, what = BROKEN[name]
    fuzzer = Fuzzer("broken", Reader(read, "bytes"), {"seed": b"seed"}, Path(out))
    seed = 0
    while not fuzzer.found:
        fuzzer.batch(seed, 0.2)
        seed += 1
    assert [*fuzzer.found] == [what]
    assert len(fuzzer.found[what].read_bytes()) > 3


@FORKS
@pytest.mark.parametrize("name", BROKEN)
def test_a_reader_that_breaks_is_found(name: str, tmp_path: Path) -> None:
    code = f"from tests.test_fuzz import fuzz_broken; fuzz_broken({name!r}, {str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@FORKS
def test_what_is_kept_for_native_readers_is_read_or_refused(tmp_path: Path) -> None:
    """By the command for long runs, which first replays what is kept."""
    native = [name for name, reader in READERS.items() if reader.native]
    options = ["--seconds", "0", "--readers", ",".join(native), "--out", str(tmp_path)]
    command = [sys.executable, "-m", "tests.fuzz", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"^(\w+): (\d+) inputs, ", done.stdout, re.MULTILINE)
    assert {name: int(tried) for name, tried in told} == {name: len(KEPT[name]) for name in native}
