"""Disk and memory against what is still to be built, as far as the sizes of the models are known.

The estimate of space is a lower one, so that nobody is refused for nothing: a model's files once in the store and, from
a hub, once in the HF cache; for each further output a part of the model's bytes, as MiniLM and a BERT-base had them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config import Fp16, HubSource, LocalSource, ModelConfig
from pipeline.doctor.finding import STORE, Finding, error, ok, unchecked, warning
from pipeline.errors import PipelineError
from pipeline.pins import pinned_revision
from pipeline.plan import ON_DEMAND, Step
from pipeline.resolve import fetched_files
from pipeline.source import external_names, is_onnx, local_files
from pipeline.storage.costs import Costs
from pipeline.storage.manifests import read_manifest
from pipeline.workspace import Workspace

_QDQ = 0.26  # of a model's bytes: float32 to 8 bits
_CONTEXT = 0.38
_CONTEXT_FP16 = 0.5
_SAFETY = 1.5
_LEAST_FREE = 50_000_000
"""A build with less than this fails somewhere, whatever it builds: logs, locks, memos and the compiler's own files."""


@dataclass(frozen=True)
class Need:
    """What is still to be written for one model, by the folder that it goes to; None: the model's size is not known."""

    model: str
    store: int | None
    artifacts: int = 0
    hf_cache: int = 0
    idle: bool = False
    """Nothing of it is to be built."""


@dataclass(frozen=True)
class DiskFacts:
    """One disk: which of our folders are on it, what is free, what is needed at least, and for which models unknown."""

    folders: tuple[str, ...]
    free: int
    need: int
    unknown: tuple[str, ...] = ()
    idle: bool = False
    """Nothing is to be built."""


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes that are free, bytes that builds may use, and the step that will take most, with its bytes."""

    available: int
    budget: int
    step: str = ""
    peak: int = 0
    unknown: tuple[str, ...] = ()
    idle: bool = False
    """Nothing is to be built."""


def source_bytes(config: ModelConfig, workspace: Workspace) -> int | None:
    """The bytes of a model's files, from what was fetched, from its folder, or from the HF cache; None: not known."""
    fetched = read_manifest(workspace.current(f"fetch:{config.name}"))
    if fetched is not None:
        return sum(entry.bytes for entry in fetched.files.values())
    if isinstance(config.source, LocalSource):
        try:
            files = local_files(config.source.path, fetched_files(config), workspace.memo)
            return sum(path.stat().st_size for path in files.values())
        except (PipelineError, OSError):
            return None
    return cached_bytes(config, config.source, workspace)


def needs(steps: Sequence[Step], workspace: Workspace) -> list[Need]:
    """What steps that never ran in this checkout will write, by model."""
    found = []
    for config in {step.config.name: step.config for step in steps}.values():
        own = [step for step in steps if step.config is config and step.stage not in ON_DEMAND]
        todo = [step for step in own if not workspace.current(step).exists()]
        size = source_bytes(config, workspace) if todo else None
        if not todo:
            found.append(Need(config.name, 0, idle=True))
        else:
            found.append(Need(config.name, None) if size is None else _need(config, todo, size, workspace))
    return found


def disks(found: Sequence[Need], workspace: Workspace, hf_cache: Path | None) -> list[DiskFacts]:
    """The needs against the disks that the folders are on."""
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
    name = "space.disk"
    where = ", ".join(facts.folders)
    free = f"{_size(facts.free)} free"
    need = "nothing is to be built" if facts.idle else f"about {_size(facts.need)} needed"
    remedy = "free some space, or put the store on another disk with PIPELINE_STORE"
    if facts.free < max(facts.need, _LEAST_FREE):
        if facts.need <= facts.free:
            need = f"at least {_size(_LEAST_FREE)} must be free"
        if facts.idle:
            why = "nothing is to be built now; the next build would fill the disk"
            return warning(name, f"{free}, {need}", where, why=why, remedy=remedy)
        return error(name, f"{free}, {need}", STORE, where, why="the build would fill the disk", remedy=remedy)
    if facts.free < facts.need * _SAFETY:
        why = "the estimate is a lower one"
        return warning(name, f"{free}, {need}", where, why=why, remedy=remedy)
    if facts.unknown:
        why = f"the size of {', '.join(facts.unknown)} is known when it was fetched"
        return unchecked(name, f"{free}; what is needed", where, why=why)
    return ok(name, f"{free}, {need}", where)


