"""Projects of any number of steps, all of them done: what planning, listing and a build with nothing to do cost.

One tiny model is built with the real compiler and emulator. What its steps made stands for the steps of a matrix of
buckets and targets, under the keys that those have; every other model is the same under another name. So a project of
100,000 steps, in which a build finds nothing to do, takes minutes to make and not days.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.load import load_healthy
from pipeline.model import PARTS, Json, Manifest
from pipeline.plan.planner import plan
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import ON_DEMAND, Step
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import read_manifest, write_manifest
from tests.bench import startup

BUCKETS = (8, 9, 10, 11, 12)
TARGETS = (
    "sm8450", "sm8475", "sm8550", "sm8650", "sm8735", "sm8750", "sm8845", "sm8850", "snapdragon-x-elite",
    "snapdragon-x2-elite",
)  # fmt: skip
_BASE = "base"


def create(root: Path, models: int, buckets: Sequence[int] = BUCKETS, targets: Sequence[str] = TARGETS) -> int:
    """A project in `root` whose steps are all done, as often as there are `models`; how many steps it has."""
    startup.create(root)
    for config in (root / "configs").iterdir():
        config.unlink()
    (root / "configs" / f"{_BASE}.yaml").write_text(startup.CONFIG, "utf-8")
    subprocess.run([sys.executable, "-m", "doit", "build"], cwd=root, check=True, stdout=subprocess.DEVNULL)
    (root / "configs" / f"{_BASE}.yaml").unlink()
    shutil.rmtree(root / "artifacts")
    lists = {"[8]": json.dumps([*buckets]), "[sm8650]": f"[{', '.join(targets)}]"}
    text = startup.CONFIG
    for known, wanted in lists.items():
        text = text.replace(known, wanted)
    for number in range(models):
        (root / "configs" / f"{_name(number)}.yaml").write_text(text, "utf-8")
    return _made(root, models) * models


def _made(root: Path, models: int) -> int:
    """Write what the steps of all models made last; how many steps one has."""
    workspace = Workspace.at(root)
    configs, refusal = load_healthy(root / "configs")
    assert refusal is None
    outputs: dict[str, Manifest] = {}
    for step in plan(configs[_name(0)]):
        if step.stage in ON_DEMAND:
            continue
        resolved = resolve(step, workspace, outputs)
        assert resolved is not None, step.id
        made = _as_if(step, resolved.key, _of_base(step, workspace))
        outputs[step.id] = made
        workspace.store.record(made)
        for number in range(models):
            path = workspace.current(step.id.replace(_name(0), _name(number)))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_manifest(path, made, durable=False)
    return len(outputs)


def _of_base(step: Step, workspace: Workspace) -> Manifest:
    """What the base model's step of this kind made."""
    stage = workspace.build / "steps" / step.stage
    path = next(path for path in sorted(stage.rglob("*.json")) if path.relative_to(stage).parts[0].startswith(_BASE))
    return _read(path)


def _read(path: Path) -> Manifest:
    found = read_manifest(path)
    assert found is not None, path
    return found


def _as_if(step: Step, key: str, base: Manifest) -> Manifest:
    """The manifest of a step that made for its buckets what the base model's made for its one."""
    facts = dict(base.facts)
    parts = facts.get(PARTS)
    if isinstance(parts, Mapping):
        ((known, part),) = parts.items()
        names = [step.bucket.name] if step.bucket else [bucket.name for bucket in step.config.buckets]
        facts[PARTS] = {name: _renamed(part, known, name) for name in names}
    return Manifest(step.stage, key, base.files, facts)


def _renamed(part: Json, known: str, name: str) -> Json:
    """A part for another bucket."""
    text = json.dumps(part).replace(f'"bucket": "{known}"', f'"bucket": "{name}"')
    renamed: Json = json.loads(text)
    return renamed


def _name(number: int) -> str:
    return f"model-{number:05}"
