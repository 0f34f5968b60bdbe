"""Fills `.build/failed/<model>/<component>/` with the files of a component that may not ship, for a user to look at.

A step that misses a gate has made its output all the same. The store keeps it under digests, which a user can't guess.
In this folder the files have their names, and a README says what failed and how to go on.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.build.bring import needed
from pipeline.contracts.probe import WORST
from pipeline.errors import PipelineError
from pipeline.model import FileEntry, Manifest
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store.durable import write_atomically
from pipeline.store.manifests import read_manifest

README = "README.md"
_KEPT = {"rewrite": "rewritten", "quantize": "qdq", "context": "context"}
"""Stages whose files are worth a look, and the folder they are put into."""
_SEARCHES = {"blame": "the float and the QDQ model, both on the CPU", "probe": "the CPU and the emulator"}
"""Stages that look for what went wrong, and which models computed `expected` and `got` of their worst sample."""
_RUN = """import numpy as np, onnxruntime as ort

worst = np.load("{worst}")
feeds = {{name.removeprefix("input:"): worst[name] for name in worst.files if name.startswith("input:")}}
session = ort.InferenceSession("{model}")
for output, here in zip(session.get_outputs(), session.run(None, feeds)):
    expected, got = worst["expected:" + output.name], worst["got:" + output.name]
    print(output.name, "largest error: got", abs(got - expected).max(), "here", abs(here - expected).max())
"""

_lock = threading.Lock()
_kept: set[Path] = set()


def kept(
    step: Step, error: PipelineError, steps: Mapping[str, Step], workspace: Workspace, *, made: bool
) -> PipelineError:
    """The error, which also says where what a component's failed step and those before it made can be looked at.

    `made` says whether the step made its output, which a gate refuses. The first failure of a component in a build is
    kept; where the disk refuses, none is.
    """
    if step.component is None:
        return error
    folder = workspace.build / "failed" / step.config.name / step.component
    with _lock:
        try:
            if folder not in _kept and not _keep(step, error, steps, workspace, folder, made):
                return error
        except (PipelineError, OSError):
            return error
        _kept.add(folder)
    here = f"what was made is in {folder.relative_to(workspace.root).as_posix()}/"
    return error.but(remedy="; ".join(filter(None, (error.remedy, here))))


def forget(model: str, workspace: Workspace) -> None:
    """Remove what earlier failures of a model left."""
    shutil.rmtree(workspace.build / "failed" / model, ignore_errors=True)


def _keep(
    step: Step, error: PipelineError, steps: Mapping[str, Step], workspace: Workspace, folder: Path, made: bool
) -> bool:
    before = [steps[name] for name in step.after]
    found = {(kind, name): entry for kind, name, entry in _payloads([step] if made else before, step, steps, workspace)}
    if not found:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    with workspace.scratch.folder() as scratch:
        for (kind, name), entry in found.items():
            path = folder / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            workspace.store.export(entry, path, scratch)
        write_atomically(folder / README, _readme(step, error, [*found], workspace).encode(), folder=scratch)
    return True


def _payloads(
    last: Sequence[Step], step: Step, steps: Mapping[str, Step], workspace: Workspace
) -> Iterator[tuple[str, str, FileEntry]]:
    """Folder, name and content of every file worth a look: of the last steps, and of what they stand on."""
    for each in (*last, *(before for one in last for before in needed(one, steps))):
        manifest = read_manifest(workspace.current(each))
        if manifest is None or each.component != step.component:
            continue
        if each.stage in _KEPT and (step.bucket is None or each.bucket in (None, step.bucket)):
            for name, entry in _named(each, step, manifest):
                yield _KEPT[each.stage], name, entry
    for stage in _SEARCHES:
        search = workspace.current(f"{stage}:{step.name}")
        manifest = read_manifest(search) if f"{stage}:{step.name}" in steps else None
        if manifest is not None and WORST in manifest.files:
            yield stage, WORST, manifest.files[WORST]


def _named(made: Step, failed: Step, manifest: Manifest) -> Iterator[tuple[str, FileEntry]]:
    """The files of an output, narrowed to the bucket that failed where the step made something for several."""
    part = manifest.part(failed.bucket.name) if failed.bucket and made.bucket is None else None
    yield from (part or manifest).files.items()


def _readme(step: Step, error: PipelineError, files: list[tuple[str, str]], workspace: Workspace) -> str:
    kinds = {kind for kind, _ in files}
    lines = [f"# {step.id} failed", "", "```", str(error), "```", "", "What is here:", ""]
    lines += [f"- `{kind}/{name}`" for kind, name in sorted(files)]
    lines += ["", f"The step's log: `{workspace.log(step).relative_to(workspace.root).as_posix()}`.", ""]
    name = "/".join(step.name.split("/")[:3])
    looks = []
    searched = not step.config.language  # of a language model there is neither search
    if searched and "qdq" in kinds:
        looks.append((f"doit blame:{name}", "ranks the values that quantization costs most at, and says why"))
    if searched and step.stage in ("emulate", "context"):
        looks.append((f"doit probe:{step.name}", "finds where the context begins to compute otherwise than the CPU"))
    if looks:
        lines += ["Look for the cause:", "", *(f"- `uv run {command}` {does}" for command, does in looks), ""]
    model = next((f"{kind}/model.onnx" for kind in ("qdq", "rewritten") if (kind, "model.onnx") in files), None)
    for kind, computed in _SEARCHES.items():
        if model and (kind, WORST) in files:
            lines += [f"`{kind}/{WORST}` has the worst sample and its outputs of {computed} (`expected`, `got`):", ""]
            lines += ["```python", _RUN.format(worst=f"{kind}/{WORST}", model=model).rstrip(), "```", ""]
    lines += ["Everything here can be deleted; the next build of the component replaces it.", ""]
    return "\n".join(lines)
