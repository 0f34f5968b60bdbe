"""The key of a step: a digest of everything that can change what it produces, and of nothing else."""

from __future__ import annotations

import ast
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
from pipeline.storage.digests import StatMemo

# Packages whose version can change a stage's output: those that its code computes with, which a test holds against the
# imports, and the SDK inside onnxruntime-qnn. `fetch` parses ONNX files only to see which files they name.
TOOLS: Mapping[str, tuple[str, ...]] = {
    "fetch": (),
    "ingest": ("numpy", "onnx", "onnxruntime"),
    "shape": ("numpy", "onnx", "onnxruntime"),
    "rewrite": ("numpy", "onnx", "onnxruntime"),
    "samples": ("numpy", "onnx", "onnxruntime", "tokenizers"),
    "calibrate": ("numpy", "onnx", "onnxruntime"),
    "precision": ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "qairt"),
    "quantize": ("numpy", "onnx", "onnxruntime"),
    "verify": ("numpy", "onnx", "onnxruntime"),
    "packing": ("numpy", "onnx", "onnxruntime"),
    "context": ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "qairt"),
    "emulate": ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "qairt"),
    "blame": ("numpy", "onnx", "onnxruntime"),
    "probe": ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "qairt"),
}
# Modules that can only change what a message says, or how often the network is asked.
_TEXT_ONLY = frozenset(
    {
        "pipeline.errors",
        "pipeline.system.exit_status",
        "pipeline.system.log_tail",
        "pipeline.plain_text",
        "pipeline.hub.failures",
        "pipeline.qnn.failures",
    }
)
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Where statements have statements."""
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


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
    """The key of a step as 64 hex digits; `files` and `code` are content digests, `tools` package versions."""
    payloads: dict[str, Json] = {role: payload_digest(manifest) for role, manifest in inputs.items()}
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
    """Installed versions of the packages in :data:`TOOLS` for a stage; raises WorkerError for a missing one."""
    return {name: qairt_version() if name == "qairt" else package_version(name) for name in TOOLS.get(stage, ())}


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
        self._known: dict[tuple[Path, Path], str] = {}
        self._direct: dict[tuple[Path, Path], Set[Path]] = {}

    def stage(self, stage: str) -> str:
        """Digest of a stage's module and of every module of this package that it reaches."""
        return self.script(_PACKAGE_ROOT / "pipeline" / "stages" / f"{stage}.py", _PACKAGE_ROOT)

    def script(self, path: Path, root: Path) -> str:
        """Digest of a Python file and of every module under `root` that it reaches by import."""
        known = self._known.get((path, root))
        if known is None:
            files = self.closure(path, root)
            lines = sorted(f"{self._memo.sha256(file)}  {file.relative_to(root).as_posix()}\n" for file in files)
            known = self._known[(path, root)] = hashlib.sha256("".join(lines).encode()).hexdigest()
        return known

    def closure(self, path: Path, root: Path) -> set[Path]:
        """A Python file and every module under `root` that it reaches by import."""
        reached = {path}
        pending = [path]
        while pending:
            found = self._imported(pending.pop(), root)
            pending += found - reached
            reached |= found
        return reached

    def _imported(self, path: Path, root: Path) -> Set[Path]:
        """The modules under `root` that a file imports itself."""
        found = self._direct.get((path, root))
        if found is None:
            names = self.imports(path) - _TEXT_ONLY
            found = self._direct[(path, root)] = {file for name in names for file in _module_files(name, root)}
        return found

    def imports(self, path: Path) -> set[str]:
        """Dotted names of all absolute imports in a file; `from a import b` counts as `a` and `a.b`."""
        names = self._memo.value(path, "imports", _imported_names)
        assert isinstance(names, list)
        return {str(name) for name in names}


_PARSING = threading.Lock()
"""One thread at a time: before 3.11.8, Python loses count of its recursion when two do (python/cpython#106905)."""


def _imported_names(path: Path) -> Json:
    try:
        with _PARSING:
            tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError):
        return []  # whoever runs the file reports this properly
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for block in _BLOCKS:  # imports are statements: no need to look into expressions, where most nodes are
            pending += getattr(node, block, ())
    return [*sorted(names)]


@cache
def _module_files(name: str, root: Path) -> Sequence[Path]:
    base = f"{root}/{name.replace('.', '/')}"  # as text: most of thousands of names are no files of ours
    return [Path(file) for file in (f"{base}.py", f"{base}/__init__.py") if os.access(file, os.R_OK)]
