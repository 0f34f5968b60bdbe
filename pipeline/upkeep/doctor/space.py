"""Compares free disk and memory with what the steps to come need, as far as the sizes of the models are known.

The estimate of disk space is a low one, so that no build is refused that would have fitted. It counts a model's files
once in the store and, if they come from a hub, once in the HF cache. It counts each further output as a share of the
model's bytes; the shares were measured with MiniLM and a BERT-base.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.config.load import Fp16, HubSource, LocalSource, ModelConfig
from pipeline.errors import PipelineError
from pipeline.frozen import dataclass
from pipeline.inputs.pins import pinned_revision
from pipeline.inputs.source import local_files, sides_of
from pipeline.plan.named_files import named_in_source
from pipeline.plan.steps import ON_DEMAND, Step
from pipeline.plan.workspace import Workspace
from pipeline.sizes import human_bytes
from pipeline.store.costs import Costs
from pipeline.store.manifests import read_manifest
from pipeline.upkeep.doctor.finding import STORE, Check, Finding

_DISK, _MEMORY = Check("space.disk", STORE), Check("space.memory", STORE)
_QDQ = 0.26  # of a model's bytes: float32 to 8 bits
_CONTEXT = 0.38
_CONTEXT_FP16 = 0.5
_SAFETY = 1.5
_LEAST_FREE = 50_000_000
"""Every build needs this much for logs, locks, memos and the compiler's own files."""


@dataclass(frozen=True)
class Need:
    """Bytes that are still to be written for one model, by folder; `store` is None if the model's size is unknown."""

    model: str
    store: int | None
    artifacts: int = 0
    hf_cache: int = 0
    idle: bool = False
    """All of the model is built."""


@dataclass(frozen=True)
class DiskFacts:
    """One disk: our folders on it, its free bytes, the bytes needed at least, and the models of unknown size."""

    folders: tuple[str, ...]
    free: int
    need: int
    unknown: tuple[str, ...] = ()
    idle: bool = False
    """All models are built."""


@dataclass(frozen=True)
class MemoryFacts:
    """Free bytes, bytes that builds may use, the step that will use most, its bytes, and models of unknown size."""

    available: int
    budget: int
    step: str = ""
    peak: int = 0
    unknown: tuple[str, ...] = ()
    idle: bool = False
    """All models are built."""


def source_bytes(config: ModelConfig, workspace: Workspace) -> int | None:
    """The bytes of a model's files: as fetched, in its folder, or in the HF cache; None if they are in none."""
    fetched = read_manifest(workspace.current(f"fetch:{config.name}"))
    if fetched is not None:
        return sum(entry.bytes for entry in fetched.files.values())
    if isinstance(config.source, LocalSource):
        try:
            files = local_files(config.source.path, [*named_in_source(config)], workspace.memo)
            return sum(path.stat().st_size for path in files.values())
        except (PipelineError, OSError):
            return None
    return cached_bytes(config, config.source, workspace)


def needs(steps: Sequence[Step], workspace: Workspace) -> list[Need]:
    """The bytes that steps which never ran in this checkout will write, by model."""
    found = []
    for config in _configs(steps):
        own = [step for step in steps if step.config is config and step.stage not in ON_DEMAND]
        todo = [step for step in own if not workspace.current(step).exists()]
        if not todo:
            found.append(Need(config.name, 0, idle=True))
        elif (size := source_bytes(config, workspace)) is None:
            found.append(Need(config.name, None))
        else:
            found.append(_need(config, todo, size, workspace))
    return found


def _configs(steps: Iterable[Step]) -> list[ModelConfig]:
    return [*{step.config.name: step.config for step in steps}.values()]


def disks(found: Sequence[Need], workspace: Workspace, hf_cache: Path | None) -> list[DiskFacts]:
    """The disks that our folders are on, each with the needs of all folders on it."""
    wanted = [
        (workspace.store.root, sum(each.store or 0 for each in found)),
        (workspace.artifacts, sum(each.artifacts for each in found)),
        *([(hf_cache, sum(each.hf_cache for each in found))] if hf_cache else []),
    ]
    unknown = tuple(each.model for each in found if each.store is None)
    by_device: dict[int, list[tuple[Path, int]]] = {}
    for folder, size in wanted:
        there = _existing(folder)
        by_device.setdefault(os.stat(there).st_dev, []).append((there, size))
    return [
        DiskFacts(
            tuple(dict.fromkeys(str(folder) for folder, _ in members)),
            shutil.disk_usage(members[0][0]).free,
            sum(size for _, size in members),
            unknown,
            all(each.idle for each in found),
        )
        for members in by_device.values()
    ]


