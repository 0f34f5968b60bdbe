"""From a model's configuration to its steps. Pure: looks at no file and imports nothing heavy.

The list of steps depends on the configuration alone. What a model's files say (which length axes a component has)
only narrows a step's parameters later, in :mod:`pipeline.resolve`; two steps that turn out to be equal share a key
and the second is restored from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import (
    Bucket,
    Fp16,
    ModelConfig,
    NpzReader,
    PythonFunction,
    PythonReader,
    Quantization,
    Reader,
    RecordReader,
    Target,
    TextReader,
)
from pipeline.model import Json
from pipeline.qnn import catalog

# In the order they run. The docs are what `doit list` prints.
STAGES: Mapping[str, str] = {
    "fetch": "Download a model's files from the hub, or take them from a folder.",
    "ingest": "Check one component and put its weights into one file.",
    "shape": "Fix every dimension of a component for one bucket.",
    "rewrite": "Rewrite what HTP would compute wrongly or not at all.",
    "samples": "Turn the calibration set into input arrays.",
    "calibrate": "Measure the range of every activation over all buckets.",
    "quantize": "Make the QDQ model of one bucket.",
    "verify": "Measure the QDQ model of one bucket against the original on held-out samples.",
    "context": "Compile one bucket for one target: context model and binary.",
}


@dataclass(frozen=True)
class Input:
    """An upstream step and the role its output plays; `{bucket}` in the role stands for the projected bucket."""

    role: str
    step: str
    bucket: Bucket | None = None


@dataclass(frozen=True)
class Step:
    """One unit of work, named by `id`, e.g. `context:minilm/encoder/128/sm8650`."""

    stage: str
    name: str
    config: ModelConfig
    params: Mapping[str, Json] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    scripts: Mapping[str, Path] = field(default_factory=dict)
    component: str | None = None
    bucket: Bucket | None = None
    target: Target | None = None
    ingests: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name the user types."""
        return f"{self.stage}:{self.name}"

    @property
    def after(self) -> tuple[str, ...]:
        """Ids of all steps that must be done first."""
        return tuple(dict.fromkeys((*(given.step for given in self.inputs), *self.ingests.values())))


def plan(config: ModelConfig) -> tuple[Step, ...]:
    """All steps of a model, each after the ones it needs."""
    return tuple(_Planner(config).steps())


