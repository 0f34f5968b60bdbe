"""Finds the files that engines open beside a language model's contexts, and what was shown of the engines with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.contracts import bundle, converse
from pipeline.model import FileEntry, Json, Manifest
from pipeline.plan.steps import Step

MEMBER = "engines"
"""The member of a component in manifest.json and release.json that lists these files and says what was shown."""
_NAMES: Mapping[str, str] = {"genai": "onnxruntime-genai", "genie": "Genie"}
_NOT_MEASURED = "verification or the emulator is switched off in the config"


def files_of(step: Step, steps: Sequence[Step], manifests: Mapping[str, Manifest]) -> dict[str, FileEntry]:
    """The files for engines that belong to the contexts of a step; none if its component is no language model."""
    found = _output_of("bundle", step, steps, manifests)
    return dict(found.files) if found else {}


def engines_of(step: Step, steps: Sequence[Step], manifests: Mapping[str, Manifest]) -> dict[str, Json]:
    """The member :data:`MEMBER` of a context step's component; empty if that is no language model."""
    written = _output_of("bundle", step, steps, manifests)
    if written is None:
        return {}
    facts = written.read(bundle.Facts.from_json)
    asked = _output_of("converse", step, steps, manifests)
    shown = asked.read(converse.Facts.from_json) if asked else None
    engines: dict[str, Json] = {}
    for engine in _NAMES:
        why, spoken = _unproven(engine, facts, shown), shown.engines.get(engine) if shown else None
        engines[engine] = {
            "config": facts.configs.get(engine),
            "proof": _proof(engine, spoken, shown) if shown and spoken and spoken.refused is None else None,
            **({"why": why} if why else {}),
        }
    return {MEMBER: {**engines, "files": entries_of(written.files)}}


def entries_of(files: Mapping[str, FileEntry]) -> dict[str, Json]:
    """The member `files` of manifest.json: the digest and the size of each file, by its name."""
    return {name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in files.items()}


def _proof(engine: str, spoken: converse.Spoken, shown: converse.Facts) -> Json:
    """What one engine did on the emulator, and nothing that it did not do."""
    whole = None
    if spoken.opened:
        whole = (
            "the shipped contexts" if shown.differences is None else "the same graphs, each with a binary of its own"
        )
    answered: Json = None
    if spoken.tokens and spoken.tokens == shown.expected:
        answered = {"graphs": shown.twin, "prompt": shown.prompt, "tokens": len(spoken.tokens)}
    return {
        "by": f"{_NAMES[engine]} {spoken.version} on QNN's emulator",
        "opened": whole,
        "answered": answered,
        **({"texts": {"alike": spoken.texts[0], "of": spoken.texts[1]}} if spoken.texts else {}),
    }


def _unproven(engine: str, facts: bundle.Facts, shown: converse.Facts | None) -> str:
    """Why something was not shown of an engine; "" if everything was."""
    if engine in facts.unwritten:
        return facts.unwritten[engine]
    if shown is None:
        return _NOT_MEASURED
    spoken = shown.engines.get(engine)
    if spoken is not None and spoken.refused is not None:
        return spoken.refused
    return "; ".join(why for who, why in shown.unasked.items() if who not in _NAMES or who == engine)


def _output_of(stage: str, step: Step, steps: Sequence[Step], manifests: Mapping[str, Manifest]) -> Manifest | None:
    wanted = (each.id for each in steps if each.stage == stage and each.component == step.component)
    return next((manifests[name] for name in wanted if name in manifests and _target(name) == _target_of(step)), None)


def _target(name: str) -> str:
    """The target at the end of a step's name."""
    return name.rpartition("/")[2]


def _target_of(step: Step) -> str:
    return step.target.soc if step.target else ""
