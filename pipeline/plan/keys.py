"""The key of a step: a digest of everything that can change what it produces, and of nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path

from pipeline.errors import WorkerError
from pipeline.model import Json, Manifest
from pipeline.plan import known_code
from pipeline.plan.counted_code import RULES, CountedCode, counted_code
from pipeline.stage_table import STAGES
from pipeline.store.digests import StatMemo
from pipeline.store.files_read import NEVER, is_settled, note_file, stamp_of

# Of each reader, packages of an extra whose version can change its samples. FLAC is lossless, and has its own checksum.
READER_TOOLS: Mapping[str, Mapping[str, str]] = {"images": {"pillow": "images"}}
# Modules that can't change what a step produces. `errors` is about steps that failed. `failures` decides how often the
# network is asked, and what is said then; what `fetch` keeps has the hash that it must have.
_NOT_COUNTED = frozenset({"pipeline.errors", "pipeline.inputs.hub.failures"})
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_CODE = _PACKAGE_ROOT / "pipeline"


def canonical_json(value: Json | Mapping[str, Json]) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: one spelling for one value. NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def payload_digest(manifest: Manifest) -> str:
    """Digest of what a step produced, without how: two runs with equal output have equal payload digests."""
    files: dict[str, Json] = {name: entry.sha256 for name, entry in manifest.files.items()}
    return hashlib.sha256(canonical_json({"files": files, "facts": dict(manifest.facts)})).hexdigest()


def step_key(
    stage: str,
    *,
    code: str,
    params: Mapping[str, Json],
    inputs: Mapping[str, Manifest],
    files: Mapping[str, str],
    tools: Mapping[str, str],
) -> str:
    """The key of a step as 64 hex digits; `files` and `code` are content digests, `tools` package versions.

    What is emulated of a context is what it computes: targets for which that is the same have one key.
    """
    payloads: dict[str, Json] = {role: payload_digest(manifest) for role, manifest in inputs.items()}
    if stage == "emulate" and "context" in inputs and (work := inputs["context"].facts.get("work")):
        payloads["context"], params = work, {**params, "target": None}
    content: dict[str, Json] = {
        "stage": stage,
        "code": code,
        "params": dict(params),
        "inputs": payloads,
        "files": dict(files),
        "tools": dict(tools),
    }
    return hashlib.sha256(canonical_json(content)).hexdigest()


@cache
def tool_versions(stage: str) -> Mapping[str, str]:
    """Installed versions of the packages that a stage computes with, and of those it asks where they are installed.

    Raises:
        WorkerError: one of the former is missing.
    """
    found = {name: qairt_version() if name == "qairt" else package_version(name) for name in STAGES[stage].tools}
    for name in STAGES[stage].asked:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@cache
def package_version(name: str) -> str:
    """Version of an installed distribution; raises WorkerError when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise WorkerError(
            f"the package {name} is not installed in this Python environment",
            remedy="run 'uv sync', then build with 'uv run doit build'",
        ) from None


