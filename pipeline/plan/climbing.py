"""Finds in the store the precision that a component climbed to earlier, by the key of all that decided it."""

from __future__ import annotations

from pathlib import Path

from pipeline.contracts.climb import Facts
from pipeline.model import Json, Manifest
from pipeline.plan.keys import step_key, tool_versions
from pipeline.plan.steps import ClimbBasis
from pipeline.plan.workspace import Workspace

STAGE = "climb"
"""The stage in the manifest of a climb's result. It has no steps: the build climbs when a step misses a gate."""
_JUDGES = ("verify", "packing", "context", "emulate", "blame", "probe")
_CODE = Path(__file__).parent.parent / "build" / "remedies.py"


def key(climb: ClimbBasis, quantize_key: str, samples: Manifest, workspace: Workspace) -> str:
    """The key of the climb of a component. `quantize_key` is the key of its quantize step as it is configured."""
    code = [workspace.code.stage(stage) for stage in _JUDGES]
    code.append(workspace.code.script(_CODE, _CODE.parent.parent.parent))
    tools = {name: version for stage in _JUDGES for name, version in tool_versions(stage).items()}
    scripts = {role: workspace.code.script(path, workspace.root) for role, path in climb.scripts.items()}
    params: dict[str, Json] = {**climb.params, "quantize": quantize_key}
    return step_key(STAGE, code=" ".join(code), params=params, inputs={"samples": samples}, files=scripts, tools=tools)


def climbed(key: str, workspace: Workspace) -> Facts | None:
    """The result of an earlier climb; None if there was none, or if it found no precision."""
    manifest = workspace.store.get(key)
    return manifest.read(Facts.from_json) if manifest is not None else None
