"""Projects of any number of steps, all of them done: what listing, planning and a build with nothing to do cost.

One tiny model is built with the real compiler and emulator. What its steps made stands for the steps of a matrix of
five buckets and ten targets, under the keys that those have. That model is built, which writes its artifacts; every
other one is the same under another name, file by file. So a project of 100,000 steps, in which a build finds nothing to
do, takes minutes to make and not days.
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
from pipeline.store import sealed_json
from pipeline.store.files_read import stamp_of
from pipeline.store.manifests import read_manifest, write_manifest
from tests.bench import startup

BUCKETS = (8, 9, 10, 11, 12)
TARGETS = (
    "sm8450", "sm8475", "sm8550", "sm8650", "sm8735", "sm8750", "sm8845", "sm8850", "snapdragon-x-elite",
    "snapdragon-x2-elite",
)  # fmt: skip
MODELS = (1, 10, 100, 1000)
_BASE = "base"
_PLAN = """\
from pathlib import Path
from pipeline.config.load import load_healthy
from pipeline.plan.planner import plan_all
configs, _ = load_healthy(Path("configs").absolute())
print(len(plan_all(configs.values())))
"""
COMMANDS: Mapping[str, Sequence[str]] = {
    "import doit": ["-c", "import doit"],
    "list": ["-m", "doit", "list"],
    "plan": ["-c", _PLAN],
    "nothing to do": ["-m", "doit", "build"],
    "one model": ["-m", "doit", "build:model-00000"],
}
"""What is measured, in words, and the arguments of Python. `plan` keeps all steps in memory."""


class GrowingProject:
    """A project in `root`, with one model at first, whose steps are all done."""

    def __init__(self, root: Path, buckets: Sequence[int] = BUCKETS, targets: Sequence[str] = TARGETS) -> None:
        self.root = root
        startup.create(root)
        for config in (root / "configs").iterdir():
            config.unlink()
        base = root / "configs" / f"{_BASE}.yaml"
        base.write_text(startup.CONFIG, "utf-8")
        self._doit("build")
        base.unlink()
        shutil.rmtree(root / "artifacts")
        text = startup.CONFIG.replace("[8]", json.dumps([*buckets])).replace("[sm8650]", f"[{', '.join(targets)}]")
        (root / "configs" / f"{_name(0)}.yaml").write_text(text, "utf-8")
        self.planned, self.built = self._finish_first()
        self.models = 1
        stamp = root / ".build" / "unchanged" / f"{_name(0)}.json"
        while not stamp.exists():  # the first build writes artifacts, of which the last are too young to be remembered
            self._doit("build")

    def grow(self, models: int) -> None:
        """Have so many models."""
        for number in range(self.models, models):
            self._copy(_name(number))
        self.models = max(models, self.models)

    def _copy(self, name: str) -> None:
        """Everything that is there of the first model, under another name."""
        first, build = _name(0), self.root / ".build"
        below = [f"configs/{first}.yaml", f".build/pages/{first}.json"]
        tops = [self.root / "artifacts" / first, *(stage / first for stage in (build / "steps").iterdir())]
        files = [self.root / each for each in below]
        for top in tops:
            files += [path for path in top.rglob("*") if path.is_file()] if top.is_dir() else [Path(f"{top}.json")]
        for path in files:
            if path.exists():
                to = Path(str(path).replace(first, name))
                to.parent.mkdir(parents=True, exist_ok=True)
                data = path.read_bytes()
                is_ours = path.name == "manifest.json"
                to.write_bytes(data.replace(first.encode(), name.encode()) if is_ours else data)
        kept = sealed_json.load((build / "unchanged" / f"{first}.json").read_bytes())
        kept = json.loads(json.dumps(kept).replace(first, name))
        kept["files"] = {path: stamp_of(str(self.root / path)) for path in kept["files"]}
        seal = {key: value for key, value in kept.items() if key != "sha256"}
        (build / "unchanged" / f"{name}.json").write_bytes(sealed_json.dump(seal, indent=None, sort_keys=False))

    def _finish_first(self) -> tuple[int, int]:
        """Write what the steps of the first model made last; how many it has, and how many of them are built."""
        workspace = Workspace.at(self.root)
        configs, refusal = load_healthy(self.root / "configs")
        assert refusal is None
        outputs: dict[str, Manifest] = {}
        steps = [*plan(configs[_name(0)])]
        for step in steps:
            if step.stage in ON_DEMAND:
                continue
            resolved = resolve(step, workspace, outputs)
            assert resolved is not None, step.id
            made = outputs[step.id] = _as_if(step, resolved.key, _of_base(step, workspace))
            workspace.store.record(made)
            path = workspace.current(step.id)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_manifest(path, made, durable=False)
        return len(steps), len(outputs)

    def _doit(self, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "doit", *arguments], cwd=self.root, check=True, stdout=subprocess.DEVNULL)


def _of_base(step: Step, workspace: Workspace) -> Manifest:
    """What the base model's step of this kind made."""
    stage = workspace.build / "steps" / step.stage
    path = next(path for path in sorted(stage.rglob("*.json")) if path.relative_to(stage).parts[0].startswith(_BASE))
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
