"""Names the steps of a model and connects their inputs. All planners share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pipeline.config.load import Auto, Bucket, Fp16, ModelConfig, Target
from pipeline.config.targets import DEVICE
from pipeline.contracts import samples
from pipeline.contracts.codec import Contract
from pipeline.contracts.measures import Buckets, SamplePart
from pipeline.contracts.packing import Form
from pipeline.contracts.scheme import FP16
from pipeline.plan import stage_params
from pipeline.plan.steps import FORMS, Input, Step

_BY_LENGTH: Mapping[SamplePart, SamplePart] = {
    "kept": "kept by length",
    "held out": "held out by length",
    "calibrated": "calibrated by length",
    "searched": "searched by length",
}


class Wiring(ABC):
    """The steps of one model, by component, bucket and target."""

    @abstractmethod
    def steps(self) -> Iterator[Step]:
        """All of them, each after the ones it needs."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._name = config.name
        self._ingests = {name: f"ingest:{self._name}/{name}" for name in config.components}

    def _step(
        self,
        stage: str,
        component: str,
        bucket: Bucket,
        params: Contract,
        inputs: tuple[Input, ...],
        scripts: Mapping[str, Path] | None = None,
        target: Target | None = None,
    ) -> Step:
        """A step of one bucket, or of one target of it."""
        name = f"{component}/{bucket.name}/{target.soc}" if target else f"{component}/{bucket.name}"
        targets = (target,) if target else ()
        return self._made(stage, name, component, params, inputs, scripts, bucket, targets)

    def _per_component(
        self,
        stage: str,
        component: str,
        params: Contract,
        inputs: tuple[Input, ...],
        more: tuple[Bucket, ...] = (),
        suffix: str = "",
    ) -> Step:
        """A step over the rewritten models of all buckets and of the buckets `more`; its name ends in `suffix`."""
        rewritten = (
            Input("rewrite/{bucket}", f"rewrite:{self._name}/{component}/{bucket.name}", bucket)
            for bucket in (*self._config.buckets, *more)
        )
        return self._made(stage, f"{component}{suffix}", component, params, (*inputs, *rewritten))

    def _made(
        self,
        stage: str,
        name: str,
        component: str,
        params: Contract,
        inputs: tuple[Input, ...],
        scripts: Mapping[str, Path] | None = None,
        bucket: Bucket | None = None,
        targets: tuple[Target, ...] = (),
    ) -> Step:
        """A step of a component; `name` is the part of its name that follows the model's."""
        may_change = any(given.step in self._may_be_float for given in inputs)
        return Step(
            stage,
            f"{self._name}/{name}",
            self._config,
            params,
            inputs,
            scripts=scripts or {},
            component=component,
            bucket=bucket,
            targets=targets,
            ingests=self._ingests,
            in_float=self._in_float if may_change else None,
        )

    def _in_float(self, step: str) -> Step:
        """The step of an id in a plan where every component that may come out in float has `precision: fp16`."""
        return self._steps_in_float[step]

    @cached_property
    def _steps_in_float(self) -> Mapping[str, Step]:
        components = dict(self._config.components)
        for name, each in components.items():
            if f"quantize:{self._name}/{name}" in self._may_be_float:
                components[name] = replace(each, quantization=Fp16("fp16"))
        planned = type(self)(replace(self._config, components=components)).steps()
        return {step.id: replace(step, config=self._config) for step in planned}

    @cached_property
    def _may_be_float(self) -> Collection[str]:
        """The ids of quantize steps whose component may come out in float unchanged. Language models never do."""
        components = () if self._config.language else self._config.components
        return {f"quantize:{self._name}/{name}" for name in components if self._is_open(name)}

    def _is_open(self, component: str) -> bool:
        """Whether a component may come out in float: its scheme is searched for, climbed to, or all float."""
        quantization = self._config.components[component].quantization
        if isinstance(quantization, Fp16):
            return False
        if isinstance(quantization, Auto) or self._climbs(component):
            return True
        return stage_params.of_quantization(quantization).name == FP16

    def _climbs(self, component: str) -> bool:
        return self._held_out and self._config.components[component].budget_minutes is not None

    def _of(
        self,
        stage: str,
        component: str,
        bucket: Bucket,
        role: str = "",
        facts: type[Contract] | None = None,
        files: tuple[str, ...] = (),
    ) -> Input:
        return Input(role or stage, f"{stage}:{self._name}/{component}/{bucket.name}", bucket, None, facts, files)

    def _quantized(self, component: str, bucket: Bucket) -> tuple[Input, ...]:
        """A bucket's part of the QDQ models; nothing for a component that stays in float."""
        if isinstance(self._config.components[component].quantization, Fp16):
            return ()
        return (Input("quantize", f"quantize:{self._name}/{component}", part=bucket),)

    def _last(self, component: str, bucket: Bucket, role: str = "model") -> Input:
        """The model that is compiled for a bucket: the QDQ model, or the float model of a component in float."""
        if not self._quantized(component, bucket):
            return self._of("rewrite", component, bucket, role)
        return Input(role, f"quantize:{self._name}/{component}", bucket, part=bucket)

    @cached_property
    def _forms(self) -> tuple[Form, ...]:
        """The forms of binaries to build or, if there are several, to choose from."""
        # What shares a binary is made on x86_64 alone.
        on_device = any(target.compile == DEVICE for target in self._config.targets)
        pointless: dict[Form, bool] = {
            "buckets": on_device or len(self._config.buckets) == 1,
            "socs": on_device or len(self._config.targets) == 1,
        }
        wanted: tuple[Form, ...] = FORMS if self._config.packing == "auto" else (self._config.packing,)
        return tuple(form for form in wanted if not pointless.get(form)) or FORMS[:1]

    @property
    def _held_out(self) -> bool:
        """Whether there are samples to measure with."""
        verification = self._config.verification
        return verification.enabled and bool(verification.samples or self._config.calibration)

    def _held_out_samples(self) -> Input:
        purpose = "verification" if self._config.verification.samples else "calibration"
        return self._samples_input(purpose)

    def _samples_input(self, purpose: str) -> Input:
        return Input("samples", f"samples:{self._name}/{purpose}", facts=samples.SampleBasis, files=None)

    def _by_length(self, part: SamplePart, component: str) -> SamplePart:
        """The part, split by length if the truth is `exact`, as every length then needs samples of its own."""
        alone = self._config.components[component].truth == "exact" and not self._config.verification.samples
        return _BY_LENGTH[part] if alone and self._held_out else part

    def _part(self, purpose: str, component: str) -> SamplePart:
        """Which part of a set of samples serves calibration or verification; one set may have to serve both."""
        if self._config.verification.samples or not self._held_out:
            return "all"
        return self._by_length("kept" if purpose == "calibration" else "held out", component)

    def _score_name(self, component: str) -> str | None:
        score = self._config.components[component].score
        return score.function if score else None

    def _score(self, component: str) -> dict[str, Path]:
        score = self._config.components[component].score
        return {"code": score.file} if score else {}

    @property
    def _twins(self) -> tuple[Bucket, ...]:
        """The small twins of a language model's buckets that are not among its buckets themselves."""
        twins = {twin.name: twin for twin in self._config.twins if twin not in self._config.buckets}
        return tuple(twins.values())  # several buckets may have one

    def _twin(self, bucket: Bucket) -> Bucket:
        """The bucket that is emulated in place of a bucket: a language model's twin, or the bucket itself."""
        language = self._config.language
        if language is None or language.emulate == "shipped":
            return bucket
        return self._config.twins[self._config.buckets.index(bucket)]

    @property
    def _shares(self) -> bool:
        """Whether graphs of a language model share a binary, so that each is compiled by itself to be emulated."""
        emulates = self._held_out and self._config.verification.emulator_samples != 0
        return self._config.language is not None and emulates and "buckets" in self._forms

    @property
    def _on_host(self) -> bool:
        """Whether a language model's table of embeddings stays on the host."""
        language = self._config.language
        return language is not None and language.embedding == "host"

    @property
    def _split(self) -> int | None:
        """How many parts a language model is split into; 0 for as few as can hold it, None for other models."""
        language = self._config.language
        return None if language is None else 0 if language.parts == "auto" else language.parts

    @cached_property
    def _buckets(self) -> Buckets:
        return {bucket.name: bucket.axes for bucket in self._config.buckets}

    def _padding(self, component: str) -> Mapping[str, float]:
        return self._config.components[component].padding
