"""A folder that looks like a QAIRT SDK, whose tools are recorders."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from pipeline.qnn.session import bundled_sdk

HOST = "x86_64-linux-clang"


def create(root: Path, prepared: Path, version: str | None = None) -> dict[str, str]:
    """Make the folder, whose generator hands out the binary `prepared`; the environment variables that name it."""
    for tool in ("qairt-converter", "qairt-quantizer", "qnn-context-binary-generator"):
        path = root / "bin" / HOST / tool
        path.parent.mkdir(parents=True, exist_ok=True)
        recorder = Path(__file__).with_name("qairt_recorder.py").read_text("utf-8")
        path.write_text(f"#!{sys.executable}\n{recorder}", "utf-8")
        path.chmod(0o755)
    (root / "lib" / HOST).mkdir(parents=True)
    for library in ("QnnHtp", "QnnHtpNetRunExtensions"):
        (root / "lib" / HOST / f"lib{library}.so").touch()
    (root / "sdk.yaml").write_text(f"name: qairt\nversion: {version or bundled_sdk()}.260929\n", "utf-8")
    shutil.copyfile(prepared, root / "prepared.bin")
    return {"QAIRT_SDK_ROOT": str(root), "QAIRT_PYTHON": sys.executable}


def calls(root: Path) -> list[dict[str, Any]]:
    """What the tools were given, in order."""
    return [json.loads(line) for line in (root / "calls.jsonl").read_text("utf-8").splitlines()]
