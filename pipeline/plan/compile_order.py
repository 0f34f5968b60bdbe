"""What is shown of a component before the first of its contexts is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.plan.steps import Step


def compiled_after(step: Step, steps: Mapping[str, Step]) -> list[str]:
    """The step out of `steps` that shows, before `step` compiles anything, whether padding harms its component.

    It is that of the smallest bucket, which costs least; larger ones are verified meanwhile. None where nothing is
    compiled, nothing is padded or it is true by definition; a language model is padded by our own graphs. Where
    several machines build, nothing waits for this: each goes on with what it can.
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
