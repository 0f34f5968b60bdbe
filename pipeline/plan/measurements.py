"""The steps that measure one bucket: on the CPU, on the emulator, and in search of what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from pipeline.config.load import Bucket, Target
from pipeline.contracts import (
    blame,
    emulate,
    probe,
    verify,
)
from pipeline.contracts.measures import Buckets, SamplePart, Truth
from pipeline.ladder import RUNGS
from pipeline.plan import stage_params
from pipeline.plan.steps import Input, Step
from pipeline.plan.wiring import Wiring


class _Measuring(TypedDict):
    """The fields of :class:`pipeline.contracts.measures.Measuring`."""

    component: str
    bucket: str
    axes: Mapping[str, int]
    buckets: Buckets
    padding: Mapping[str, float]
    part: SamplePart
    truth: Truth


class Measurements(Wiring):
    """The steps of a model that measure."""

    def _verify(self, component: str, bucket: Bucket) -> Step:
        inputs = (*self._measured(component, bucket), *self._quantized(component, bucket))
        measuring = self._measuring(component, bucket)
        declared = stage_params.of_outputs(self._config.components[component].outputs)
        params = verify.Params(**measuring, score=self._score_name(component), outputs=declared)
        return self._step("verify", component, bucket, params, inputs, self._score(component))

    def _emulate(self, component: str, bucket: Bucket, target: Target) -> Step:
        verification = self._config.verification
        params = emulate.Params(
            **self._measuring(component, bucket),
            target=stage_params.of_target(target),
            max_samples=verification.emulator_samples,
            max_seconds=verification.emulator_seconds,
            last="quantization" if self._quantized(component, bucket) else "rewrite",
            score=self._score_name(component),
            twin=self._twin(bucket).axes if self._config.twins else None,
        )
        inputs: tuple[Input, ...] = (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            self._last(component, self._twin(bucket)),
            # What it shows to readers is no input.
            replace(self._of("verify", component, bucket), facts=verify.Facts, files=(verify.REFERENCES,)),
            *(
                replace(self._of("verify", component, each, "bucket/{bucket}"), facts=verify.Basis)
                for each in self._config.buckets
            ),
        )
        if not self._config.twins and "separate" in self._forms:
            inputs += (Input("context", f"context:{self._name}/{component}/{bucket.name}/{target.soc}", part=bucket),)
        return self._per_target("emulate", component, bucket, target, params, inputs, self._score(component))

    def _blame(self, component: str, bucket: Bucket) -> Step:
        inputs = (*self._measured(component, bucket), *self._quantized(component, bucket))
        if self._quantized(component, bucket):
            inputs += (Input("calibrate", f"calibrate:{self._name}/{component}"),)
        least = self._least(component, *RUNGS[:-1])
        params = blame.Params(**self._measuring(component, bucket), thresholds=least)
        return self._step("blame", component, bucket, params, inputs)

    def _probe(self, component: str, bucket: Bucket, target: Target) -> Step:
        inputs = (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            # Not emulate: where that misses a threshold, doit would not let this run.
            self._last(component, bucket),
        )
        params = probe.Params(
            **self._measuring(component, bucket),
            target=stage_params.of_target(target),
            thresholds=self._least(component, RUNGS[-1]),
        )
        return self._per_target("probe", component, bucket, target, params, inputs)

    def _least(self, component: str, *rungs: str) -> dict[str, float]:
        """The SQNR in dB that a search for the values that went wrong asks of each of these rungs."""
        thresholds = self._config.components[component].thresholds
        least = {rung: thresholds.of(rung) for rung in rungs}
        # What the last of them may lose is bounded by the sum of all rungs, too.
        least[rungs[-1]] = max(thresholds.of(rungs[-1]), thresholds.total_db)
        return least

    def _measured(self, component: str, bucket: Bucket) -> tuple[Input, ...]:
        """What every measurement of a bucket on the CPU starts from."""
        return (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            self._of("shape", component, bucket),
            self._of("rewrite", component, bucket),
        )

    def _measuring(self, component: str, bucket: Bucket) -> _Measuring:
        return {
            "component": component,
            "bucket": bucket.name,
            "axes": bucket.axes,
            "buckets": self._buckets,
            "padding": self._padding(component),
            "part": self._part("verification", component),
            "truth": self._config.components[component].truth,
        }
