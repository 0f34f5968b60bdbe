"""Keeps a store in order: before each build, and by the commands `fsck` and `gc`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.model import Json
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.sizes import human_bytes, parse_size
from pipeline.store import sealed_json
from pipeline.store.durable import disk_errors, is_folder, remove
from pipeline.store.finding import NOT_BUILT, FsckFinding
from pipeline.upkeep import roots

if TYPE_CHECKING:
    from pipeline.config.load import ModelConfig

_DEFAULT_DAYS = 30.0
_SILENT_S = 3.0
_ELSEWHERE = ("verify-release", "wheel", "compare", "reproduce")  # commands that look at neither store nor artifacts
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


class StoreSession:
    """Opens the store of a checkout before a build, and closes it afterwards."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._open = contextlib.ExitStack()
        self.is_open = False

    def open(self, selected: Iterable[str]) -> None:
        """Remove what dead processes left, enter this checkout in the store, and keep gc out while we build.

        Takes next to no time. Does nothing for commands that are no builds. Raises StoreError.
        """
        if {*selected} <= {*OPTIONS, *_ELSEWHERE}:
            return
        with disk_errors(self._workspace.store.root, "the store can't be used"):
            _tell_damaged(self._workspace)
            tidy(self._workspace)
            self._open.enter_context(self._workspace.store.in_use())
        if self._workspace.shared:
            self._workspace.shared.open()
        self.is_open = True

    def close(self) -> None:
        """Wait until what was made is in the shared store, and let gc use the store again."""
        if self._workspace.shared:
            self._workspace.shared.close()
        self.is_open = False
        self._open.close()


def tidy(workspace: Workspace) -> None:
    """Remove what dead processes left, and enter this checkout in the store. Raises OSError."""
    workspace.store.collect()
    workspace.scratch.collect()
    roots.sign(workspace)


def is_sound(workspace: Workspace) -> bool:
    """Whether no cache is damaged. Raises OSError for one that can't be read."""
    return not any(path.exists() and _is_damaged(path, member) for path, member in workspace.caches().items())


def _tell_damaged(workspace: Workspace) -> None:
    """Say which caches are damaged. The build does not use them and writes them anew."""
    for path, member in workspace.caches().items():
        with contextlib.suppress(OSError):
            if is_folder(path) and remove(path, path.parent / "tmp"):
                workspace.store.tell(f"moved out of the way: {path} is a folder")
            if _is_damaged(path, member):
                workspace.store.tell(f"damaged, and not used: {path}")
                path.unlink()  # else it is told of until something is learnt that goes into it


def _is_damaged(path: Path, member: str) -> bool:
    try:
        sealed_json.load_member(path.read_bytes(), member)
    except ValueError:
        return True
    return False


def fsck(
    workspace: Workspace,
    steps: Collection[Step],
    models: Sequence[tuple[ModelConfig, Sequence[Step]]],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Check everything and print the findings. Returns the exit code.

    `steps` are all steps of all configs; `models` has each config with the steps of its build.
    """
    from pipeline.release.commands import check_archives
    from pipeline.release.published.artifact_folders import Folder, folders
    from pipeline.release.published.artifacts import of_no_config
    from pipeline.upkeep.artifact_check import check_artifacts
    from pipeline.upkeep.fsck import StoreCheck

    if dry_run:
        workspace.memo.keep()
    check, looked_at = StoreCheck(workspace, dry_run=dry_run, progress=_progress()), set[Path]()
    with disk_errors(workspace.store.root, "the store or the artifacts can't be checked"):
        known = {workspace.current(step) for step in steps}
        # A config that can't be read counts, too: the outputs of its model must not be dropped.
        named = {path.stem for path in (workspace.root / "configs").glob("*.yaml")}
        unreadable = named - {step.config.name for step in steps}
        found = [*check.store(), *check.checkout(known, unreadable)]
        expected: dict[Path, Folder] = {}
        for config, built in models:
            try:
                expected |= {folder.path: folder for folder in folders(config, built, workspace)}
            except (PipelineError, LookupError, TypeError, ValueError, AssertionError):
                continue  # not all of it was built, or records changed places: only its own manifests can be checked
        found += check_artifacts(expected, named, workspace, looked_at)
        found += [
            FsckFinding(path, NOT_BUILT, "left: delete it if nobody needs it", is_wrong=False)
            for path in of_no_config(named, workspace)
        ]
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
        looked = (
            f"{check.payloads} files of the store, {human_bytes(check.payload_bytes)}, {len(looked_at)} artifact files"
        )
        print(f"{looked}: " + (f"{wrong} wrong" if wrong else "healthy"))
    return StoreError.exit_code if wrong else 0


def gc(
    workspace: Workspace,
    session: StoreSession,
    steps: Sequence[Step],
    *,
    days: str,
    max_size: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Free space and print how much. `steps` are all steps of all configs, each after the steps it depends on.

    Raises:
        ConfigError: an option can't be understood.
        StoreError: the store can't be written.
    """
    from pipeline.upkeep import collection

    if session.is_open:
        raise ConfigError(
            "space can't be freed while the same command builds", where="command line", remedy="run 'doit gc' alone"
        )
    default = None if max_size else _DEFAULT_DAYS
    age_days = _number(days) if days else default
    max_bytes = _bytes(max_size) if max_size else None
    if dry_run:
        workspace.memo.keep()
    with workspace.store.alone():
        if not dry_run:
            workspace.store.collect()
            workspace.scratch.collect()
            collection.forget_steps(workspace, steps)
        needs = collection.needed(workspace, steps)
        chosen = collection.plan(workspace.store, needs, days=age_days, max_bytes=max_bytes)
        if not dry_run:
            collection.free(chosen, workspace.store)
    if as_json:
        _print_json({"dry_run": dry_run, **chosen.as_json()})
        return
    freed = f"{len(chosen.outputs)} outputs, {len(chosen.payloads)} files, {human_bytes(chosen.freed_bytes)}"
    print(f"{'to be freed' if dry_run else 'freed'}: {freed}")
    print(f"kept: {chosen.kept_outputs} outputs, {human_bytes(chosen.kept_bytes)}")
    if max_bytes is not None and chosen.kept_bytes > max_bytes:
        print(f"more than {max_size}: {human_bytes(chosen.needed_bytes)} are needed by configs or artifacts")


def _progress() -> Callable[[int, int], None]:
    """A function that prints to stderr every few seconds how many bytes were hashed."""
    last_s = time.monotonic()

    def progress(done: int, whole: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _SILENT_S:
            last_s = time.monotonic()
            print(f"hashed {human_bytes(done)} of {human_bytes(whole)}", file=sys.stderr, flush=True)

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
    size = parse_size(text)
    if size is None:
        raise ConfigError(f"--max-size {text} is not a size", where="command line", remedy="write --max-size 20G")
    return size


def _shown(path: Path, workspace: Workspace) -> str:
    return path.relative_to(workspace.root).as_posix() if path.is_relative_to(workspace.root) else str(path)


def _print_json(content: Mapping[str, Json]) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))
