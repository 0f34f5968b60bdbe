"""Measures a release on the host where this runs: what its contexts give for some inputs, and how long they take.

    python -m qnn_release.measure look FOLDER     tell what this host is, and the sizes of the files in FOLDER
    python -m qnn_release.measure keep FOLDER     give files that were copied completely their final names
    python -m qnn_release.measure run FOLDER      measure the contexts that were not measured yet

`doit device` copies this package to a device as one file, and runs all three. FOLDER holds `release.qnn.zip`,
`inputs.npz` (arrays by the names that the request gives them) and `request.json`:

    {"seconds": 10, "most": 1000, "options": {}, "files": {<name>: <SHA-256>},
     "contexts": [{"component", "axes", "target", "samples": [{<input>: <array>}]}]}

Each context is measured in a process of its own, which writes `results/<number>.npz` and, last,
`results/<number>.json`, so that a run that was cut off goes on with the next context. An answer to the caller is a line
on standard output: :data:`MARK`, then JSON. The process ends when its standard input does, so that nothing goes on for
a caller that is gone.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import power
from .contents import sha256
from .errors import ReleaseError, TargetError
from .release import Release

MARK = "@qnn "
REQUEST, RELEASE, INPUTS, RESULTS, PART = "request.json", "release.qnn.zip", "inputs.npz", "results", ".part"
_CHUNK = 1 << 20
_PACKAGES = ("onnxruntime", "onnxruntime-qnn", "numpy")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status. A context that fails is told as an answer, with exit status 0."""
    what, folder, *rest = sys.argv[1:] if arguments is None else arguments
    path = Path(folder)
    if what == "one":
        _one(path, int(rest[0]))
    elif what == "look":
        _tell({**look(), "sizes": {each.name: each.stat().st_size for each in path.iterdir() if each.is_file()}})
    elif what == "keep":
        _keep_all(path)
    else:
        _run_all(path)
    return 0


def look() -> dict[str, Any]:
    """What this host is: its device, its system, its power, and the versions of the packages that run a release.

    :class:`pipeline.contracts.device.DeviceLook` describes the fields.
    """
    from . import provider  # imports onnxruntime

    host = provider.host()
    device = "npu" if host.npu is not None else "emulator" if host.emulator is not None else ""
    return {
        "device": device,
        "why": host.why,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tools": {**{name: _version(name) for name in _PACKAGES}, "qairt": _qairt()},
        "power": power.source(),
        "plan": power.plan(),
    }


def _keep_all(folder: Path) -> None:
    request = json.loads((folder / REQUEST).read_text("utf-8"))
    for name, digest in request["files"].items():
        if not _keep(folder / name, digest):
            _tell({"damaged": name})


def _run_all(folder: Path) -> None:
    threading.Thread(target=_end_with_caller, daemon=True).start()
    request = json.loads((folder / REQUEST).read_text("utf-8"))
    (folder / RESULTS).mkdir(exist_ok=True)
    for number in range(len(request["contexts"])):
        told = folder / RESULTS / f"{number:04d}.json"
        if not told.exists():
            _measured_apart(folder, number)
        _tell({"context": number, **json.loads(told.read_text("utf-8"))})


def _keep(path: Path, digest: str) -> bool:
    """Give a copied part its final name if it has the digest, else delete it. Returns whether the file is right."""
    part = path.with_name(path.name + PART)
    if not part.exists():
        return path.exists() and sha256(path) == digest
    if sha256(part) != digest:
        part.unlink()
        return False
    os.replace(part, path)
    return True


def _measured_apart(folder: Path, number: int) -> None:
    """Measure one context in a child: QNN may end its process, and a start is cold only in a new one."""
    program = [sys.argv[0]] if sys.argv[0].endswith(".pyz") else ["-m", f"{__package__}.measure"]
    log = folder / RESULTS / f"{number:04d}.log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, *program, "one", str(folder), str(number)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        _children.append(child)
        status = child.wait()
        _children.remove(child)
    if not (folder / RESULTS / f"{number:04d}.json").exists():
        last = log.read_text("utf-8", errors="replace").strip().splitlines()[-3:]
        _write(folder, number, {"failed": f"the process ended with status {status}: {' | '.join(last)}"})


_children: list[subprocess.Popen[bytes]] = []


def _end_with_caller() -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), _CHUNK):
            pass
    for child in _children:
        child.kill()
    os._exit(1)


def _one(folder: Path, number: int) -> None:
    request = json.loads((folder / REQUEST).read_text("utf-8"))
    try:
        told = _measured(folder, number, request, request["contexts"][number])
    except TargetError as error:
        told = {"not_run": f"{error.what}: {error.why}"}
    except ReleaseError as error:
        told = {"failed": f"{error.what}: {error.why}"}
    _write(folder, number, told)
    sys.stdout.flush()
    os._exit(0)  # QNN's library may abort when the process that ran it ends in order


def _measured(folder: Path, number: int, request: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    with np.load(folder / INPUTS, allow_pickle=False) as arrays:
        feeds = [{name: arrays[key] for name, key in sample.items()} for sample in context["samples"]]
    component, axes = context["component"], context["axes"]
    with Release.open(
        folder / RELEASE,
        target=context["target"],
        device=str(look()["device"]),
        fallback="refuse",
        cache=folder / "cache",
        options=request["options"],
    ) as release:
        release.load(component, axes)
        (session,) = [each for each in release.report().sessions if (each.component, each.axes) == (component, axes)]
        first_s, outputs = _timed(release, component, feeds[0])
        made = [outputs, *(release.run(component, feed) for feed in feeds[1:])]
        warm: list[float] = []
        started = time.perf_counter()
        while len(warm) < request["most"] and (not warm or time.perf_counter() - started < request["seconds"]):
            warm.append(_timed(release, component, feeds[0])[0])
    names: list[dict[str, str]] = []
    flat: dict[str, Any] = {}
    for place, each in enumerate(made):
        keys = {name: f"{place}_{at}" for at, name in enumerate(each)}
        names.append(keys)
        flat |= {key: each[name] for name, key in keys.items()}
    path = folder / RESULTS / f"{number:04d}.npz"
    np.savez(path, **flat, allow_pickle=False)
    return {
        "outputs": names,
        "sha256": sha256(path),
        "load_s": session.load_s,
        "first_ms": first_s * 1e3,
        "median_ms": statistics.median(warm) * 1e3,
        "p90_ms": sorted(warm)[max(0, -(-9 * len(warm) // 10) - 1)] * 1e3,
        "runs": len(warm),
    }


def _timed(release: Release, component: str, feed: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    started = time.perf_counter()
    outputs = release.run(component, feed)
    return time.perf_counter() - started, outputs


def _write(folder: Path, number: int, told: Mapping[str, Any]) -> None:
    path = folder / RESULTS / f"{number:04d}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told), "utf-8")
    os.replace(new, path)


def _tell(said: Mapping[str, Any]) -> None:
    print(f"{MARK}{json.dumps(said)}", flush=True)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _qairt() -> str:
    """The version of QNN inside onnxruntime-qnn, as the wheel records it."""
    try:
        return str(importlib.import_module("onnxruntime_qnn.build_and_package_info").qnn_version)
    except (ImportError, AttributeError):
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
