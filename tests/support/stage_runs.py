"""Running single stages on folders, without a plan or a store."""

from __future__ import annotations

import hashlib
import importlib
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline import progress
from pipeline.contracts import quantize, verify
from pipeline.contracts.codec import Contract
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.graph.files.model_file import MODEL, save_graph
from pipeline.inputs.samples.request import Call, Sample
from pipeline.inputs.samples.sample_set import SampleSetWriter
from pipeline.model import FileEntry, Json, Manifest, StageInput, StageRequest, StageResult
from pipeline.stages import context
from tests.support.fresh import fresh

X_ELITE = HtpTarget(60, 73, 8)
W8A16 = Scheme("uint16", "uint8", per_channel=True)
Arrays = Mapping[str, NDArray[Any]]


def run_stage(
    stage: str,
    out: Path,
    params: Contract | Mapping[str, Json],
    inputs: Mapping[str, StageInput],
    files: Mapping[str, Path] | None = None,
) -> StageInput:
    """Run a stage in this process; its output, reused files included, as a later stage sees it."""
    out.mkdir(parents=True)
    given_params = params.to_json() if isinstance(params, Contract) else params
    run: Any = importlib.import_module(f"pipeline.stages.{stage}").run
    result: StageResult = run(StageRequest(f"{stage}:test", given_params, inputs, files or {}, out))
    for name, (role, source) in result.reused.items():
        shutil.copyfile(inputs[role].folder / source, out / name)
    return given(out, result.facts)


