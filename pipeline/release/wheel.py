"""Writes :mod:`pipeline.qnn_release` as a wheel, `qnn-release`, that applications install. Equal code, equal bytes.

The form is https://packaging.python.org/specifications/binary-distribution-format; no build backend is needed for a
package of plain Python.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from io import BytesIO
from pathlib import Path

from pipeline import qnn_release
from pipeline.store.durable import write_atomically

NAME = "qnn_release"
ENTRY_POINT = f"qnn-release = {NAME}.__main__:main"
REQUIRES_PYTHON = ">=3.9"
_WHEEL = "Wheel-Version: 1.0\nGenerator: doit wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(root: Path) -> Path:
    """Write the wheel into `artifacts/releases/` of a checkout, with the version of the package there; its path."""
    version = qnn_release.__version__
    info = f"{NAME}-{version}.dist-info"
    folder = Path(qnn_release.__file__).parent
    files = {
        f"{NAME}/{path.name}": path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    files[f"{info}/licenses/LICENSE"] = (root / "LICENSE").read_bytes()
    files[f"{info}/METADATA"] = _metadata(version).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{ENTRY_POINT}\n".encode()
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, text in files.items():
            archive.writestr(_entry(name), text)
    path = root / "artifacts" / "releases" / f"{NAME}-{version}-py3-none-any.whl"
    write_atomically(path, data.getvalue())
    return path


def _metadata(version: str) -> str:
    return (
        f"Metadata-Version: 2.4\nName: qnn-release\nVersion: {version}\n"
        "Summary: Runs releases of QNN context binaries: bucket, padding, cropping, device and fallback\n"
        f"Requires-Python: {REQUIRES_PYTHON}\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n"
        "Requires-Dist: numpy>=1.22\n"
        'Provides-Extra: cpu\nRequires-Dist: onnxruntime; extra == "cpu"\n'
        'Provides-Extra: npu\nRequires-Dist: onnxruntime; extra == "npu"\n'
        'Requires-Dist: onnxruntime-qnn; extra == "npu"\n\n'
        f"{qnn_release.__doc__ or ''}"
    )


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # of 1980, whenever it is made
    entry.external_attr = 0o100644 << 16
    return entry
