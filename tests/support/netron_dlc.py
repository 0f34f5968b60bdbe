"""Netron, which has a parser of DLCs of its own; no code of Qualcomm's is in it. It runs on Node.

Its wheel is unpacked once, in ``.build/netron``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pipeline.qnn.format.dlc import read_records
from tests.support.uv_command import find_uv

REQUIREMENT = "netron==9.3.3"
_FOLDER = Path(__file__).parents[2] / ".build" / "netron" / REQUIREMENT
_TIMEOUT_S = 300


def read(dlc: Path, work: Path) -> dict[str, Any]:
    """What Netron finds in a DLC: `name` of its graph, `tensors`, `nodes`, and how many `graphs` there are."""
    if not _FOLDER.exists():
        made = _FOLDER.with_name("unpacked")
        shutil.rmtree(made, ignore_errors=True)
        uv = find_uv()
        assert uv is not None
        _run([uv, "pip", "install", "--quiet", "--no-deps", "--target", str(made), REQUIREMENT])
        made.rename(_FOLDER)
    records = work / "records"
    records.mkdir()
    for record in read_records(dlc):  # Netron takes no sizes of 64 bits, and Python's zipfile wants CRCs
        (records / record.name).write_bytes(b"".join(record.chunks()))
    script = Path(__file__).with_name("read_dlc.mjs")
    found: dict[str, Any] = json.loads(_run(["node", str(script), str(_FOLDER / "netron"), str(records)]))
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(command[:6])}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout
