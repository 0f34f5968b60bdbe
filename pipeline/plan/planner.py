"""From a model's configuration to its steps. Pure: looks at no file and imports nothing heavy.

The list of steps depends on the configuration alone. What a model's files say (which length axes a component has)
only narrows a step's parameters later, in :mod:`pipeline.plan.resolve`; two steps that turn out to be equal share a key
and the second is restored from the store.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.config.load import Auto, Bucket, Fp16, HubSource, ModelConfig, Quantization, Target
from pipeline.config.quantization import FOR_SEARCH, keeps_fours
from pipeline.config.readers import HubData, Reader
from pipeline.config.targets import DEVICE
from pipeline.contracts import (
    calibrate,
    context,
    correlate,
    export,
    fetch,
    ingest,
    packing,
    precision,
    quantize,
    rewrite,
    samples,
    shape,
)
from pipeline.contracts.export import ExportKind
from pipeline.contracts.fetch import DATA
from pipeline.contracts.measures import SamplePart
from pipeline.contracts.packing import Form
from pipeline.model import Json
from pipeline.plan import stage_params
from pipeline.plan.measurements import Measurements
from pipeline.plan.steps import ClimbBasis, Input, Step
from pipeline.qnn.provider_options import PERFORMANCE_MODE
from pipeline.qnn.target import WIDE_PRODUCTS_HTP_ARCH

_FOR_SEARCH = "/search"
"""The end of the name of a step that serves the search for a precision alone."""


def plan(config: ModelConfig) -> tuple[Step, ...]:
    """All steps of a model, each after the ones it needs."""
    return tuple(_Planner(config).steps())


def plan_all(configs: Iterable[ModelConfig]) -> list[Step]:
    """All steps of several models.

    Nothing that a plan makes refers back to what holds it, and Python's search for such cycles would go through all
    steps again and again: it took half of the time of 176,000.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return [step for config in configs for step in plan(config)]
    finally:
        if collects:
            gc.enable()


