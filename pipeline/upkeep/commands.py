"""What keeps a store in order: tidying up after the dead before each build, and the commands `fsck` and `gc`."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import ModelConfig
from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.model import Json
from pipeline.plan import Step
from pipeline.storage import sealed_json
from pipeline.storage.durable import disk_errors, is_folder, remove
from pipeline.upkeep import roots
from pipeline.workspace import Workspace

_DEFAULT_DAYS = 30.0
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SILENT_S = 3.0
_ELSEWHERE = ("verify-release", "compare")  # commands that look at neither store nor artifacts
_DRY_RUN = {"name": "dry_run", "long": "dry-run", "type": bool, "default": False, "help": "change nothing"}
_JSON = {"name": "as_json", "long": "json", "type": bool, "default": False, "help": "print one JSON object"}
OPTIONS: Mapping[str, Sequence[dict[str, Any]]] = {
    "fsck": (_DRY_RUN, _JSON),
    "gc": (
        {"name": "days", "long": "days", "type": str, "default": "", "help": "free what was not used for so many days"},
        {"name": "max_size", "long": "max-size", "type": str, "default": "", "help": "free until 20G, say, are left"},
        _DRY_RUN,
        _JSON,
    ),
}
"""The commands that are no builds, and their options as doit takes them."""
DOCS: Mapping[str, str] = {
    "fsck": "Hash the store, the artifacts and the releases; drop what is damaged (--dry-run, --json).",
    "gc": "Free what no config needs, by age and size (--days N, --max-size 20G, --dry-run, --json).",
}


class Session:
    """What a build does in a store before and after it does anything else."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._open = contextlib.ExitStack()
        self.is_open = False

    def open(self, selected: Iterable[str]) -> None:
        """Tidy up after processes that died, sign the store, and keep it from being freed while we build.

        All of that costs next to nothing. Not for the commands that are no builds. Raises StoreError.
        """
        if {*selected} <= {*OPTIONS, *_ELSEWHERE}:
            return
        with disk_errors(self._workspace.store.root, "the store can't be used"):
            self._workspace.store.collect()
            self._workspace.scratch.collect()
            _tell_damaged(self._workspace)
            roots.sign(self._workspace)
            self._open.enter_context(self._workspace.store.in_use())
        if self._workspace.shared:
            self._workspace.shared.open()
        self.is_open = True

    def close(self) -> None:
        """Wait until what was made is in the shared store, and let the store be freed again."""
        if self._workspace.shared:
            self._workspace.shared.close()
        self.is_open = False
        self._open.close()


def _tell_damaged(workspace: Workspace) -> None:
    """Say which of the files that only save time are damaged: they count for nothing, and are written anew."""
    for path, member in workspace.caches().items():
        with contextlib.suppress(OSError):
            if is_folder(path) and remove(path, path.parent / "tmp"):
                workspace.store.tell(f"moved out of the way: {path} is a folder")
            try:
                sealed_json.load_member(path.read_bytes(), member)
            except ValueError:
                workspace.store.tell(f"damaged, and not used: {path}")


def fsck(
    workspace: Workspace,
    steps: Iterable[Step],
    models: Sequence[tuple[ModelConfig, Sequence[Step]]],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Check everything and print what is found; the exit code.

    `steps` are all of all configs; `models` have those of a build of each.
    """
    from pipeline.artifact_folders import Folder, folders
    from pipeline.release.commands import check_archives
    from pipeline.upkeep.artifact_check import check_artifacts
    from pipeline.upkeep.fsck import Check

    check, looked_at = Check(workspace, dry_run=dry_run, progress=_progress()), set[Path]()
    with disk_errors(workspace.store.root, "the store or the artifacts can't be checked"):
        known = {workspace.current(step) for step in steps}
        found = [*check.store(), *check.checkout(known)]
        expected: dict[Path, Folder] = {}
        for config, built in models:
            try:
                expected |= {folder.path: folder for folder in folders(config, built, workspace)}
            except (PipelineError, LookupError, TypeError, ValueError, AssertionError):
                continue  # not all of it was built, or records changed places: its manifests speak for themselves
        found += check_artifacts(expected, {config.name for config, _ in models}, workspace, looked_at)
        found += check_archives((config for config, _ in models), workspace)
    wrong = sum(finding.is_wrong for finding in found)
    if as_json:
        rows: list[Json] = [
            {"path": str(each.path), "problem": each.problem, "done": each.done, "wrong": each.is_wrong}
            for each in found
        ]
        _print_json(
            {
                "wrong": wrong,
                "payloads": check.payloads,
                "payload_bytes": check.payload_bytes,
                "artifact_files": len(looked_at),
                "findings": rows,
            }
        )
    else:
        for each in found:
            print(
                f"{'WRONG' if each.is_wrong else 'note '}  {_shown(each.path, workspace)}: {each.problem}; {each.done}"
            )
        looked = f"{check.payloads} files of the store, {_size(check.payload_bytes)}, {len(looked_at)} artifact files"
        print(f"{looked}: " + (f"{wrong} wrong" if wrong else "healthy"))
    return StoreError.exit_code if wrong else 0


def gc(
    workspace: Workspace,
    session: Session,
    steps: Sequence[Step],
    *,
    days: str,
    max_size: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Free space and print how much. `steps` are all of all configs, each after those it stands on.

    Raises:
        ConfigError: an option can't be understood.
        StoreError: the store can't be written.
    """
    from pipeline.upkeep import collection

    if session.is_open:
        raise ConfigError(
            "space can't be freed while the same command builds", where="command line", remedy="run 'doit gc' alone"
        )
    age = _number(days) if days else None if max_size else _DEFAULT_DAYS
    max_bytes = _bytes(max_size) if max_size else None
    with workspace.store.alone():
        if not dry_run:
            workspace.store.collect()
            workspace.scratch.collect()
            collection.forget_steps(workspace, steps)
        needs = collection.needed(workspace, steps)
        chosen = collection.plan(workspace.store, needs, days=age, max_bytes=max_bytes)
        if not dry_run:
            collection.free(chosen, workspace.store)
    if as_json:
        _print_json({"dry_run": dry_run, **chosen.as_json()})
        return
    freed = f"{len(chosen.outputs)} outputs, {len(chosen.payloads)} files, {_size(chosen.freed_bytes)}"
    print(f"{'to be freed' if dry_run else 'freed'}: {freed}")
    print(f"kept: {chosen.kept_outputs} outputs, {_size(chosen.kept_bytes)}")
    if max_bytes is not None and chosen.kept_bytes > max_bytes:
        print(f"more than {max_size}: {_size(chosen.needed_bytes)} are needed by configs or artifacts")


def _progress() -> Callable[[int, int], None]:
    """Prints a line every few seconds, on stderr, how many bytes were hashed."""
    last_s = time.monotonic()

    def progress(done: int, whole: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _SILENT_S:
            last_s = time.monotonic()
            print(f"hashed {_size(done)} of {_size(whole)}", file=sys.stderr, flush=True)

    return progress


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise ConfigError(f"--days {text} is not a number of days", where="command line", remedy="write --days 30")
    return number


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--max-size {text} is not a size", where="command line", remedy="write --max-size 20G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1024:.1f} kB"


def _shown(path: Path, workspace: Workspace) -> str:
    return path.relative_to(workspace.root).as_posix() if path.is_relative_to(workspace.root) else str(path)


def _print_json(content: Mapping[str, Json]) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))
