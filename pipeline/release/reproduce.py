"""Builds a release again in a clean folder, from its release.json, and compares the two file by file.

The folder has the code and `calibration/` of this checkout, and the release's config, source commit and targets. Its
store is empty, and the shared store is not used. So a file that comes out equal was made from these alone. The folder
stays if something differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.file import HubSource
from pipeline.config.load import ModelConfig, load
from pipeline.errors import BY_NAME, ConfigError, PipelineError, VerificationError, WorkerError
from pipeline.frozen import dataclass
from pipeline.inputs.pins import write_pin
from pipeline.plan.workspace import Workspace
from pipeline.release.archives import on_disk
from pipeline.release.verify import read_index
from pipeline.stage_table import STAGES
from pipeline.store.durable import disk_errors

Index = Mapping[str, Any]

_EVIDENCE = frozenset({"emulate"})
"""Stages whose figures depend on how many samples the time allowed (ADR 68). No file of a release depends on them."""
_NOT_HERE = ("PIPELINE_STORE", "PIPELINE_SHARED_STORE", "PIPELINE_SIGNING_KEY")
"""Environment variables that would bring in earlier outputs, or sign an archive that is only compared."""


@dataclass(frozen=True)
class Reproduction:
    """The comparison of a release with what was built again: the files that are `equal`, and the `different` ones.

    `different` has for each name what differs. `first` is a sentence on the first step that explains it, "" if there is
    none.
    """

    equal: tuple[str, ...]
    different: Mapping[str, str]
    first: str
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Lines for the user."""
        yield from (f"MATCH {name}" for name in self.equal)
        yield from (f"DIFF  {name}: {how}" for name, how in self.different.items())
        if self.first:
            yield self.first
        yield from self.notes


def reproduce(path: Path, workspace: Workspace) -> Iterator[str]:
    """Build the release again, and yield lines for the user.

    Raises:
        VerificationError: the archive is not as it was made, or a file came out differently.
        ConfigError: there is no such file, or the model's source is outside of the project.
        PipelineError: the build failed; the error has its exit code.
    """
    then = read_index(path)
    name = f"{then['model']} {then['version']}"
    folder = workspace.build / "reproduce" / f"{then['model']}-{then['version']}"
    with disk_errors(folder, "the clean folder can't be made"):
        shutil.rmtree(folder, ignore_errors=True)
        _lay_out(folder, then, workspace.root)
    yield f"building {name} again in {folder.relative_to(workspace.root).as_posix()}"
    verdict = compare(then, _built(folder, then))
    yield from verdict.lines()
    if verdict.different:
        raise VerificationError(
            f"{name} was not reproduced: {len(verdict.different)} of {len(then['files'])} files differ",
            where=verdict.first,
            why="; ".join(verdict.notes),
            remedy=f"what was built lies in {folder.relative_to(workspace.root).as_posix()}",
        )
    shutil.rmtree(folder, ignore_errors=True)
    yield f"MATCH {name}: all {len(then['files'])} files came out as they were released"


def compare(then: Index, now: Index) -> Reproduction:
    """Compare the index of a release with that of what was built again."""
    equal, different = [], {}
    for name, entry in sorted(then["files"].items()):
        made = now["files"].get(name)
        if made == entry:
            equal.append(name)
        else:
            how = "not made" if made is None else f"sha256 {made['sha256'][:16]}, was {entry['sha256'][:16]}"
            different[name] = how
    for name in sorted({*now["files"]} - {*then["files"]}):
        different[name] = "not in the release"
    return Reproduction(tuple(equal), different, _first(then, now), tuple(_notes(then, now)))


def _first(then: Index, now: Index) -> str:
    """A sentence on the first step whose output differs or, if all outputs are equal, whose key differs."""
    for kind, told in (("outputs", "whose output differs"), ("keys", "that was told otherwise, with an equal output")):
        before, after = then.get(kind, {}), now.get(kind, {})
        for step in sorted(before, key=_order):
            stage = step.split(":")[0]
            if before[step] != after.get(step) and stage not in _EVIDENCE:
                return f"the first step {told} is {step}: {_cause(step, stage, then, now)}"
    return ""


def _cause(step: str, stage: str, then: Index, now: Index) -> str:
    if step not in now["keys"]:
        return "it is no part of this build"
    if then["keys"][step] == now["keys"][step]:
        return "its key is equal, so it does not make the same of the same"
    tools = [
        f"{name} {now['tools'].get(name)} here, {then['tools'].get(name)} then"
        for name in STAGES[stage].tools
        if now["tools"].get(name) != then["tools"].get(name)
    ]
    return ", ".join(tools) or "its code, its settings or the files it reads are others than those of the release"


def _notes(then: Index, now: Index) -> Iterator[str]:
    before, after = then["tools"], now["tools"]
    differing = sorted(name for name in {*before} | {*after} if before.get(name) != after.get(name))
    if differing:
        listed = ", ".join(f"{name} {after.get(name)}, was {before.get(name)}" for name in differing)
        yield f"other packages than then: {listed}"


def _order(step: str) -> tuple[int, str]:
    stage = step.split(":")[0]
    return [*STAGES].index(stage) if stage in STAGES else len(STAGES), step


def _lay_out(folder: Path, then: Index, root: Path) -> None:
    """Make a checkout of this code in `folder` whose only config is that of the release."""
    folder.mkdir(parents=True)
    shutil.copy(root / "dodo.py", folder)
    shutil.copytree(root / "pipeline", folder / "pipeline")
    shutil.copytree(root / "calibration", folder / "calibration", symlinks=True)
    path = folder / "configs" / f"{then['model']}.yaml"
    path.parent.mkdir()
    path.write_bytes(then["config"]["text"].encode())
    config, source = load(path), then["source"]
    if isinstance(config.source, HubSource):
        write_pin(path.with_name("pins.yaml"), config.source.hub, config.source.revision, source["revision"])
        return
    relative = _inside(config, folder)
    for name in source["files"]:
        given, copy = root / relative / name, folder / relative / name
        if given.is_file():  # the build says which file is missing
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(given, copy)


def _inside(config: ModelConfig, folder: Path) -> Path:
    """The path of a source in this project, relative to the project."""
    assert not isinstance(config.source, HubSource)
    try:
        return config.source.path.resolve().relative_to(folder.resolve())
    except ValueError:
        raise ConfigError(
            f"the source of {config.name} is a folder outside of the project",
            where=str(config.source.path),
            why="a release names its files by their digests, and says nothing about where they are",
            remedy="put it inside the project, or have it on a hub",
        ) from None


def _built(folder: Path, then: Index) -> Index:
    """Build and package in the folder. Returns the index of the archive."""
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_HERE}
    targets = ",".join(target["name"] for target in then["targets"])
    command = [sys.executable, "-m", "doit", f"targets={targets}", f"package:{then['model']}"]
    status = subprocess.run(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        kinds = {kind.exit_code: kind for kind in BY_NAME.values() if kind is not PipelineError}
        raise kinds.get(status, WorkerError)(
            f"{then['model']} could not be built again",
            where=str(folder),
            why=f"the build ended with exit code {status}; what it said is above",
            remedy="see to that, and reproduce again",
        )
    for archive in sorted((folder / "artifacts" / "releases").glob(f"*{on_disk.SUFFIX}")):
        index = read_index(archive)
        if [target["name"] for target in index["targets"]] == [target["name"] for target in then["targets"]]:
            return index
    raise WorkerError("the build left no archive for these targets", where=targets)
