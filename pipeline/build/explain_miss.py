"""Judges whether the output of a step may ship and, if not, looks for the values that went wrong first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.build import gates
from pipeline.build.bring import Shown, bring_up_to_date
from pipeline.build.crew import Crew
from pipeline.build.schedule import WithdrawnError
from pipeline.config.quantization import Fp16
from pipeline.config.thresholds import SMALL_BYTES, WISHED_FEATURES_DB
from pipeline.contracts import blame, emulate, probe, quantize, verify
from pipeline.contracts.blame import OF_INTEGERS, RowFacts
from pipeline.contracts.forecast import Forecast, harmful
from pipeline.errors import PipelineError, WaitingError
from pipeline.plain_text import cutting
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import read_manifest

_SEARCHES = {"verify": "blame", "emulate": "probe"}
"""For each stage that measures a rung, the stage that looks for the values that went wrong."""
_IN_FLOAT = (
    "this is float16 already: leave 'quantization' out if that was not tried, as integers of 16 bits hold some values"
    " that float16 does not; else end the component before what goes wrong, with 'cut', and compute the rest in the"
    " application"
)
_MOST = 8
"""Forecasts that a message quotes."""
_NODE = re.compile(r"'(.*)' \([^ ]+\)")


def judge(step: Step, workspace: Workspace) -> gates.Miss | None:
    """Why the last output of a step may not ship; None if it may."""
    manifest = read_manifest(workspace.current(step))
    if manifest is None or step.component is None:
        return None
    return gates.check(step.name, manifest, step.config.components[step.component].thresholds)


def wanting(step: Step, workspace: Workspace) -> gates.Miss | None:
    """The figure by which a step keeps to its gates with less margin than a default aims at; None if there is none."""
    wished = step.config.components[step.component].wished if step.component else None
    manifest = read_manifest(workspace.current(step)) if wished else None
    if manifest is None or wished is None:
        return None
    # Whether a component is small is looked up where it matters alone.
    coarse = gates.wish(step.stage, manifest.facts, wished)
    finer = coarse or gates.wish(step.stage, manifest.facts, wished, features_db=WISHED_FEATURES_DB)
    return finer if coarse or (finer and _is_small(step, workspace)) else None


def _is_small(step: Step, workspace: Workspace) -> bool:
    """Whether a component has so few bytes of quantized weights that doubling them matters little; False for none."""
    made = read_manifest(workspace.current(f"quantize:{step.config.name}/{step.component}"))
    parts = made.read(quantize.Facts.from_json).parts.values() if made else ()
    counted = [part.facts.constants.items() for part in parts]
    sizes = [sum(count.bytes for kind, count in counts if kind != quantize.FLOAT16) for counts in counted]
    return 0 < max(sizes, default=0) <= SMALL_BYTES


def explain(
    miss: gates.Miss, step: Step, steps: Mapping[str, Step], workspace: Workspace, crew: Crew, shown: Shown
) -> PipelineError:
    """The error for a miss, with its forecasts. For a miss of a rung it also names the first values that went wrong."""
    foretold = _foretold(step, workspace) if miss.rung in ("compile", "total") and step.stage == "emulate" else ()
    lines = "".join(f"\n    | {forecast.line()}" for forecast in foretold[:_MOST])
    error = _with(miss.error, f"forecast before it was compiled:{lines}") if foretold else miss.error
    if miss.rung in ("compile", "total") and _is_in_float(step):
        error = error.but(remedy=_IN_FLOAT + (f"; or accept it with {miss.accepts}" if miss.accepts else ""))
    return _first_wrong(replace(miss, error=error), step, steps, workspace, crew, shown)


def _is_in_float(step: Step) -> bool:
    return step.component is not None and isinstance(step.config.components[step.component].quantization, Fp16)


def _foretold(step: Step, workspace: Workspace) -> tuple[Forecast, ...]:
    """The harmful forecasts for the model that a step measured."""
    resolved = resolve(step, workspace)
    params = resolved.params if resolved else None
    if resolved is None or not isinstance(params, emulate.Params):
        return ()
    if params.last != "quantization":
        return harmful(resolved.inputs["verify"].read(verify.Facts.from_json).forecasts)
    return harmful(resolved.inputs["model"].read(quantize.PartFacts.from_json).forecasts)


def _first_wrong(
    miss: gates.Miss, step: Step, steps: Mapping[str, Step], workspace: Workspace, crew: Crew, shown: Shown
) -> PipelineError:
    search = steps.get(f"{_SEARCHES.get(step.stage, '')}:{step.name}")
    if search is None or not miss.rung:
        return miss.error
    try:
        with shown(search) as started:
            bring_up_to_date(search, workspace, crew, started)
    except WithdrawnError:
        return miss.error
    except WaitingError as error:
        return _with(
            miss.error, f"where it went wrong first is found by 'doit {search.id}' on {' or '.join(error.hosts)}"
        )
    except PipelineError as error:
        return _with(miss.error, f"{search.id} failed: {error.what}")
    manifest = read_manifest(workspace.current(search))
    facts = (probe if search.stage == "probe" else blame).Facts.from_json(manifest.facts) if manifest else None
    rung = "quantization" if miss.rung == "total" and step.stage == "verify" else miss.rung
    found = facts.first_wrong.get("compile" if step.stage == "emulate" else rung) if facts else None
    if not found:
        return miss.error
    told = miss.error
    if isinstance(facts, probe.Facts) and any(map(is_of_integers, found)):
        told = _of_integers(miss, facts)
    return _with(
        told, "first to go wrong, in the order of the graph:" + "".join(f"\n    | {_line(row)}" for row in found)
    )


def nodes_of(rows: Sequence[RowFacts]) -> tuple[str, ...]:
    """The names of the nodes that make the values of these rows, each once."""
    found = [match[1] for row in rows if (match := _NODE.fullmatch(row.node))]
    return tuple(dict.fromkeys(found))


def is_of_integers(row: RowFacts) -> bool:
    """Whether a row is about whole numbers, which no precision changes."""
    return row.reason is not None and row.reason.name == OF_INTEGERS


def _of_integers(miss: gates.Miss, facts: probe.Facts) -> PipelineError:
    """The error of a miss whose cause no precision changes, with what does."""
    remedies = ["no precision changes integers: give the model smaller ones"]
    if facts.starts:
        one = len(facts.starts) == 1
        remedies.append(
            f"let the application compute {', '.join(map(repr, facts.starts))}, and export the model with"
            f" {'that as its input' if one else 'those as its inputs'}"
        )
    remedies += [cutting(facts.ends).removesuffix("; or ")] if facts.ends else []
    remedies += [f"accept it with {miss.accepts}"] if miss.accepts else []
    why = miss.error.why.replace(gates.COARSE, "HTP computes integers otherwise than ONNX defines them")
    return miss.error.but(why=why, remedy="; or ".join(remedies))


def _with(error: PipelineError, why: str) -> PipelineError:
    return error.but(why="; ".join(filter(None, (error.why, why))))


def _line(row: RowFacts) -> str:
    found = "no number" if row.sqnr_db is None else f"{row.sqnr_db:.1f} dB"
    why = f": {row.reason.name}: {row.reason.text}" if row.reason else ""
    return f"{row.value!r} {found}, {row.node}{why}"
