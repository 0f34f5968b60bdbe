"""From an archive to the figures that the build measured, by way of an environment that has only the runtime.

    python -m tests.release_walk ARCHIVE MODEL.onnx TEXTS [--lengths 1-128] [--targets sm8650]

does by hand, for a model that is too large for CI, what test_release_walk.py does for the demo. MODEL is the float
model that the release was made of, TEXTS the held-out file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.contracts.measures import Measured, Subject
from pipeline.contracts.target import HtpTarget
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.cpu import load_session
from pipeline.qnn.child import run_apart
from tests.support.environments import python_with_runtime
from tests.support.project import ROOT

NEEDS = ("numpy", "onnxruntime", "onnxruntime-qnn")
"""All that the runtime needs, as docs/runtime.md says."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Alone:
    """A release, run by the Python of such an environment; `work` is for caches and arrays."""

    python: Path
    release: Path
    component: str
    work: Path

    def run(self, calls: Sequence[Arrays], **options: str) -> tuple[list[Arrays], dict[str, Any]]:
        """The outputs of each call in a new process, opened with these options; and what that process said."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            place = Path(folder)
            given: Any = {f"{at}/{name}": array for at, call in enumerate(calls) for name, array in call.items()}
            np.savez(place / "in.npz", **given)
            job = {
                "release": str(self.release),
                "component": self.component,
                "open": {"cache": str(self.work / "cache"), "fallback": "refuse", **options},
                "inputs": str(place / "in.npz"),
                "outputs": str(place / "out.npz"),
                "answer": str(place / "answer.json"),
                "files": ["tokenizer.json"],
            }
            (place / "job.json").write_text(json.dumps(job), "utf-8")
            program = ROOT / "tests" / "support" / "release_alone.py"
            command = [str(self.python), "-I", str(program), str(place / "job.json")]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, encoding="utf-8", check=False)
            assert done.returncode == 0, done.stderr
            outputs: list[Arrays] = [{} for _ in calls]
            with np.load(place / "out.npz") as made:
                for key in made.files:
                    at, name = key.split("/", 1)
                    outputs[int(at)][name] = made[key]
            said: dict[str, Any] = json.loads((place / "answer.json").read_text("utf-8"))
            return outputs, said


@dataclass(frozen=True)
class Walk:
    """An archive with one component that takes tokens, along one axis; `work` is a folder for what is unpacked."""

    archive: Path
    work: Path

    @cached_property
    def index(self) -> dict[str, Any]:
        """Its release.json."""
        with zipfile.ZipFile(self.archive) as opened:
            found: dict[str, Any] = json.loads(opened.read("release.json"))
        return found

    @property
    def component(self) -> str:
        """The name of its component."""
        (name,) = self.index["components"]
        return str(name)

    @property
    def buckets(self) -> dict[int, dict[str, Any]]:
        """Its buckets by their length."""
        return {
            next(iter(bucket["axes"].values())): bucket
            for bucket in self.index["components"][self.component]["buckets"]
        }

    @cached_property
    def folder(self) -> Path:
        """Where another program than ours unpacks it."""
        with zipfile.ZipFile(self.archive) as opened:
            opened.extractall(self.work / "by-zipfile")
        return self.work / "by-zipfile"

    def only(self, length: int) -> Path:
        """A release folder that has but one of the buckets."""
        folder = self.work / f"only-{length}"
        shutil.copytree(self.folder, folder)
        index = json.loads(json.dumps(self.index))
        index["components"][self.component]["buckets"] = [self.buckets[length]]
        (folder / "release.json").write_text(json.dumps(index), "utf-8")
        return folder

    def texts(self, file: Path) -> dict[str, Arrays]:
        """The lines of a held-out file by the names that reports give them, as inputs: by the release's tokenizer."""
        tokenizer: Tokenizer = Tokenizer.from_file(str(self.folder / "files" / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(max(self.buckets))
        lines = file.read_text("utf-8").splitlines()
        return {
            f"{file.name}:{number}": self.inputs(tokenizer.encode(line.split("\t")[-1]).ids)
            for number, line in enumerate(lines, 1)
            if line.strip()
        }

    def inputs(self, ids: Iterable[int]) -> Arrays:
        """These tokens as inputs of the component."""
        row = np.array([*ids], np.int64)[None]
        made = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        return {given["name"]: made[given["name"]] for given in self.index["components"][self.component]["inputs"]}

    def of_lengths(self, lengths: Iterable[int], texts: Mapping[str, Arrays]) -> list[Arrays]:
        """Inputs of each of these lengths, cut out of the texts."""
        ids = np.concatenate([inputs["input_ids"][0] for inputs in texts.values()])
        return [self.inputs(ids[length : 2 * length]) for length in lengths]

    def bare(self, calls: Sequence[Arrays], target: str) -> list[Arrays]:
        """What sessions give that the build's own code makes of the same contexts, for inputs padded here."""
        chip = next(each for each in self.index["targets"] if each["name"] == target)
        told = HtpTarget(chip["soc_model"], chip["htp_arch"], chip["vtcm_mb"])
        made: list[Arrays] = [{} for _ in calls]
        for size, bucket in self.buckets.items():
            mine = [at for at, call in enumerate(calls) if self.size_for(call) == size]
            if not mine:
                continue
            padded = [
                {name: np.pad(array, ((0, 0), (0, size - array.shape[1]))) for name, array in calls[at].items()}
                for at in mine
            ]
            model = self.folder / bucket["contexts"][target]["model"]
            with tempfile.TemporaryDirectory(dir=self.work) as work:
                results = run_apart(model.parent, model.name, told, padded, Path(work))
            outputs = self.index["components"][self.component]["outputs"]
            for at, result in zip(mine, results, strict=True):
                length = calls[at]["input_ids"].shape[1]
                for output, array in zip(outputs, result, strict=True):
                    cut = tuple(slice(length) if "axis" in dim else slice(dim["size"]) for dim in output["dims"])
                    made[at][output["name"]] = array[cut]
        return made

    def size_for(self, call: Arrays) -> int:
        """The bucket for an input."""
        return min(size for size in self.buckets if size >= call["input_ids"].shape[1])

    def held_out(self, size: int, texts: Mapping[str, Arrays]) -> dict[str, Arrays]:
        """What a bucket was measured on: its own texts, and as many of the longest others as release.json says."""
        own = {name: call for name, call in texts.items() if self.size_for(call) == size}
        others = [(name, call) for name, call in texts.items() if self.size_for(call) < size]
        others.sort(key=lambda entry: -entry[1]["input_ids"].shape[1])
        return own | dict(others[: self.buckets[size]["verification"]["cpu"]["shorter"]])


def _plain(measured: Measured) -> dict[str, Any]:
    return {label: figures.to_json() for label, figures in measured.items()}


def check_figures(walk: Walk, python: Path, model: Path, texts: Mapping[str, Arrays], target: str) -> dict[int, Any]:
    """Measure anew what release.json says of every bucket, with the outputs of the runtime; the figures by bucket.

    Raises:
        AssertionError: one differs.
    """
    original = load_session(model)
    found = {}
    for size, bucket in walk.buckets.items():
        calls = walk.held_out(size, texts)
        alone = Alone(python, walk.archive, walk.component, walk.work)
        if bucket["verification"]["cpu"]["shorter"]:  # in use, those would go to smaller buckets
            alone = Alone(python, walk.only(size), walk.component, walk.work)
        names, feeds = [*calls], [*calls.values()]
        outputs = [output.name for output in original.get_outputs()]
        truth = [dict(zip(outputs, original.run(None, feed), strict=True)) for feed in feeds]
        qdq, _ = alone.run(feeds, device="cpu")
        chip, said = alone.run(feeds, target=target)
        assert said["report"]["device"] == "emulator"
        measured = bucket["contexts"][target]["verification"]
        assert measured["emulated"] == "context"
        assert measured["samples"] == measured["of"] == len(names)
        subjects = {label: Subject.from_json(raw) for label, raw in measured["subjects"].items()}
        assert bucket["verification"]["cpu"]["outputs"] == _plain(measure(subjects, names, truth, qdq))
        assert measured["outputs"] == _plain(measure(subjects, names, truth, chip))
        assert measured["rungs"]["compile"] == _plain(measure(subjects, names, qdq, chip))
        found[size] = measured["outputs"]
    return found


def check_lengths(
    walk: Walk, python: Path, texts: Mapping[str, Arrays], lengths: Sequence[int], target: str
) -> dict[str, Any]:
    """Run these lengths as an application would, and compare every element with bare sessions; the report.

    Raises:
        AssertionError: something differs.
    """
    calls = walk.of_lengths(lengths, texts)
    assert [call["input_ids"].shape[1] for call in calls] == [*lengths]
    ours, said = Alone(python, walk.archive, walk.component, walk.work).run(calls, target=target)
    for length, mine, other in zip(lengths, ours, walk.bare(calls, target), strict=True):
        assert mine.keys() == other.keys()
        for name, array in mine.items():
            assert np.array_equal(array, other[name]), f"{name} at length {length}"
    runs = {session["axes"][next(iter(session["axes"]))]: session["runs"] for session in said["report"]["sessions"]}
    assert runs == {size: sum(walk.size_for(call) == size for call in calls) for size in walk.buckets}
    assert said["foreign"] == []
    return said


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.release_walk", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--lengths", default="1-128", help="first-last")
    parser.add_argument("--targets", nargs="*", help="all when left out")
    given = parser.parse_args(arguments)
    first, last = map(int, given.lengths.split("-"))
    with tempfile.TemporaryDirectory() as folder:
        python = python_with_runtime(NEEDS, Path(folder) / "environment")
        walk = Walk(given.archive.resolve(), Path(folder))
        texts = walk.texts(given.texts)
        for target in given.targets or [each["name"] for each in walk.index["targets"]]:
            started = time.monotonic()
            said = check_lengths(walk, python, texts, range(first, last + 1), target)
            took = time.monotonic() - started
            print(f"{target}: lengths {first} to {last} as bare sessions, bit for bit, in {took:.0f} s", flush=True)
            print(f"  packages: {', '.join(said['packages'])}", flush=True)
            for size, figures in check_figures(walk, python, given.model, texts, target).items():
                print(f"{target}, bucket {size}: as release.json says: {json.dumps(figures)}", flush=True)
            shutil.rmtree(walk.work / "cache")
            for path in walk.work.glob("only-*"):
                shutil.rmtree(path)


if __name__ == "__main__":
    main()
