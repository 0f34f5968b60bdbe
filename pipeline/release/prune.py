"""Cuts binaries for several targets down to fewer: `python -m pipeline.release.prune FOLDER TARGET …`.

A device or a download then carries only what it needs. FOLDER is `artifacts/<model>/socs`, which is not changed. This
needs no QNN, so it runs on any host.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.qnn import catalog
from pipeline.qnn.format.context_model import is_plain
from pipeline.qnn.format.flexible import prune
from pipeline.release.published.artifact_folders import MANIFEST, SCHEMA_VERSION
from pipeline.store.digests import sha256_file
from pipeline.store.durable import disk_errors, write_atomically

_LARGEST_MANIFEST = 1 << 26


def prune_folder(folder: Path, targets: Iterable[str], out: Path) -> Mapping[str, Any]:
    """Write the contexts of `folder` for these targets into `out`. Returns the new manifest.

    Raises:
        ConfigError: a target is unknown, or the folder is not for it; `out` is not empty.
        StoreError: the folder has no manifest of ours, or a file is not the one that the manifest names.
        CompileError: a context has a form that can't be pruned.
    """
    chosen = [catalog.resolve(target) for target in targets]
    socs = [soc.soc_model for soc in chosen]
    manifest = _read(folder)
    have = [target["name"] for target in manifest["targets"]]
    for soc in chosen:
        if soc.name not in have:
            raise ConfigError(
                f"the binaries are not for {soc.name}",
                where=str(folder),
                why=f"they are for {', '.join(have)}",
                remedy="name one of these, or build for more targets",
            )
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError("the folder to write to is in the one that is read", where=str(out), remedy="name another")
    with disk_errors(out):
        if out.exists() and any(out.iterdir()):
            raise ConfigError("the folder to write to is not empty", where=str(out), remedy="name a new one")
        out.mkdir(parents=True, exist_ok=True)
        try:
            _write(manifest, folder, socs, out)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    return manifest


def _write(manifest: dict[str, Any], folder: Path, socs: list[int], out: Path) -> None:
    """Prune every context into `out`, and update the manifest."""
    with tempfile.TemporaryDirectory(prefix=".prune-", dir=out) as work:
        for component in manifest["components"].values():
            for bucket in component["buckets"]:
                _prune_bucket(bucket, folder, socs, Path(work))
        manifest["targets"] = [target for target in manifest["targets"] if target["soc_model"] in socs]
        _keep_measured(manifest)
        for path in sorted(Path(work).iterdir()):
            path.replace(out / path.name)
    write_atomically(out / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")


def _read(folder: Path) -> dict[str, Any]:
    try:
        path = folder / MANIFEST
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ValueError(f"it has more than {_LARGEST_MANIFEST} bytes")
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        _check_form(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(
            "there is no manifest of ours in this folder",
            where=str(folder),
            why=f"{MANIFEST}: {type(error).__name__}: {error}",
            remedy="name a folder that a build of this version left, such as artifacts/<model>/socs",
        ) from error
    if not all(component["packing"] == "socs" for component in manifest["components"].values()):
        raise ConfigError(
            "the binaries of this folder are for one target",
            where=str(folder),
            remedy="build with 'packing: socs', and name artifacts/<model>/socs",
        )
    return manifest


def _check_form(manifest: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError, TypeError or AttributeError for a manifest that no build writes."""
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {manifest['schema_version']!r}, not {SCHEMA_VERSION}")
    if not all(isinstance(target["name"], str) and target["soc_model"] is not None for target in manifest["targets"]):
        raise ValueError("a target has no name")
    written: set[str] = set()
    for component in manifest["components"].values():
        if not isinstance(component["packing"], str):
            raise TypeError("packing is no word")
        for bucket in component["buckets"]:
            files, named = bucket["files"], {bucket["context_model"], *bucket["binaries"]}
            if named != {*files} or not all(map(is_plain, named)):
                raise ValueError(f"a context needs {', '.join(map(repr, sorted(named)))}, 'files' lists others")
            if written & named or MANIFEST in named:
                raise ValueError(f"two contexts have files of one name: {', '.join(map(repr, sorted(named)))}")
            written |= named
            if not all(isinstance(entry["sha256"], str) for entry in files.values()):
                raise ValueError("a file has no sha256")
            if not isinstance(bucket["verification"]["emulator"], dict | None):
                raise ValueError("verification.emulator is no object")


def _prune_bucket(bucket: dict[str, Any], folder: Path, socs: list[int], out: Path) -> None:
    """Prune one context, and update its entry in the manifest."""
    for name, entry in bucket["files"].items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != entry["sha256"]:
            raise _not_as_named(name, folder, "it is missing, or its SHA-256 differs")
    pruned = prune(folder / bucket["context_model"], socs, out)
    if [*pruned.binaries] != bucket["binaries"]:
        raise _not_as_named(bucket["context_model"], folder, f"it refers to {', '.join(pruned.binaries)}")
    bucket["files"] = {
        name: {"sha256": sha256_file(out / name), "bytes": (out / name).stat().st_size}
        for name in (pruned.context_model, *pruned.binaries)
    }
    bucket["compatibility"] = pruned.compatibility


def _not_as_named(name: str, folder: Path, why: str) -> StoreError:
    return StoreError(
        f"{name} is not the file that the manifest names",
        where=str(folder),
        why=why,
        remedy="build again, or copy the folder again",
    )


def _keep_measured(manifest: dict[str, Any]) -> None:
    """Drop the figures of targets that were pruned."""
    names = {target["name"] for target in manifest["targets"]}
    for component in manifest["components"].values():
        for bucket in component["buckets"]:
            emulated = bucket["verification"]["emulator"] or {}
            kept = {name: facts for name, facts in emulated.items() if name in names}
            bucket["verification"]["emulator"] = kept or None


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status, which docs/troubleshooting.md lists."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.release.prune",
        description="Make of contexts for several targets contexts for fewer. The folder itself is left as it is.",
    )
    parser.add_argument("folder", type=Path, help="a folder that a build left, such as artifacts/<model>/socs")
    parser.add_argument("target", nargs="+", help="a target to keep, such as sm8650")
    parser.add_argument("--out", type=Path, required=True, help="a new folder to write to")
    given = parser.parse_args(arguments)
    try:
        manifest = prune_folder(given.folder, given.target, given.out)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{given.out}: for {', '.join(target['name'] for target in manifest['targets'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
