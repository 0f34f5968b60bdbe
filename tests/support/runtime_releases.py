"""Release folders and archives made by hand, from what a build left: only as docs say that release.json is."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.qnn_release.index import Index
from tests.support import tiny_models

Json = dict[str, Any]

SHA = "0" * 64
SM8650: Json = {"name": "sm8650", "soc_model": 57, "htp_arch": 75, "vtcm_mb": 8}


def tiny(folder: Path) -> Path:
    """A release of a float model in two buckets, for the CPU: `layers`, x and y float32 [1, sequence, 32]."""
    files: dict[str, Path] = {}
    buckets = []
    for length in (8, 16):
        model = tiny_models.float_model(folder / "models" / str(length), length)
        files |= {f"qdq/{length}/{path.name}": path for path in model.parent.iterdir()}
        qdq = {"model": f"qdq/{length}/model.onnx", "files": [f"qdq/{length}/weights.bin"]}
        buckets.append({"axes": {"sequence": length}, "contexts": {}, "qdq": qdq})
    x, y = ({"name": name, "dtype": "float32", "dims": [1, "sequence", 32]} for name in ("x", "y"))
    component = {"inputs": [x], "outputs": [y], "buckets": buckets}
    return write(folder / "release", {"layers": component}, files, [SM8650])


def from_artifacts(artifacts: Path, out: Path, dims: Mapping[str, list[Any]], *, qdq: bool = True) -> Path:
    """A release of `artifacts/<model>`; `dims` gives the dims of each input and output by name."""
    folders = sorted(path for path in artifacts.iterdir() if path.is_dir() and path.name != "qdq")
    manifests = {folder: json.loads((folder / "manifest.json").read_text("utf-8")) for folder in folders}
    first = manifests[folders[0]]
    files: dict[str, Path] = {}
    components: Json = {}
    for name, component in first["components"].items():
        buckets = []
        for number, bucket in enumerate(component["buckets"]):
            contexts = {}
            for folder, manifest in manifests.items():
                there = manifest["components"][name]["buckets"][number]
                files |= {f"contexts/{folder.name}/{file}": folder / file for file in there["files"]}
                for target in manifest["targets"]:
                    contexts[target["name"]] = _context(there, folder.name, component["packing"])
            buckets.append({"axes": bucket["axes"], "contexts": contexts, "qdq": None})
        components[name] = {
            "inputs": _tensors(component["buckets"][0]["inputs"], dims),
            "outputs": _tensors(component["buckets"][0]["outputs"], dims),
            "buckets": buckets,
        }
    if qdq:
        _add_qdq(artifacts / "qdq", components, files)
    targets = {target["name"]: target for manifest in manifests.values() for target in manifest["targets"]}
    return write(out, components, files, list(targets.values()), model=first["model"])


def write(
    out: Path, components: Json, files: Mapping[str, Path], targets: Sequence[Json] = (), model: str = "tiny"
) -> Path:
    """A release folder with copies of these files, by their paths in it."""
    for name, path in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(path.read_bytes())
    listed = {
        name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        for name, path in files.items()
    }
    index = {
        "schema_version": 1,
        "model": model,
        "version": "1.0",
        "files": listed,
        "targets": list(targets),
        "components": components,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "release.json").write_text(json.dumps(index), "utf-8")
    return out


def edit(release: Path, change: Callable[[Json], None]) -> Path:
    """Change the index of a release folder in place."""
    index = json.loads((release / "release.json").read_text("utf-8"))
    change(index)
    (release / "release.json").write_text(json.dumps(index), "utf-8")
    return release


def archive(release: Path, out: Path, more: Mapping[str, bytes] | None = None) -> Path:
    """A release folder as an archive of stored entries, with `more` of them."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as opened:
        for path in sorted(path for path in release.rglob("*") if path.is_file()):
            opened.writestr(zipfile.ZipInfo(path.relative_to(release).as_posix()), path.read_bytes())
        for name, data in (more or {}).items():
            opened.writestr(zipfile.ZipInfo(name), data)
    return out


def _context(bucket: Json, folder: str, packing: str) -> Json:
    return {
        "model": f"contexts/{folder}/{bucket['context_model']}",
        "binaries": [f"contexts/{folder}/{binary}" for binary in bucket["binaries"]],
        "packing": packing,
        "compatibility": bucket["compatibility"],
    }


def _tensors(listed: list[Json], dims: Mapping[str, list[Any]]) -> list[Json]:
    return [{"name": each["name"], "dtype": each["dtype"], "dims": dims[each["name"]]} for each in listed]


def _add_qdq(folder: Path, components: Json, files: dict[str, Path]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    for name, component in manifest["components"].items():
        for bucket, into in zip(component["buckets"], components[name]["buckets"], strict=True):
            assert bucket["axes"] == into["axes"]
            files |= {f"qdq/{file}": folder / file for file in bucket["files"]}
            into["qdq"] = {
                "model": f"qdq/{bucket['model']}",
                "files": [f"qdq/{file}" for file in bucket["files"] if file != bucket["model"]],
            }


def index(component: Json, **more: Any) -> Index:
    """The parsed index of a release with this one component, `c`; `more` replaces top-level fields."""
    raw = {
        "schema_version": 1,
        "model": "m",
        "version": "1",
        "files": {"a.onnx": {"sha256": SHA, "bytes": 3}},
        "targets": [{"name": "sm8650", "soc_model": 57, "htp_arch": 75, "vtcm_mb": 8}],
        "components": {"c": component},
    }
    return Index.parse(json.dumps(raw | more).encode())
