"""Finds the step that a compile waits for, so that harm by padding is found before time is spent on compiling."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.plan.steps import Step


def compiled_after(step: Step, steps: Mapping[str, Step]) -> list[str]:
    """The id of the step that shows whether padding harms the component of `step`, which then waits for it; or none.

    It verifies the smallest bucket, which costs least. The list is empty if `step` compiles nothing, if nothing is
    padded, or if the padded model is the truth. It is empty for language models, too: our own graphs pad them.
    """
    component = step.component
    if step.stage not in ("packing", "context") or component is None or step.config.language:
        return []
    if step.config.components[component].truth != "unpadded" or _may_ship_unverified(step, component):
        return []
    padded = [bucket for bucket in step.config.buckets if bucket.axes]
    first = min(padded, key=lambda bucket: math.prod(bucket.axes.values()), default=None)
    name = f"verify:{step.config.name}/{component}/{first.name}" if first else ""
    return [name] if name in steps else []


def _may_ship_unverified(step: Step, component: str) -> bool:
    release = step.config.release
    return release is not None and any(name.split("/")[0] == component for name in release.unverified)
