"""Model folders that nobody should meet: what makes each, the exit code, and what a user is told of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.hostile_models import ADD, WHOLE, built, external


@dataclass(frozen=True)
class Bad:
    """What is put into the model's folder; the exit code and the text; the component's file, and the step it fails."""

    make: Callable[[Path], None]
    status: int
    said: str
    file: str = "model.onnx"
    stage: str = "fetch"


def make_pipe(path: Path) -> None:
    """A named pipe: whoever opens it waits until somebody writes."""
    if sys.platform != "win32":
        os.mkfifo(path)


def _data(location: str, make: Callable[[Path], object] = lambda path: None) -> Callable[[Path], None]:
    """A model whose weight is at `location`; `make` gets that path."""

    def write(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(external(location).SerializeToString())
        make(folder / location if "\0" not in location else folder)

    return write


def _link(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


def _folder_link(folder: Path) -> None:
    _data("data/secret")(folder)
    (folder / "data").symlink_to(folder.parents[2], target_is_directory=True)


def _clash(folder: Path) -> None:
    model = built(ADD)
    model.graph.initializer.extend(external("W.bin").graph.initializer)
    model.graph.initializer.extend(external("w.BIN").graph.initializer)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for name in ("W.bin", "w.BIN"):
        (folder / name).write_bytes(bytes(2048))


def _sparse_file(head: bytes, size: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with (folder / "model.onnx").open("wb") as file:
            file.write(head)
            file.truncate(size)

    return write


def _lying_data(**entries: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(external("w.bin", **entries).SerializeToString())
        (folder / "w.bin").write_bytes(bytes(2048))

    return write


def _named(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(WHOLE)

    return write


OUTSIDE = "names external data outside its folder"
RESERVED = "can't be the name of a file on Windows"

SOURCES: Mapping[str, Bad] = {
    "up": Bad(_data("../../../secret"), 12, OUTSIDE),
    "up-within": Bad(_data("a/../../../../secret"), 12, OUTSIDE),
    "absolute": Bad(_data("/etc/passwd"), 12, OUTSIDE),
    "backslash": Bad(_data("..\\..\\secret"), 12, OUTSIDE),
    "drive": Bad(_data("C:secret"), 12, OUTSIDE),
    "share": Bad(_data("\\\\host\\share\\w"), 12, OUTSIDE),
    "zero-byte": Bad(_data("a\0b"), 12, OUTSIDE),
    "nowhere": Bad(_data(""), 12, OUTSIDE),
    "newline": Bad(_data("a\nnext run rm"), 11, RESERVED),
    "escape": Bad(_data("\x1b[2J\x1b]0;x\x07"), 11, RESERVED),
    "reserved-data": Bad(_data("aux.bin"), 11, RESERVED),
    "dot-at-end": Bad(_data("w."), 11, RESERVED),
    "reserved-model": Bad(_named("aux.onnx"), 11, RESERVED, "aux.onnx"),
    "clash": Bad(_clash, 11, "names that are one on many systems: 'W.bin' and 'w.BIN'"),
    "long-name": Bad(_data("w" * 300), 11, "named by model.onnx"),
    "link-out": Bad(_data("w", _link("../../../secret")), 11, "a link that leads out of the model folder"),
    "link-to-device": Bad(_data("w", _link("/dev/zero")), 11, "a link that leads out of the model folder"),
    "link-of-folder": Bad(_folder_link, 11, "a link that leads out of the model folder"),
    "link-loop": Bad(_data("w", _link("w")), 11, "named by model.onnx"),
    "pipe-as-data": Bad(_data("w", make_pipe), 11, "w is a device, a pipe or a socket, not a file"),
    "folder-as-data": Bad(_data("w", Path.mkdir), 11, "w is a folder, not a file"),
    "model-as-device": Bad(lambda folder: (folder / "model.onnx").symlink_to("/dev/random"), 11, "leads out of"),
    "model-as-pipe": Bad(lambda folder: make_pipe(folder / "model.onnx"), 11, "a device, a pipe or a socket"),
    "model-as-folder": Bad(lambda folder: (folder / "model.onnx").mkdir(), 11, "model.onnx is a folder, not a file"),
    "over-2-gb": Bad(_sparse_file(b"", 2**31 + 5), 12, "larger than an ONNX file can be"),
    "length-lies": Bad(_lying_data(length="64"), 12, "needs 2048 bytes, its length says 64", stage="ingest"),
    "offset-beyond": Bad(_lying_data(offset=str(2**62)), 12, "has 0 left", stage="ingest"),
    "offset-negative": Bad(_lying_data(offset="-8"), 12, "its offset is '-8'", stage="ingest"),
    "offset-no-number": Bad(_lying_data(offset="٣"), 12, "its offset is '٣'", stage="ingest"),
}
