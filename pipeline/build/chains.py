"""Plans the steps that build and judge a component with a scheme, as if the configuration had that scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, cast

from pipeline.build.remedies import Able
from pipeline.config.quantization import (
    FOR_SEARCH,
    Activations,
    Auto,
    BlockWeights,
    NodesRule,
    OpsRule,
    Quantization,
    TensorsRule,
    Weights,
    takes_blocks,
)
from pipeline.config.quantization import Rule as WrittenRule
from pipeline.contracts import emulate, verify
from pipeline.contracts.measures import Subject
from pipeline.contracts.scheme import ROOM, Rule, Scheme
from pipeline.ladder import RUNGS
from pipeline.model import Json
from pipeline.plan.planner import plan
from pipeline.plan.steps import Step
from pipeline.qnn import catalog
from pipeline.qnn.target import BLOCKS_HTP_ARCH, WIDE_PRODUCTS_HTP_ARCH

QUIET = "quiet"
"""The name under which figures on quieter samples stand beside those of the rungs."""


def chain_of(quantize: Step, scheme: Scheme, wanted: Mapping[str, Step]) -> list[Step]:
    """The steps of a component as a configuration with this scheme would have them, of those that are wanted."""
    config, name = quantize.config, quantize.component
    assert name is not None
    explicit = replace(
        method_of(quantize),
        activations=cast("Activations", scheme.activations),
        weights=_written_weights(scheme.weights, scheme.block),
        rounding=scheme.rounding,
        clip=scheme.clip,
        per_channel=scheme.per_channel,
        wide_products=scheme.wide_products,
        overrides=tuple(map(_written, scheme.overrides)),
        room=ROOM if scheme.room is None else scheme.room,
    )
    component = replace(config.components[name], quantization=explicit, budget_minutes=None)
    changed = replace(config, components={**config.components, name: component})
    return [step for step in plan(changed) if step.component == name and step.id in wanted]


def _written_weights(kind: str, block: int | None) -> Weights:
    return BlockWeights(kind, block) if block is not None else cast("Weights", kind)


def _written(rule: Rule) -> WrittenRule:
    """A rule of a scheme as a configuration has it."""
    activations = cast("Activations | None", rule.activations)
    weights = _written_weights(rule.weights, rule.block) if rule.weights is not None else None
    precision: Literal["fp16"] | None = "fp16" if rule.precision else None
    if rule.tensors:
        return TensorsRule(rule.tensors, activations, weights, rule.per_channel)
    if rule.ops:
        return OpsRule(rule.ops, precision, activations, weights, rule.per_channel)
    return NodesRule(rule.nodes, precision, activations, weights, rule.per_channel)


def method_of(quantize: Step) -> Quantization:
    """How the component's ranges are made, whatever its scheme."""
    assert quantize.component is not None
    written = quantize.config.components[quantize.component].quantization
    return FOR_SEARCH if isinstance(written, Auto) else cast("Quantization", written)


def able_of(quantize: Step) -> Able:
    """What all targets of a component can compute."""
    socs = [catalog.resolve(target.soc) for target in quantize.config.targets]
    wide = all(soc.htp_arch >= WIDE_PRODUCTS_HTP_ARCH for soc in socs)
    config = quantize.config
    blocks = all(soc.htp_arch >= BLOCKS_HTP_ARCH for soc in socs) and takes_blocks(config.outputs, config.compiler)
    return Able(all(soc.computes_float16 for soc in socs), wide, blocks)


def figures_of(step: Step, facts: Mapping[str, Json] | None) -> dict[str, float | None]:
    """The least SQNR of every rung that a step measured, of the whole ladder, and of that on `quiet` samples, in dB."""
    if facts is None or step.stage not in ("verify", "emulate"):
        return {}
    ladder = (verify.Facts if step.stage == "verify" else emulate.Facts).from_json(facts)
    measured = {**{rung: ladder.rungs[rung] for rung in RUNGS if rung in ladder.rungs}, "total": ladder.outputs}
    # What lies between 0 and 1 is near 0 in silence, and so are its dB.
    told = [label for label in ladder.quiet if not ladder.subjects.get(label, Subject(label)).bounded]
    measured[QUIET] = {label: ladder.quiet[label] for label in told}
    found: dict[str, float | None] = {}
    for rung, outputs in measured.items():
        values = [figures.sqnr_db for figures in outputs.values()]
        if values:
            found[rung] = None if None in values else min(value for value in values if value is not None)
    return found