def memory(steps: Iterable[Step], workspace: Workspace, available: int, budget: int) -> MemoryFacts:
    """The memory that the dearest step to come will take, as it did before, or as is guessed from the model's size."""
    costs = Costs(workspace.store.root / "costs.json")
    sizes: dict[str, int | None] = {}
    dearest, peak = "", 0
    wanted = [step for step in steps if step.stage not in ON_DEMAND]
    todo = [step for step in wanted if not workspace.current(step).exists()]
    for step in todo:
        model = step.config.name
        if model not in sizes:
            sizes[model] = source_bytes(step.config, workspace)
        size = sizes[model]
        taken = costs.peak_bytes(step.id, size // len(step.config.components)) if size is not None else 0
        if taken > peak:
            dearest, peak = step.id, taken
    unknown = tuple(model for model, size in sizes.items() if size is None)
    return MemoryFacts(available, budget, dearest, peak, unknown, idle=bool(wanted) and not todo)


def check_memory(facts: MemoryFacts) -> Finding:
    """Whether the dearest step fits into what is free."""
    name = "space.memory"
    free = f"{_size(facts.available)} free, {_size(facts.budget)} of it for builds"
    if facts.idle:
        return ok(name, f"{free}; nothing is to be built")
    if not facts.step:
        known = f"the size of {', '.join(facts.unknown)} is known when it was fetched" if facts.unknown else ""
        return unchecked(name, f"{free}; what is needed", why=known or "no model is built without being named")
    need = f"{facts.step} is taken to need {_size(facts.peak)}"
    if facts.peak > facts.available:
        remedy = "end other programs, use a smaller bucket, or a machine with more memory"
        return warning(name, f"{free}; {need}", why="the system may end it", remedy=remedy)
    if facts.peak > facts.budget:
        return warning(name, f"{free}; {need}", why="it will run alone", remedy="raise PIPELINE_MEMORY")
    return ok(name, f"{free}; {need}")


def refusal(steps: Sequence[Step], workspace: Workspace) -> Finding | None:
    """The finding on the disk that is too small for what these steps will write, if one is."""
    try:
        # Whoever asks is about to build: an output that is there may be an old one.
        facts = [replace(each, idle=False) for each in disks(needs(steps, workspace), workspace, None)]
        found = [check_disk(each) for each in facts]
    except OSError:
        return None  # whoever writes will say what is wrong
    return next((each for each in found if each.level == "error"), None)


def _need(config: ModelConfig, todo: Sequence[Step], size: int, workspace: Workspace) -> Need:
    part = size / len(config.components)
    store = artifacts = hf_cache = 0.0
    for step in todo:
        if step.stage == "fetch":
            store += size
            if isinstance(config.source, HubSource) and cached_bytes(config, config.source, workspace) is None:
                hf_cache += size
        elif step.stage == "quantize":
            store += _QDQ * part
            artifacts += _QDQ * part
        elif step.stage == "context":
            fp16 = step.component and isinstance(config.components[step.component].quantization, Fp16)
            one = (_CONTEXT_FP16 if fp16 else _CONTEXT) * part
            if config.packing != "auto":  # of whose forms one alone is made
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
    try:
        files = _snapshot_files(snapshot, config, workspace)
        return sum(path.stat().st_size for path in files)
    except (PipelineError, OSError):
        return None


def _snapshot_files(snapshot: Path, config: ModelConfig, workspace: Workspace) -> list[Path]:
    """The files that a config names in a snapshot of the HF cache, whose links lead out of it; raises OSError."""
    names = list(fetched_files(config))
    for name in [name for name in names if is_onnx(name)]:
        names += external_names(name, (snapshot / name).resolve(strict=True), workspace.memo)
    return [(snapshot / name).resolve(strict=True) for name in dict.fromkeys(names)]


def hf_cache_folder() -> Path | None:
    """The HF cache that a fetch will use, by the rules of huggingface_hub, without importing it.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    named = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    try:
        path = Path(os.path.expandvars(named)).expanduser()
    except RuntimeError:  # there is no home folder
        return None
    return path if path.is_absolute() else None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