class _Planner(Measurements):
    def steps(self) -> Iterator[Step]:
        config = self._config
        source = config.source
        asked = fetch.Commit(source.hub, source.revision) if isinstance(source, HubSource) else None
        yield Step("fetch", self._name, config, fetch.Params(commit=None, files=()), asked=asked)
        for name, component in config.components.items():
            fetched = (Input("fetch", f"fetch:{self._name}"),)
            constants = dict(sorted(component.constants.items()))
            part = (
                ingest.SpeechPart("encoder" if name == "encoder" else "decoder", config.speech.tokens)
                if config.speech
                else None
            )
            params = ingest.Params(component.file, constants, component.cut, component.begin or None, part)
            yield Step("ingest", f"{self._name}/{name}", config, params, fetched, component=name)
        if config.calibration:
            yield from self._samples("calibration", config.calibration)
        if config.verification.enabled and config.verification.samples:
            yield from self._samples("verification", config.verification.samples)
        for name in config.components:
            yield from self._component(name)
        if config.speech and self._held_out:
            yield self._words()

    def _samples(self, purpose: str, reader: Reader) -> Iterator[Step]:
        ingests = (Input(f"ingest/{name}", step) for name, step in self._ingests.items())
        place, function = stage_params.content(reader)
        data: tuple[Input, ...] = ()
        if isinstance(place, HubData):
            name = f"{self._name}/{purpose}"
            asked = fetch.Commit(f"{DATA}/{place.hub}", place.revision)
            wanted = stage_params.suffixes(reader)
            most = reader.max_samples if wanted else None
            params = fetch.Params(commit=None, files=(place.path,), suffixes=wanted, most=most)
            yield Step("fetch", name, self._config, params, asked=asked)
            data = (Input("data", f"fetch:{name}"),)
        yield Step(
            "samples",
            f"{self._name}/{purpose}",
            self._config,
            samples.Params(stage_params.of_reader(reader), buckets={}, fixed={}),
            (Input("fetch", f"fetch:{self._name}"), *ingests, *data),
            {"samples": place} if isinstance(place, Path) else {},
            {"code": function.file} if function else {},
            ingests=self._ingests,
        )

    def _component(self, component: str) -> Iterator[Step]:
        quantization = self._config.components[component].quantization
        buckets = self._config.buckets
        for bucket in (*buckets, *self._twins):
            ingested = (Input("ingest", self._ingests[component]),)
            yield self._step("shape", component, bucket, shape.Params(bucket.axes, self._config.fixed), ingested)
            shaped = (self._of("shape", component, bucket),)
            params = rewrite.Params(
                middles=(self._config.language and keeps_fours(quantization)) or None,
                in_float=isinstance(quantization, Fp16) or None,
            )
            yield self._step("rewrite", component, bucket, params, shaped)
        if not isinstance(quantization, Fp16):
            yield self._calibrate(component, quantization)
            if _looks_at_data(quantization):
                yield self._correlate(component, self._part("calibration", component))
            if isinstance(quantization, Auto):
                # What rounding has seen flatters it: MiniLM's with many weights of 4 bits by 4 dB.
                split = self._part("calibration", component) != "all"
                rest = self._by_length("calibrated", component) if split else "not searched"
                yield self._correlate(component, rest, _FOR_SEARCH)
                yield self._precision(component, quantization)
            yield self._quantize(component, quantization)
        yield from self._contexts(component)
        if self._shares:
            for bucket in buckets:
                for target in self._config.targets:
                    yield self._alone(component, bucket, target)
        for kind in self._config.outputs:
            for target in self._config.targets:
                yield self._export(component, kind, target)
        for bucket in buckets if self._held_out else ():
            yield self._verify(component, bucket)
        if (self._held_out or self._config.language) and not self._config.speech:
            yield self._reading(component)
        for bucket in buckets:
            for target in self._config.targets:
                if self._held_out and self._config.verification.emulator_samples != 0:
                    yield self._emulate(component, bucket, target)
                    if not self._config.language:
                        yield self._probe(component, bucket, target)
            if self._held_out and not self._config.language:
                yield self._blame(component, bucket)
        if self._config.language:
            yield from self._spoken(component)

    def _calibrate(self, component: str, quantization: Quantization | Auto) -> Step:
        how = quantization if isinstance(quantization, Quantization) else FOR_SEARCH
        return self._per_component(
            "calibrate",
            component,
            calibrate.Params(
                component=component,
                buckets=self._buckets,
                padding=self._padding(component),
                part=self._part("calibration", component),
                method=how.method,
                percentile=stage_params.percentile(how),
                quiet=self._config.verification.quiet,
            ),
            (Input("ingest", self._ingests[component]), self._samples_input("calibration")),
        )

    def _correlate(self, component: str, part: SamplePart, suffix: str = "") -> Step:
        padding = self._padding(component)
        params = correlate.Params(component=component, buckets=self._buckets, padding=padding, part=part)
        inputs = (Input("ingest", self._ingests[component]), self._samples_input("calibration"))
        return self._per_component("correlate", component, params, inputs, suffix=suffix)

    def _precision(self, component: str, auto: Auto) -> Step:
        thresholds = self._config.components[component].thresholds
        # A precision that the oldest target computes in, the others compute in as well.
        targets = [stage_params.of_target(target) for target in self._config.targets]
        oldest = min(targets, key=lambda target: (target.htp_arch, target.soc_model))
        params = precision.Params(
            component=component,
            buckets=self._buckets,
            padding=self._padding(component),
            part=self._by_length("searched", component),
            quantization_db=thresholds.quantization_db,
            compile_db=thresholds.compile_db,
            total_db=thresholds.total_db,
            max_cpu_nodes=thresholds.max_cpu_nodes,
            max_partitions=thresholds.max_partitions,
            targets=(oldest,),
            fp16=auto.fp16,
            wide_products=all(target.htp_arch >= WIDE_PRODUCTS_HTP_ARCH for target in targets),
            prefer=auto.prefer,
            max_trials=auto.max_trials,
            max_emulations=auto.max_emulations,
            method=FOR_SEARCH.method,
            percentile=stage_params.percentile(FOR_SEARCH),
            outputs=stage_params.of_outputs(self._config.components[component].outputs),
        )
        shaped = (self._of("shape", component, bucket, "shape/{bucket}") for bucket in self._config.buckets)
        inputs = (
            *shaped,
            Input("ingest", self._ingests[component]),
            self._samples_input("calibration"),
            Input("calibrate", f"calibrate:{self._name}/{component}"),
            Input("correlate", f"correlate:{self._name}/{component}{_FOR_SEARCH}"),
        )
        return self._per_component("precision", component, params, inputs)

    def _quantize(self, component: str, quantization: Quantization | Auto) -> Step:
        inputs = [Input("calibrate", f"calibrate:{self._name}/{component}")]
        if _looks_at_data(quantization):
            inputs.append(Input("correlate", f"correlate:{self._name}/{component}"))
        scheme = None
        if isinstance(quantization, Auto):
            inputs.append(Input("precision", f"precision:{self._name}/{component}"))
        else:
            scheme = stage_params.of_quantization(quantization, language=self._config.language is not None)
        buckets = {**self._buckets, **{twin.name: twin.axes for twin in self._twins}}
        params = quantize.Params(component=component, buckets=buckets, scheme=scheme, on_host=self._on_host or None)
        step = self._per_component("quantize", component, params, tuple(inputs), self._twins)
        return replace(step, climb=self._climb(component)) if self._climbs(component) else step

    def _climb(self, component: str) -> ClimbBasis:
        verification = self._config.verification
        judged = self._config.components[component]
        params: dict[str, Json] = {
            "padding": {**self._padding(component)},
            "part": self._part("verification", component),
            "score": self._score_name(component),
            "judged": [repr(judged.thresholds), repr(judged.outputs), judged.truth],
            "wished": [repr(judged.wished), judged.budget_minutes] if judged.wished else [],
            "targets": [stage_params.of_target(target).to_json() for target in self._config.targets],
            "forms": [*self._forms],
            "emulator": [verification.emulator_samples, verification.emulator_seconds],
        }
        return ClimbBasis(params, self._score(component), self._held_out_samples())

    def _contexts(self, component: str) -> Iterator[Step]:
        forms = self._forms
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

    def _packing(self, component: str, forms: tuple[Form, ...]) -> Step:
        """The step that chooses a form. Every form has steps; those of a form that is not chosen make nothing."""
        params = packing.Params(
            component=component,
            buckets=self._buckets,
            forms=forms,
            targets=tuple(stage_params.of_target(target) for target in self._config.targets),
        )
        models = tuple(self._last(component, bucket, role="model/{bucket}") for bucket in self._config.buckets)
        return self._made("packing", component, component, params, models)

    def _export(self, component: str, kind: ExportKind, target: Target) -> Step:
        mode = target.runtime_options.get(PERFORMANCE_MODE, "default")
        made_for = stage_params.of_target(target)
        params = export.Params(
            component=component, buckets=self._buckets, kind=kind, target=made_for, performance_mode=mode
        )
        form = self._forms[0]
        inputs = [
            Input(
                "context/{bucket}",
                f"context:{self._name}/{component}/{bucket.name if form == 'separate' else form}/{target.soc}",
                bucket,
                part=bucket,
            )
            for bucket in self._config.buckets
        ]
        if kind == "dlc":
            inputs += [self._last(component, bucket, role="model/{bucket}") for bucket in self._config.buckets]
        name = f"{component}/{kind}/{target.soc}"
        return self._made("export", name, component, params, tuple(inputs), targets=(target,))

    def _context(
        self, component: str, form: Form, name: str, buckets: tuple[Bucket, ...], targets: tuple[Target, ...]
    ) -> Step:
        params = context.Params(
            component=component,
            buckets={bucket.name: bucket.axes for bucket in buckets},
            form=form,
            targets=tuple(stage_params.of_target(target) for target in targets),
            compile="device" if any(target.compile == DEVICE for target in targets) else None,
            parts=self._split,
            compiler=None if self._config.compiler == "onnxruntime-qnn" else self._config.compiler,
        )
        choice = Input("packing", f"packing:{self._name}/{component}", facts=packing.PackingChoice)
        chosen = (choice,) if len(self._forms) > 1 else ()
        models = (self._last(component, bucket, role="model/{bucket}") for bucket in buckets)
        bucket = buckets[0] if len(buckets) == 1 else None
        inputs = (*models, *chosen)
        return self._made("context", f"{component}/{name}", component, params, inputs, bucket=bucket, targets=targets)


def _looks_at_data(quantization: Quantization | Auto) -> bool:
    return isinstance(quantization, Auto) or quantization.looks_at_data
