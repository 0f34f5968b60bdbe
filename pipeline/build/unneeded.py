"""Warns of buckets that no sample needs, as soon as the samples are read: their accuracy will not be shown."""

from __future__ import annotations

from pipeline.contracts import samples
from pipeline.plan.steps import Step, held_out_set
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import read_manifest


def unneeded_buckets(step: Step, workspace: Workspace) -> str:
    """A warning about the buckets that no sample needs, for the step that reads a model's held-out samples; else "".

    A bucket that only samples of calibration need is found later, when it is measured.
    """
    if not step.config.verification.enabled or step.id != held_out_set(step):
        return ""
    manifest = read_manifest(workspace.current(step))
    facts = manifest.read(samples.Facts.from_json) if manifest is not None else None
    if facts is None or not facts.unneeded:
        return ""
    axes = {axis for bucket in step.config.buckets for axis in bucket.axes}
    told = []
    for component, names in facts.unneeded.items():
        lengths = facts.lengths.get(component, {})
        spans = [f"{axis} {low} to {high}" for axis, (low, high) in lengths.items() if axis in axes]
        own = ", ".join(f"{step.config.name}/{component}/{name}" for name in names)
        told.append(f"{own} (samples have {', '.join(spans)})")
    return (
        f"{step.id}: no sample needs {'; '.join(told)}: what inputs of that length give will not be shown."
        " Add such samples, or drop the bucket."
    )