class ExtraError(Exception):
    """A package is not installed that only an extra brings."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; the extra {extra} brings it")
        self.package, self.extra = package, extra


def reader_versions(reader: str) -> Mapping[str, str]:
    """Installed versions of the packages in :data:`READER_TOOLS`; raises ExtraError for one that is missing."""
    found = {}
    for package, extra in READER_TOOLS.get(reader, {}).items():
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ExtraError(package, extra) from None
    return found


@cache
def qairt_version() -> str:
    """QAIRT (QNN SDK) version that the onnxruntime-qnn wheel bundles, read without importing it.

    The wheel records it as `qnn_version` in its `build_and_package_info.py`.
    """
    spec = importlib.util.find_spec("onnxruntime_qnn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        info = Path(folder, "build_and_package_info.py")
        if info.is_file() and (match := re.search(r"qnn_version\s*=\s*'([^']+)'", info.read_text("utf-8"))):
            return match[1]
    raise WorkerError(
        "onnxruntime-qnn does not say which QAIRT version it bundles",
        why="build_and_package_info.py is missing from the package, or has no qnn_version",
        remedy="reinstall it: uv sync --reinstall-package onnxruntime-qnn",
    )


class CodeDigests:
    """Digests of Python code by import closure: a module and all it imports from the same root, lazily or not."""

    def __init__(self, memo: StatMemo) -> None:
        self._memo = memo
        self._lock = threading.Lock()
        """Steps that start together ask for the same files: who waits here would else parse them all again."""
        self._known: dict[tuple[Path, Path], str] = {}
        self._own: dict[tuple[Path, Path], list[Path]] = {}
        self._counted: dict[Path, CountedCode] = {}
        self._direct: dict[tuple[Path, Path], Set[Path]] = {}
        self._stamps: dict[Path, str] = {}

    def now(self) -> CodeDigests:
        """These, if each file that they are of looks as it did; else such as have looked at none yet."""
        stamps = [*self._stamps.items()]
        return self if all(stamp_of(str(path)) == stamp for path, stamp in stamps) else CodeDigests(self._memo)

    def stage(self, stage: str) -> str:
        """Digest of a stage's module and of every module of this package that it reaches."""
        return self.script(_PACKAGE_ROOT / "pipeline" / "stages" / f"{stage}.py", _PACKAGE_ROOT)

    def script(self, path: Path, root: Path) -> str:
        """Digest of a Python file and of every module under `root` that it reaches by import.

        Where a file of them may read docstrings, all count with all their text.
        """
        with self._lock:
            known = self._script(path, root)
            known_code.beside_bytecode().save()
        own = self._own[(path, root)]
        for each in {*own, *(file.parent for file in own)}:  # a new module beside one may be what an import finds
            note_file(each)
        return known

    def _script(self, path: Path, root: Path) -> str:
        known = self._known.get((path, root))
        if known is None:
            files = self.closure(path, root)
            as_text = any(self.counted(file).reads_text for file in files)
            lines = sorted(
                f"{self._memo.sha256(file) if as_text else self.counted(file).digest}"
                f"  {file.relative_to(root).as_posix()}\n"
                for file in files
            )
            known = self._known[(path, root)] = hashlib.sha256("".join(lines).encode()).hexdigest()
            self._own[(path, root)] = [file for file in files if not file.is_relative_to(_CODE)]
        return known

    def closure(self, path: Path, root: Path) -> set[Path]:
        """A Python file and every module under `root` that it reaches by import, the packages around them included."""
        reached = {path}
        pending = [path]
        while pending:
            found = self._imported(pending.pop(), root)
            pending += found - reached
            reached |= found
        return reached

    def counted(self, path: Path) -> CountedCode:
        """What counts of one file."""
        found = self._counted.get(path)
        if found is None:
            stamp = stamp_of(str(path))
            value = self._memo.value(path, f"code {RULES}", _remembered)
            assert isinstance(value, dict)
            found = self._counted[path] = CountedCode.from_json(value)
            self._stamps[path] = stamp if is_settled(path) else NEVER
        return found

    def _imported(self, path: Path, root: Path) -> Set[Path]:
        """The modules under `root` that a file imports itself, and the packages that it is in."""
        found = self._direct.get((path, root))
        if found is None:
            package = path.relative_to(root).parent.parts
            names = {_absolute(name, package) for name in self.counted(path).imports} - _NOT_COUNTED
            names.add(".".join(package))
            found = self._direct[(path, root)] = {file for name in names for file in _module_files(name, root)}
        return found


def _remembered(path: Path) -> Json:
    if path.is_relative_to(_CODE):
        return known_code.beside_bytecode().counted(path)
    return counted_code(path.read_bytes(), own=False).to_json()


def _absolute(name: str, package: Sequence[str]) -> str:
    """The name of a module that one of a package imports as `name`; `..a` is `a` beside the package."""
    module = name.lstrip(".")
    above = len(name) - len(module)
    if not above:
        return name
    if above > len(package):
        return ""  # Python refuses it
    return ".".join([*package[: len(package) - above + 1], *([module] if module else [])])


@cache
def _module_files(name: str, root: Path) -> Sequence[Path]:
    """The file of a module and those of the packages that it is in, which Python runs before; `a.*` is all in `a`."""
    if name.endswith(".*"):
        return sorted(root.joinpath(*name.split(".")[:-1]).glob("*.py"))
    parts = name.split(".") if name else []
    files = [f"{root}/{'/'.join([*parts[:depth], '__init__'])}.py" for depth in range(1, len(parts) + 1)]
    files.append(f"{root}/{'/'.join(parts)}.py")
    return [path for file in files if (path := _readable(file)) is not None]


@cache
def _readable(file: str) -> Path | None:
    """One path for a file, whoever imports it, as paths take long to make and to compare; None if it is not there."""
    return Path(file) if os.access(file, os.R_OK) else None