class _Planner:
    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._name = config.name
        self._ingests = {name: f"ingest:{self._name}/{name}" for name in config.components}

    def steps(self) -> Iterator[Step]:
        config = self._config
        yield Step("fetch", self._name, config)
        for name, component in config.components.items():
            fetched = (Input("fetch", f"fetch:{self._name}"),)
            yield Step("ingest", f"{self._name}/{name}", config, {"file": component.file}, fetched, component=name)
        if config.calibration:
            yield self._samples("calibration", config.calibration)
        if config.verification:
            yield self._samples("verification", config.verification.samples)
        for name in config.components:
            yield from self._component(name)

    def _samples(self, purpose: str, reader: Reader) -> Step:
        ingests = (Input(f"ingest/{name}", step) for name, step in self._ingests.items())
        path, function = _content(reader)
        return Step(
            "samples",
            f"{self._name}/{purpose}",
            self._config,
            {"calibration": _reader_params(reader)},
            (Input("fetch", f"fetch:{self._name}"), *ingests),
            {"samples": path} if path else {},
            {"code": function.file} if function else {},
            ingests=self._ingests,
        )

    def _component(self, component: str) -> Iterator[Step]:
        quantization = self._config.components[component].quantization
        for bucket in self._config.buckets:
            yield self._step("shape", component, bucket, inputs=(Input("ingest", self._ingests[component]),))
            yield self._step("rewrite", component, bucket, inputs=(self._of("shape", component, bucket),))
        if isinstance(quantization, Quantization):
            yield self._calibrate(component, quantization)
            for bucket in self._config.buckets:
                yield self._quantize(component, bucket, quantization)
        stage = "rewrite" if isinstance(quantization, Fp16) else "quantize"
        for bucket in self._config.buckets:
            for target in self._config.targets:
                yield self._context(component, bucket, target, stage)
            if self._config.verification:
                yield self._verify(component, bucket, stage)

    def _calibrate(self, component: str, quantization: Quantization) -> Step:
        rewritten = (
            Input("rewrite/{bucket}", f"rewrite:{self._name}/{component}/{bucket.name}", bucket)
            for bucket in self._config.buckets
        )
        return Step(
            "calibrate",
            f"{self._name}/{component}",
            self._config,
            {"component": component, "method": quantization.method, "padding": self._padding(component)},
            (
                Input("ingest", self._ingests[component]),
                Input("samples", f"samples:{self._name}/calibration"),
                *rewritten,
            ),
            component=component,
            ingests=self._ingests,
        )

    def _quantize(self, component: str, bucket: Bucket, quantization: Quantization) -> Step:
        params: dict[str, Json] = {
            "component": component,
            "activations": quantization.activations,
            "weights": quantization.weights,
            "per_channel": quantization.per_channel,
        }
        calibrated = Input("calibrate", f"calibrate:{self._name}/{component}")
        inputs = (self._of("rewrite", component, bucket), calibrated)
        return self._step("quantize", component, bucket, params, inputs)

    def _context(self, component: str, bucket: Bucket, target: Target, stage: str) -> Step:
        soc = catalog.resolve(target.soc)
        params: dict[str, Json] = {
            "component": component,
            "soc_model": soc.soc_model,
            "htp_arch": soc.htp_arch,
            "vtcm_mb": target.vtcm_mb,
        }
        return Step(
            "context",
            f"{self._name}/{component}/{bucket.name}/{target.soc}",
            self._config,
            params,
            (self._of(stage, component, bucket, role="model"),),
            component=component,
            bucket=bucket,
            target=target,
            ingests=self._ingests,
        )

    def _verify(self, component: str, bucket: Bucket, stage: str) -> Step:
        verification = self._config.verification
        assert verification is not None
        params: dict[str, Json] = {
            "component": component,
            "padding": self._padding(component),
            "score": verification.score.function if verification.score else None,
        }
        scripts = {"code": verification.score.file} if verification.score else {}
        inputs = (
            Input("ingest", self._ingests[component]),
            Input("samples", f"samples:{self._name}/verification"),
            self._of("shape", component, bucket),
            self._of("rewrite", component, bucket),
            *((self._of("quantize", component, bucket),) if stage == "quantize" else ()),
        )
        return self._step("verify", component, bucket, params, inputs, scripts)

    def _step(
        self,
        stage: str,
        component: str,
        bucket: Bucket,
        params: Mapping[str, Json] | None = None,
        inputs: tuple[Input, ...] = (),
        scripts: Mapping[str, Path] | None = None,
    ) -> Step:
        return Step(
            stage,
            f"{self._name}/{component}/{bucket.name}",
            self._config,
            params or {},
            inputs,
            scripts=scripts or {},
            component=component,
            bucket=bucket,
            ingests=self._ingests,
        )

    def _of(self, stage: str, component: str, bucket: Bucket, role: str | None = None) -> Input:
        return Input(role or stage, f"{stage}:{self._name}/{component}/{bucket.name}", bucket)

    def _padding(self, component: str) -> dict[str, Json]:
        return dict(self._config.components[component].padding)


def _content(reader: Reader) -> tuple[Path | None, PythonFunction | None]:
    """What the reader reads on this machine: a file or folder, and a function."""
    match reader:
        case TextReader():
            return reader.file, None
        case NpzReader():
            return reader.folder, None
        case PythonReader() | RecordReader():
            return reader.file, reader.run


def _reader_params(reader: Reader) -> dict[str, Json]:
    params: dict[str, Json] = {"reader": reader.reader, "max_samples": reader.max_samples}
    match reader:
        case TextReader():
            return params | {"tokenizer": reader.tokenizer, "max_length": reader.max_length}
        case NpzReader():
            return params
        case PythonReader() | RecordReader():
            return params | {"run": reader.run.function}
