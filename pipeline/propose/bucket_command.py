"""`doit buckets:<model>`: prints which buckets would serve the lengths of a model best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.build.bring import is_current
from pipeline.config.load import Fp16, ModelConfig, Quantization
from pipeline.config.quantization import of_weights
from pipeline.contracts import ingest, quantize
from pipeline.errors import ConfigError, WorkerError
from pipeline.graph.files.model_file import MODEL
from pipeline.model import Manifest
from pipeline.plan.own_buckets import OwnBuckets
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.propose.bucket_cost import ComponentCost, ShapedBucket
from pipeline.propose.bucket_report import bucket_report
from pipeline.propose.lengths import of_calibration, of_file
from pipeline.store.manifests import read_manifest


def print_plans(config: ModelConfig, steps: Sequence[Step], workspace: Workspace, lengths: str) -> None:
    """Print the table of plans for a model whose buckets are shaped.

    Raises:
        ConfigError: it has no buckets or more than two axes, or neither calibration nor lengths are given.
    """
    axes = tuple(config.buckets[0].axes)
    if not 0 < len(axes) <= 2:
        many = "has no buckets to plan" if not axes else f"has buckets of {len(axes)} axes"
        raise ConfigError(
            f"{config.name} {many}",
            where=config.place("buckets"),
            why="plans are made for one axis, or two that grow together",
            remedy="put one or two axes under 'buckets', with any values" if not axes else "plan two of them at a time",
        )
    ingested = {
        step.component: ingest.Facts.from_json(_made(step, workspace).facts) for step in steps if step.stage == "ingest"
    }
    known = {name: facts for name, facts in ingested.items() if name is not None}
    costs = {name: _cost(config, name, facts, steps, workspace) for name, facts in known.items()}
    if lengths:
        found = of_file(axes, Path(lengths), [*known])
    else:
        step = next((each for each in steps if each.id == f"samples:{config.name}/calibration"), None)
        if step is None:
            raise ConfigError(
                f"{config.name} has no calibration set",
                where=config.place(),
                remedy=f"give a file with a length a line: doit buckets:{config.name} --lengths FILE",
            )
        found = of_calibration(axes, _made(step, workspace), known, workspace.store)
    now = [tuple(bucket.axes[axis] for axis in axes) for bucket in config.buckets]
    exact = [name for name, component in config.components.items() if component.truth == "exact"]
    print(bucket_report(config.name, found, costs, now, exact).rstrip())


def _cost(
    config: ModelConfig, component: str, facts: ingest.Facts, steps: Sequence[Step], workspace: Workspace
) -> ComponentCost:
    own = OwnBuckets.of(config, facts)
    shaped = []
    for bucket in own.all:
        step = next(
            each
            for each in steps
            if each.stage == "rewrite"
            and each.component == component
            and each.bucket
            and own.own(each.bucket) == bucket
        )
        entry = _made(step, workspace).files[MODEL]
        shaped.append(ShapedBucket.of(bucket.axes, workspace.store.object_path(entry.sha256)))
    built = next((each for each in steps if each.stage == "quantize" and each.component == component), None)
    if built is not None and is_current(built, workspace):
        return ComponentCost(shaped, _mean_bits(_made(built, workspace), shaped[-1].graph.constant_bytes))
    quantization = config.components[component].quantization
    if isinstance(quantization, Fp16):
        return ComponentCost(shaped, 16)
    dtype, _ = of_weights(quantization.weights if isinstance(quantization, Quantization) else None)
    return ComponentCost(shaped, int(re.sub(r"\D", "", dtype or "") or 8))


def _mean_bits(quantized: Manifest, float_bytes: int) -> float:
    """Bits that each large constant of a component has come to, of 32."""
    parts = quantized.read(quantize.Facts.from_json).parts.values()
    largest = max((part.facts.constant_bytes for part in parts), default=0)
    return min(32.0, 32 * largest / float_bytes) if float_bytes else 8  # `largest` has small constants, too


def _made(step: Step, workspace: Workspace) -> Manifest:
    manifest = read_manifest(workspace.current(step))
    if manifest is None:
        raise WorkerError(f"{step.id} was not made", remedy=f"run 'doit {step.id}', then the same command again")
    return manifest