def check_disk(facts: DiskFacts) -> Finding:
    """Whether what is free is enough."""
    check = _DISK.about(", ".join(facts.folders))
    free = f"{human_bytes(facts.free)} free"
    need = "nothing is to be built" if facts.idle else f"about {human_bytes(facts.need)} needed"
    remedy = "free some space, or put the store on another disk with PIPELINE_STORE"
    if facts.free < max(facts.need, _LEAST_FREE):
        if facts.need <= facts.free:
            need = f"at least {human_bytes(_LEAST_FREE)} must be free"
        if facts.idle:
            why = "nothing is to be built now; the next build would fill the disk"
            return check.warning(f"{free}, {need}", why, remedy)
        return check.error(f"{free}, {need}", "the build would fill the disk", remedy)
    if facts.free < facts.need * _SAFETY:
        return check.warning(f"{free}, {need}", "the estimate is a lower one", remedy)
    if facts.unknown:
        return check.unchecked(f"{free}; what is needed", _unknown(facts.unknown))
    return check.ok(f"{free}, {need}")


def _unknown(models: Sequence[str]) -> str:
    return f"the size of {', '.join(models)} is known when it was fetched"


def memory(steps: Iterable[Step], workspace: Workspace, available: int, budget: int) -> MemoryFacts:
    """The step to come that will use most memory, by its last run or by an estimate from its model's size."""
    costs = Costs(workspace.store.root / "costs.json")
    wanted = [step for step in steps if step.stage not in ON_DEMAND]
    todo = [step for step in wanted if not workspace.current(step).exists()]
    sizes = {config.name: source_bytes(config, workspace) for config in _configs(todo)}
    dearest, peak = "", 0
    for step in todo:
        size = sizes[step.config.name]
        taken = costs.peak_bytes(step.id, size // len(step.config.components)) if size is not None else 0
        if taken > peak:
            dearest, peak = step.id, taken
    unknown = tuple(model for model, size in sizes.items() if size is None)
    return MemoryFacts(available, budget, dearest, peak, unknown, idle=bool(wanted) and not todo)


def check_memory(facts: MemoryFacts) -> Finding:
    """Whether the step that uses most memory fits into what is free."""
    free = f"{human_bytes(facts.available)} free, {human_bytes(facts.budget)} of it for builds"
    if facts.idle:
        return _MEMORY.ok(f"{free}; nothing is to be built")
    if not facts.step:
        why = _unknown(facts.unknown) if facts.unknown else "no model is built without being named"
        return _MEMORY.unchecked(f"{free}; what is needed", why)
    what = f"{free}; {facts.step} is taken to need {human_bytes(facts.peak)}"
    if facts.peak > facts.available:
        remedy = "end other programs, use a smaller bucket, or a machine with more memory"
        return _MEMORY.warning(what, "the system may end it", remedy)
    if facts.peak > facts.budget:
        return _MEMORY.warning(what, "it will run alone", "raise PIPELINE_MEMORY")
    return _MEMORY.ok(what)


def refusal(steps: Sequence[Step], workspace: Workspace) -> Finding | None:
    """The finding about a disk that is too small for what these steps will write, if there is such a disk."""
    try:
        # A build is about to start: an output that is there may be outdated.
        facts = [replace(each, idle=False) for each in disks(needs(steps, workspace), workspace, None)]
        found = [check_disk(each) for each in facts]
    except OSError:
        return None  # the step that can't write will say what is wrong
    return next((each for each in found if each.level == "error"), None)


def _need(config: ModelConfig, todo: Sequence[Step], size: int, workspace: Workspace) -> Need:
    part = size / len(config.components)
    store = artifacts = hf_cache = 0.0
    for step in todo:
        if step.stage == "fetch" and step.name == config.name:
            store += size
            if isinstance(config.source, HubSource) and cached_bytes(config, config.source, workspace) is None:
                hf_cache += size
        elif step.stage == "quantize":
            store += _QDQ * part
            artifacts += _QDQ * part
        elif step.stage == "context":
            fp16 = step.component and isinstance(config.components[step.component].quantization, Fp16)
            one = (_CONTEXT_FP16 if fp16 else _CONTEXT) * part
            if config.packing != "auto":  # which makes only one of the forms
                store += one
                artifacts += one
    return Need(config.name, int(store), int(artifacts), int(hf_cache))


def cached_bytes(config: ModelConfig, source: HubSource, workspace: Workspace) -> int | None:
    """The bytes of a hub model's files in the HF cache; None if one of them is not there."""
    folder = hf_cache_folder()
    try:
        commit = pinned_revision(source.hub, source.revision, workspace.pins)
    except PipelineError:
        return None
    if folder is None or commit is None:
        return None
    snapshot = folder / f"models--{source.hub.replace('/', '--')}" / "snapshots" / commit
    names = [*named_in_source(config)]
    try:
        for name in [*names]:
            names += sides_of(name, (snapshot / name).resolve(strict=True), workspace.memo)
        # The files of a snapshot are links that lead out of it.
        return sum((snapshot / name).resolve(strict=True).stat().st_size for name in dict.fromkeys(names))
    except (PipelineError, OSError):
        return None


def hf_cache_folder() -> Path | None:
    """The HF cache that a fetch will use, by the rules of huggingface_hub; None if there is no home folder.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    named = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    try:
        path = Path(os.path.expandvars(named)).expanduser()
    except RuntimeError:
        return None
    return path if path.is_absolute() else None


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
