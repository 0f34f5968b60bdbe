"""Whether the output of a step may ship; if not, the values that went wrong first, looked for there and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pipeline import gates
from pipeline.build import bring_up_to_date
from pipeline.engine.crew import Crew
from pipeline.engine.schedule import WithdrawnError
from pipeline.errors import PipelineError, WaitingError
from pipeline.model import Json
from pipeline.plan import Step
from pipeline.storage.manifests import read_manifest
from pipeline.workspace import Workspace

_SEARCHES = {"verify": "blame", "emulate": "probe"}
"""The stage that looks for what went wrong, by the stage that found that something did."""


def judge(step: Step, workspace: Workspace) -> gates.Miss | None:
    """Why what a step produced last may not ship, None if it may."""
    manifest = read_manifest(workspace.current(step))
    if manifest is None or step.component is None:
        return None
    return gates.check(step.stage, step.name, manifest.facts, step.config.components[step.component].thresholds)


def explain(miss: gates.Miss, step: Step, steps: Mapping[str, Step], workspace: Workspace, crew: Crew) -> PipelineError:
    """The error for a miss, with the first values that went wrong if it is one of the ladder."""
    search = steps.get(f"{_SEARCHES.get(step.stage, '')}:{step.name}")
    if search is None or not miss.rung:
        return miss.error
    try:
        bring_up_to_date(search, workspace, crew)
    except WithdrawnError:
        return miss.error
    except WaitingError as error:
        return _with(
            miss.error, f"where it went wrong first is found by 'doit {search.id}' on {' or '.join(error.hosts)}"
        )
    except PipelineError as error:
        return _with(miss.error, f"{search.id} failed: {error.what}")
    manifest = read_manifest(workspace.current(search))
    wrong = cast("Mapping[str, list[Mapping[str, Json]]]", manifest.facts["first_wrong"]) if manifest else {}
    rung = "quantization" if miss.rung == "total" and step.stage == "verify" else miss.rung
    found = wrong.get("compile" if step.stage == "emulate" else rung, [])
    if not found:
        return miss.error
    return _with(
        miss.error, "first to go wrong, in the order of the graph:" + "".join(f"\n    | {_line(row)}" for row in found)
    )


def _with(error: PipelineError, why: str) -> PipelineError:
    return type(error)(
        error.what, where=error.where, why="; ".join(filter(None, (error.why, why))), remedy=error.remedy
    )


def _line(row: Mapping[str, Json]) -> str:
    value, reason = row["sqnr_db"], row["reason"]
    found = f"{value:.1f} dB" if isinstance(value, float | int) else "no number"
    why = f": {reason['name']}: {reason['text']}" if isinstance(reason, dict) else ""
    return f"{row['value']!r} {found}, {row['node']}{why}"