def given(folder: Path, facts: Mapping[str, Json]) -> StageInput:
    """A folder as the output of an upstream step."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    entries = {path.relative_to(folder).as_posix(): _entry(path) for path in paths}
    return StageInput(folder, entries, facts)


def part(output: StageInput, bucket: str) -> StageInput:
    """What a step made for one bucket, as a later stage sees it."""
    narrowed = Manifest("", "", output.files, output.facts).part(bucket)
    assert narrowed is not None
    folder = output.folder / "parts" / bucket
    folder.mkdir(parents=True, exist_ok=True)
    named = {entry.sha256: name for name, entry in output.files.items()}
    for name, entry in narrowed.files.items():
        shutil.copyfile(output.folder / named[entry.sha256], folder / name)
    return StageInput(folder, narrowed.files, narrowed.facts)


class Component:
    """One component taken through ingest, shape and rewrite for every bucket, and the steps that follow on demand."""

    def __init__(
        self, root: Path, model: ModelProto, buckets: Mapping[str, Mapping[str, int]], padding: Json = None
    ) -> None:
        self._root = root
        self._count = 0
        self._common: dict[str, Json] = {
            "component": "net",
            "buckets": {name: dict(axes) for name, axes in buckets.items()},
            "padding": padding or {},
        }
        self.buckets = buckets
        source = self._folder("fetch")
        source.mkdir(parents=True)
        save_graph(model, source / MODEL)
        self.ingest = run_stage("ingest", self._folder("ingest"), {"file": MODEL}, {"fetch": given(source, {})})
        self.shape = {name: self._shape(axes) for name, axes in buckets.items()}
        self.rewrite = {
            name: run_stage("rewrite", self._folder("rewrite"), {}, {"shape": shape})
            for name, shape in self.shape.items()
        }

    def samples(self, calls: Sequence[Arrays], labels: Sequence[str] = ()) -> StageInput:
        """The output of a samples step with these calls."""
        folder = self._folder("samples")
        folder.mkdir()
        writer = SampleSetWriter(folder)
        for number, arrays in enumerate(calls):
            label = labels[number] if labels else None
            writer.add(Call("net", arrays, Sample(number, f"samples:{number + 1}", f"text {number + 1}", label)))
        writer.finish()
        return given(folder, {"count": {"net": len(calls)}})

    def calibrate(self, calls: Sequence[Arrays], **method: Json) -> StageInput:
        """The ranges over these calls; `method` says how they are chosen if not by ``method="minmax"``."""
        rewritten = {f"rewrite/{name}": given for name, given in self.rewrite.items()}
        inputs = {"ingest": self.ingest, "samples": self.samples(calls), **rewritten}
        return run_stage(
            "calibrate",
            self._folder("calibrate"),
            {**self._common, "part": "all", "method": "minmax", **method},
            inputs,
        )

    def quantize(
        self,
        bucket: str,
        ranges: StageInput,
        *,
        activations: str = "uint16",
        weights: str = "uint8",
        per_channel: bool = True,
        rules: Sequence[Rule] = (),
        wide_products: bool = False,
        block: int | None = None,
    ) -> StageInput:
        """The QDQ model of one bucket, made without the others."""
        scheme = Scheme(activations, weights, per_channel, wide_products, tuple(rules), block)
        return part(self.quantize_all(ranges, scheme, [bucket]), bucket)

    def correlate(self, calls: Sequence[Arrays]) -> StageInput:
        """How the inputs of weights vary together over these calls."""
        rewritten = {f"rewrite/{name}": given for name, given in self.rewrite.items()}
        inputs = {"ingest": self.ingest, "samples": self.samples(calls), **rewritten}
        return run_stage("correlate", self._folder("correlate"), {**self._common, "part": "all"}, inputs)

    def quantize_all(
        self,
        ranges: StageInput,
        scheme: Scheme = W8A16,
        buckets: Collection[str] | None = None,
        correlations: StageInput | None = None,
    ) -> StageInput:
        """The QDQ models of all buckets, or of some."""
        chosen = {name: self.buckets[name] for name in buckets or self.buckets}
        params = quantize.Params(component="net", buckets=chosen, scheme=scheme)
        inputs = {"calibrate": ranges, **{f"rewrite/{name}": self.rewrite[name] for name in chosen}}
        if correlations is not None:
            inputs["correlate"] = correlations
        return run_stage("quantize", self._folder("quantize"), params, inputs)

    def verify(
        self,
        bucket: str,
        samples: StageInput,
        quantized: StageInput | None = None,
        score: tuple[Path, str] | None = None,
        **judging: Json,
    ) -> StageInput:
        """The accuracy of a bucket on these samples; `score` is a file and a function in it.

        `judging` are the parameters `truth` and `outputs`, where they are not left out.
        """
        params = self._common | {
            "bucket": bucket,
            "axes": {**self.buckets[bucket]},
            "part": "all",
            "score": score[1] if score else None,
            **judging,
        }
        inputs = {
            "ingest": self.ingest,
            "samples": samples,
            "shape": self.shape[bucket],
            "rewrite": self.rewrite[bucket],
            **({"quantize": quantized} if quantized else {}),
        }
        return run_stage("verify", self._folder("verify"), params, inputs, {"code": score[0]} if score else {})

    def context(self, bucket: str, model: StageInput, target: HtpTarget = X_ELITE) -> StageInput:
        """The context of a bucket, compiled in a process of its own."""
        params: dict[str, Json] = {
            "component": "net",
            "buckets": {bucket: {**self.buckets[bucket]}},
            "form": "separate",
            "targets": [asdict(target)],
        }
        out = self._folder("context")
        out.mkdir()
        request = StageRequest("context:test", params, {f"model/{bucket}": model}, {}, out)
        return part(given(out, fresh(context.run, request).facts), bucket)

    def emulate(
        self,
        bucket: str,
        samples: StageInput,
        model: StageInput,
        compiled: StageInput,
        verified: StageInput,
        *,
        max_samples: int | None = 2,
        max_seconds: int = 10,
        score: tuple[Path, str] | None = None,
    ) -> StageInput:
        """The accuracy of a context that was compiled from `model`, on the emulator."""
        params = self._common | {
            "bucket": bucket,
            "axes": {**self.buckets[bucket]},
            "part": "all",
            "score": score[1] if score else None,
            "last": "quantization",
            "max_samples": max_samples,
            "max_seconds": max_seconds,
            "target": asdict(X_ELITE),
        }
        basis = {name: verified.facts[name] for name in verify.Basis.names()}
        inputs = {
            "ingest": self.ingest,
            "samples": samples,
            "model": model,
            "context": compiled,
            "verify": verified,
            f"bucket/{bucket}": StageInput(verified.folder, {}, verify.Basis.from_json(basis).to_json()),
        }
        out = self._folder("emulate") / "out"
        return run_stage("emulate", out, params, inputs, {"code": score[0]} if score else {})

    def _shape(self, axes: Mapping[str, int]) -> StageInput:
        params: dict[str, Json] = {"axes": dict(axes), "fixed": {"batch": 1}}
        return run_stage("shape", self._folder("shape"), params, {"ingest": self.ingest})

    def _folder(self, stage: str) -> Path:
        self._count += 1
        while (folder := self._root / f"{self._count:02d}-{stage}").exists():  # a copy of this made it
            self._count += 1
        return folder


def _entry(path: Path) -> FileEntry:
    return FileEntry(hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


def heard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that steps tell of how far they are, from now on; a worker's file would have the last line alone."""
    said: list[str] = []
    write = progress._Line.write

    def listening(line: progress._Line, text: str) -> None:
        write(line, text)
        said.append(progress.told(folder / "now"))

    monkeypatch.setenv(progress.VARIABLE, str(folder / "now"))
    monkeypatch.setattr(progress._Line, "write", listening)
    return said
