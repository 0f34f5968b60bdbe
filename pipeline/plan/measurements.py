"""Plans the steps that measure a bucket: on the CPU, on the emulator, and in search of what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypedDict

from pipeline.config.load import Bucket, Target
from pipeline.config.speech import DECODER, ENCODER
from pipeline.contracts import (
    alone,
    blame,
    bundle,
    converse,
    emulate,
    probe,
    quantize,
    reading,
    verify,
    words,
)
from pipeline.contracts.limits import STATE_DB
from pipeline.contracts.measures import Buckets, OverBuckets, SamplePart, Truth
from pipeline.graph.language.names import TABLE
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
        params = verify.Params(
            **measuring,
            score=self._score_name(component),
            outputs=declared,
            quiet=self._config.verification.quiet,
        )
        return self._step("verify", component, bucket, params, inputs, self._score(component))

    def _reading(self, component: str) -> Step:
        verified = (
            self._of("verify", component, bucket, "verify/{bucket}", facts=reading.Looked, files=(verify.REFERENCES,))
            for bucket in self._config.buckets
        )
        given = self._config.components[component]
        params = reading.Params(
            component=component,
            buckets=self._buckets,
            padding=self._padding(component),
            part=self._part("verification", component),
            truth=given.truth,
            file=given.file,
            cut=given.cut,
            begin=given.begin or None,
        )
        fetched = Input("fetch", f"fetch:{self._name}")
        inputs: tuple[Input, ...] = (fetched, Input("ingest", self._ingests[component]))
        if not self._config.language:
            inputs = (*inputs, self._held_out_samples(), *verified)
        return self._made("reading", component, component, params, inputs)

    def _words(self) -> Step:
        """The step that holds a speech model's words against the original's; it stands on both components."""
        (bucket,) = self._config.buckets
        params = words.Params(component=DECODER, buckets=self._buckets, part=self._part("verification", DECODER))
        inputs = [Input("fetch", f"fetch:{self._name}"), self._held_out_samples()]
        for part in (ENCODER, DECODER):
            inputs += [Input(f"original/{part}", self._ingests[part]), self._last(part, bucket, f"made/{part}")]
        return self._made("words", "words", DECODER, params, tuple(inputs))

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
            parts=self._split,
        )
        inputs: tuple[Input, ...] = (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            self._last(component, bucket),
        )
        if self._twin(bucket) != bucket:
            inputs += (self._last(component, self._twin(bucket), role="twin"),)
        if not self._config.twins:  # which tokens of a language model are run does not follow from what the CPU made
            inputs += (
                # What it shows to readers is no input.
                self._of("verify", component, bucket, facts=verify.Facts, files=(verify.REFERENCES,)),
                *(
                    self._of("verify", component, each, "bucket/{bucket}", facts=verify.Basis)
                    for each in self._config.buckets
                ),
            )
        inputs += self._by_itself(component, bucket, target)
        return self._step("emulate", component, bucket, params, inputs, self._score(component), target)

    def _alone(self, component: str, bucket: Bucket, target: Target) -> Step:
        made_for = stage_params.of_target(target)
        buckets = {bucket.name: bucket.axes}
        params = alone.Params(component=component, buckets=buckets, target=made_for, parts=self._split)
        return self._step("alone", component, bucket, params, (self._last(component, bucket),), target=target)

    def _by_itself(self, component: str, bucket: Bucket, target: Target) -> tuple[Input, ...]:
        """The context of a bucket with a binary of its own, as the emulator takes no other; empty if there is none."""
        stage = "context" if "separate" in self._forms else "alone" if self._shares else ""
        if not stage:
            return ()
        return (Input(stage, f"{stage}:{self._name}/{component}/{bucket.name}/{target.soc}", part=bucket),)

    def _blame(self, component: str, bucket: Bucket) -> Step:
        inputs = (*self._measured(component, bucket), *self._quantized(component, bucket))
        if self._quantized(component, bucket):
            inputs += (Input("calibrate", f"calibrate:{self._name}/{component}"),)
        least = self._least(component, *RUNGS[1:-1])
        quiet = self._config.verification.quiet
        params = blame.Params(**self._measuring(component, bucket), thresholds=least, quiet=quiet)
        return self._step("blame", component, bucket, params, inputs)

    def _probe(self, component: str, bucket: Bucket, target: Target) -> Step:
        inputs = (
            Input("ingest", self._ingests[component]),
            self._held_out_samples(),
            # Not emulate: where that misses a threshold, doit would not let this run.
            self._last(component, bucket),
            self._of("shape", component, bucket),
        )
        params = probe.Params(
            **self._measuring(component, bucket),
            target=stage_params.of_target(target),
            thresholds=self._least(component, RUNGS[-1]),
            state_db=self._state_db(component),
            quiet=self._config.verification.quiet,
        )
        return self._step("probe", component, bucket, params, inputs, target=target)

    def _spoken(self, component: str) -> Iterator[Step]:
        """The steps `bundle` and `converse` of a language model, for each target."""
        form, emulates = self._forms[0], self._config.verification.emulator_samples != 0
        for target in self._config.targets:
            contexts = tuple(
                Input(
                    "context/{bucket}",
                    f"context:{self._name}/{component}/{form if form == 'buckets' else bucket.name}/{target.soc}",
                    bucket,
                    part=bucket,
                )
                for bucket in self._config.buckets
            )
            ingested = Input("ingest", self._ingests[component])
            made = stage_params.of_target(target)
            params = bundle.Params(component=component, buckets=self._buckets, target=made)
            yield self._per_engines("bundle", component, target, params, (ingested, *contexts, *self._table(component)))
            if self._held_out and emulates:
                asked = converse.Params(
                    component=component,
                    buckets=self._buckets,
                    target=made,
                    twins={twin.name: twin.axes for twin in self._config.twins},
                    part=self._part("verification", component),
                    most_seconds=self._config.verification.emulator_seconds,
                )
                models = (self._last(component, bucket, role="model/{bucket}") for bucket in self._config.buckets)
                twins = (self._last(component, twin, role="twin/{bucket}") for twin in self._config.twins)
                by_itself = [
                    replace(each, role="alone/{bucket}", bucket=bucket)
                    for bucket in (self._config.buckets if self._shares else ())
                    for each in self._by_itself(component, bucket, target)
                ]
                inputs = (ingested, self._held_out_samples(), *contexts, *by_itself, *models, *twins)
                yield self._per_engines("converse", component, target, asked, inputs)

    def _table(self, component: str) -> tuple[Input, ...]:
        """The table of embeddings where it stays on the host."""
        if not self._on_host:
            return ()
        (quantized,) = self._quantized(component, self._config.buckets[0])
        return (replace(quantized, role="table", facts=quantize.PartFacts, files=(TABLE,)),)

    def _per_engines(
        self, stage: str, component: str, target: Target, params: OverBuckets, inputs: tuple[Input, ...]
    ) -> Step:
        return self._made(stage, f"{component}/{target.soc}", component, params, inputs, targets=(target,))

    def _least(self, component: str, *rungs: str) -> dict[str, float]:
        """The SQNR in dB that a search for the values that went wrong asks of each of these rungs."""
        thresholds = self._config.components[component].thresholds
        least = {rung: thresholds.of(rung) for rung in rungs}
        # What the last of them may lose is bounded by the sum of all rungs, too.
        least[rungs[-1]] = max(thresholds.of(rungs[-1]), thresholds.total_db)
        return least

    def _state_db(self, component: str) -> float:
        """The least SQNR against the original that any output which is a state must have, in dB."""
        thresholds = self._config.components[component].thresholds
        own = (limits.total_db for limits in thresholds.outputs.values())
        return min([thresholds.total_db + STATE_DB, *(db for db in own if db is not None)])

    def _measured(self, component: str, bucket: Bucket) -> tuple[Input, ...]:
        """The inputs that every measurement of a bucket on the CPU has."""
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
