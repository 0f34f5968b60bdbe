"""From a model's configuration to its steps. Pure: looks at no file and imports nothing heavy.

The list of steps depends on the configuration alone. What a model's files say (which length axes a component has)
only narrows a step's parameters later, in :mod:`pipeline.resolve`; two steps that turn out to be equal share a key
and the second is restored from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline import stage_params
from pipeline.config import DEVICE, Auto, Bucket, Fp16, ModelConfig, Quantization, Reader, Target
from pipeline.model import Json
from pipeline.thresholds import RUNGS

# In the order they run. The docs are what `doit list` prints.
STAGES: Mapping[str, str] = {
    "fetch": "Download a model's files from the hub, or take them from a folder.",
    "ingest": "Check one component and put its weights into one file.",
    "shape": "Fix every dimension of a component for one bucket.",
    "rewrite": "Rewrite what HTP would compute wrongly or not at all.",
    "samples": "Turn the calibration set into input arrays.",
    "calibrate": "Measure the range of every activation over all buckets.",
    "precision": "Search for the cheapest quantization of a component that keeps to its thresholds.",
    "quantize": "Quantize the weights of a component once, and make the QDQ model of each bucket.",
    "verify": "Measure what padding, rewriting and quantizing one bucket costs, on held-out samples.",
    "packing": "Estimate how large the binaries become when buckets or targets share them, and choose.",
    "context": "Compile for HTP: one bucket for one target, or several buckets or targets into one binary.",
    "emulate": "Run the context of one bucket on the emulator and measure what compiling costs.",
    "blame": "Rank the values of one bucket by what quantizing them costs (not part of a build).",
    "probe": "Find where the context of one bucket begins to compute otherwise than the CPU (not part of a build).",
}
FORMS = ("separate", "buckets", "socs")
"""What may share a context binary: nothing, all buckets for one target, or all targets of one bucket."""
FOR_SEARCH = Quantization(method="mse")
"""How a search calibrates. On MiniLM, mse leaves a third of all operations in 8 bits at 20 dB, minmax 29 %."""
ON_DEMAND = frozenset({"blame", "probe"})
"""Stages that run only when they are asked for."""


@dataclass(frozen=True)
class Input:
    """An upstream step and the role its output plays; `{bucket}` in the role stands for the projected bucket.

    With `part`, the step made something for several buckets, and only what it made for this one is an input. With
    `facts`, only these facts are, and no file.
    """

    role: str
    step: str
    bucket: Bucket | None = None
    part: Bucket | None = None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One unit of work, named by `id`, e.g. `context:minilm/encoder/128/sm8650`.

    `bucket` and `target` are there where the step is about one alone, `targets` are all it is about.
    """

    stage: str
    name: str
    config: ModelConfig
    params: Mapping[str, Json] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    scripts: Mapping[str, Path] = field(default_factory=dict)
    component: str | None = None
    bucket: Bucket | None = None
    targets: tuple[Target, ...] = ()
    ingests: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> Target | None:
        """The target that the step is about."""
        return self.targets[0] if len(self.targets) == 1 else None

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
        if config.verification.enabled and config.verification.samples:
            yield self._samples("verification", config.verification.samples)
        for name in config.components:
            yield from self._component(name)

    def _samples(self, purpose: str, reader: Reader) -> Step:
        ingests = (Input(f"ingest/{name}", step) for name, step in self._ingests.items())
        path, function = stage_params.content(reader)
        return Step(
            "samples",
            f"{self._name}/{purpose}",
            self._config,
            {"calibration": stage_params.of_reader(reader)},
            (Input("fetch", f"fetch:{self._name}"), *ingests),
            {"samples": path} if path else {},
            {"code": function.file} if function else {},
            ingests=self._ingests,
        )

    def _component(self, component: str) -> Iterator[Step]:
        quantization = self._config.components[component].quantization
        buckets = self._config.buckets
        for bucket in buckets:
            yield self._step("shape", component, bucket, inputs=(Input("ingest", self._ingests[component]),))
            yield self._step("rewrite", component, bucket, inputs=(self._of("shape", component, bucket),))
        if not isinstance(quantization, Fp16):
            yield self._calibrate(component, quantization)
            if isinstance(quantization, Auto):
                yield self._precision(component, quantization)
            yield self._quantize(component, quantization)
        yield from self._contexts(component)
        for bucket in buckets:
            if self._held_out:
                yield self._verify(component, bucket)
            for target in self._config.targets:
                if self._held_out and self._config.verification.emulator_samples:
                    yield self._emulate(component, bucket, target)
                    yield self._probe(component, bucket, target)
            if self._held_out:
                yield self._blame(component, bucket)

    def _calibrate(self, component: str, quantization: Quantization | Auto) -> Step:
        method = stage_params.of_method(quantization if isinstance(quantization, Quantization) else FOR_SEARCH)
        return self._per_component(
            "calibrate",
            component,
            {
                "padding": self._padding(component),
                **method,
                "part": "calibrated" if isinstance(quantization, Auto) else self._part("calibration"),
            },
            (Input("ingest", self._ingests[component]), Input("samples", f"samples:{self._name}/calibration")),
        )

    def _precision(self, component: str, auto: Auto) -> Step:
        thresholds = self._config.components[component].thresholds
        # What the oldest can do, all can.
        targets = [stage_params.of_target(target) for target in self._config.targets]
        oldest = min(targets, key=lambda target: (target["htp_arch"], target["soc_model"]))
        params: dict[str, Json] = {
            "padding": self._padding(component),
            "part": "searched",
            "quantization_db": thresholds.quantization_db,
            "compile_db": thresholds.compile_db,
            "total_db": thresholds.total_db,
            "max_cpu_nodes": thresholds.max_cpu_nodes,
            "max_partitions": thresholds.max_partitions,
            "targets": [oldest],
            "fp16": auto.fp16,
            **stage_params.of_method(FOR_SEARCH),
            "max_trials": auto.max_trials,
            "max_emulations": auto.max_emulations,
        }
        inputs = (
            Input("ingest", self._ingests[component]),
            Input("samples", f"samples:{self._name}/calibration"),
            Input("calibrate", f"calibrate:{self._name}/{component}"),
        )
        return self._per_component("precision", component, params, inputs)

    def _per_component(self, stage: str, component: str, params: Mapping[str, Json], inputs: tuple[Input, ...]) -> Step:
        """A step over the rewritten models of all buckets."""
        rewritten = (
            Input("rewrite/{bucket}", f"rewrite:{self._name}/{component}/{bucket.name}", bucket)
            for bucket in self._config.buckets
        )
        return Step(
            stage,
            f"{self._name}/{component}",
            self._config,
            {"component": component, **params},
            (*inputs, *rewritten),
            component=component,
            ingests=self._ingests,
        )

    def _quantize(self, component: str, quantization: Quantization | Auto) -> Step:
        inputs = [Input("calibrate", f"calibrate:{self._name}/{component}")]
        params: dict[str, Json] = {}
        if isinstance(quantization, Auto):
            inputs.append(Input("precision", f"precision:{self._name}/{component}"))
        else:
            params |= stage_params.of_quantization(quantization)
        return self._per_component("quantize", component, params, tuple(inputs))

    def _contexts(self, component: str) -> Iterator[Step]:
        forms = self._forms()
        if len(forms) > 1:
            yield self._packing(component, forms)
        buckets, targets = self._config.buckets, self._config.targets
        for form in forms:
            if form == "separate":
                for bucket in buckets:
                    for target in targets:
                        yield self._context(component, form, f"{bucket.name}/{target.soc}", (bucket,), (target,))
            elif form == "buckets":
                for target in targets:
                    yield self._context(component, form, f"{form}/{target.soc}", buckets, (target,))
            else:
                for bucket in buckets:
                    yield self._context(component, form, f"{bucket.name}/{form}", (bucket,), targets)

    def _forms(self) -> tuple[str, ...]:
        """The forms of binaries to build or, if there are several, to choose from."""
        # What shares a binary is made on x86_64 alone.
        on_device = any(target.compile == DEVICE for target in self._config.targets)
        pointless = {
            "buckets": on_device or len(self._config.buckets) == 1,
            "socs": on_device or len(self._config.targets) == 1,
        }
        wanted = FORMS if self._config.packing == "auto" else (self._config.packing,)
        return tuple(form for form in wanted if not pointless.get(form)) or FORMS[:1]

    def _packing(self, component: str, forms: tuple[str, ...]) -> Step:
        """The choice; every form has its steps, and those of the forms that are not chosen make nothing."""
        params: dict[str, Json] = {
            "component": component,
            "forms": [*forms],
            "targets": [stage_params.of_target(target) for target in self._config.targets],
        }
        models = tuple(self._last(component, bucket, role="model/{bucket}") for bucket in self._config.buckets)
        return Step(
            "packing",
            f"{self._name}/{component}",
            self._config,
            params,
            models,
            component=component,
            ingests=self._ingests,
        )

    def _context(
        self, component: str, form: str, name: str, buckets: tuple[Bucket, ...], targets: tuple[Target, ...]
    ) -> Step:
        params: dict[str, Json] = {
            "component": component,
            "form": form,
            "targets": [stage_params.of_target(target) for target in targets],
        }
        if any(target.compile == DEVICE for target in targets):
            params["compile"] = DEVICE
        packing = Input("packing", f"packing:{self._name}/{component}", facts=("chosen",))
        chosen = (packing,) if len(self._forms()) > 1 else ()
        models = (self._last(component, bucket, role="model/{bucket}") for bucket in buckets)
        return Step(
            "context",
            f"{self._name}/{component}/{name}",
            self._config,
            params,
            (*models, *chosen),
            component=component,
            bucket=buckets[0] if len(buckets) == 1 else None,
            targets=targets,
            ingests=self._ingests,
        )

    def _verify(self, component: str, bucket: Bucket) -> Step:
        inputs = (*self._measured(component, bucket), *self._quantized(component, bucket))
        return self._step("verify", component, bucket, self._measuring(component), inputs, self._score(component))

    def _emulate(self, component: str, bucket: Bucket, target: Target) -> Step:
        verification = self._config.verification
        params = self._measuring(component) | {
            "max_samples": verification.emulator_samples,
            "max_seconds": verification.emulator_seconds,
            "last": "quantization" if self._quantized(component, bucket) else "rewrite",
        }
        inputs: tuple[Input, ...] = (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            self._last(component, bucket),
            self._of("verify", component, bucket),
        )
        if "separate" in self._forms():
            inputs += (Input("context", f"context:{self._name}/{component}/{bucket.name}/{target.soc}", part=bucket),)
        return self._per_target("emulate", component, bucket, target, params, inputs, self._score(component))

    def _blame(self, component: str, bucket: Bucket) -> Step:
        inputs = (*self._measured(component, bucket), *self._quantized(component, bucket))
        if self._quantized(component, bucket):
            inputs += (Input("calibrate", f"calibrate:{self._name}/{component}"),)
        params = self._searching(component, *RUNGS[:-1])
        return self._step("blame", component, bucket, params, inputs)

    def _probe(self, component: str, bucket: Bucket, target: Target) -> Step:
        inputs = (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            # Not emulate: where that misses a threshold, doit would not let this run.
            self._last(component, bucket),
        )
        return self._per_target("probe", component, bucket, target, self._searching(component, RUNGS[-1]), inputs)

    def _searching(self, component: str, *rungs: str) -> dict[str, Json]:
        """What a search for the values that went wrong needs to know beyond what measuring needs."""
        params = self._measuring(component)
        del params["score"]
        thresholds = self._config.components[component].thresholds
        least: dict[str, Json] = {rung: thresholds.of(rung) for rung in rungs}
        # What the last of them may lose is bounded by the sum of all rungs, too.
        least[rungs[-1]] = max(thresholds.of(rungs[-1]), thresholds.total_db)
        return params | {"thresholds": least}

    def _measured(self, component: str, bucket: Bucket) -> tuple[Input, ...]:
        """What every measurement of a bucket on the CPU starts from."""
        return (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            self._of("shape", component, bucket),
            self._of("rewrite", component, bucket),
        )

    def _measuring(self, component: str) -> dict[str, Json]:
        score = self._config.components[component].score
        return {
            "component": component,
            "padding": self._padding(component),
            "part": self._part("verification"),
            "score": score.function if score else None,
        }

    def _score(self, component: str) -> dict[str, Path]:
        score = self._config.components[component].score
        return {"code": score.file} if score else {}

    @property
    def _held_out(self) -> bool:
        """Whether there are samples to measure with."""
        verification = self._config.verification
        return verification.enabled and bool(verification.samples or self._config.calibration)

    def _held_out_samples(self) -> Input:
        purpose = "verification" if self._config.verification.samples else "calibration"
        return Input("samples", f"samples:{self._name}/{purpose}")

    def _part(self, purpose: str) -> str:
        """Which part of a set of samples serves a purpose: one set may have to do for both."""
        if self._config.verification.samples or not self._held_out:
            return "all"
        return "kept" if purpose == "calibration" else "held out"

    def _per_target(
        self,
        stage: str,
        component: str,
        bucket: Bucket,
        target: Target,
        params: Mapping[str, Json],
        inputs: tuple[Input, ...],
        scripts: Mapping[str, Path] | None = None,
    ) -> Step:
        return Step(
            stage,
            f"{self._name}/{component}/{bucket.name}/{target.soc}",
            self._config,
            {"component": component, **stage_params.of_target(target), **params},
            inputs,
            scripts=scripts or {},
            component=component,
            bucket=bucket,
            targets=(target,),
            ingests=self._ingests,
        )

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

    def _quantized(self, component: str, bucket: Bucket) -> tuple[Input, ...]:
        """A bucket's part of the QDQ models; nothing for a component that stays in float."""
        if isinstance(self._config.components[component].quantization, Fp16):
            return ()
        return (Input("quantize", f"quantize:{self._name}/{component}", part=bucket),)

    def _last(self, component: str, bucket: Bucket, role: str = "model") -> Input:
        """What is compiled for a bucket: its QDQ model, or the float model where that stays."""
        found = (*self._quantized(component, bucket), self._of("rewrite", component, bucket))
        return replace(found[0], role=role, bucket=bucket)

    def _padding(self, component: str) -> dict[str, Json]:
        return dict(self._config.components[component].padding)
