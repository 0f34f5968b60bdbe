"""Calibration sets that nobody should meet: what makes each, and what a user is told of it. All end with code 13."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.hostile_sources import make_pipe
from tests.support.models import bert

TEXT = "{reader: text, file: calibration/%s/lines.txt}"
NPZ = "{reader: npz, folder: calibration/%s}"
PYTHON = "{reader: python, run: 'calibration/%s/code.py:run'}"

GOOD = np.ones((1, 3), np.int64)


@dataclass(frozen=True)
class Bad:
    """What is written into the sample folder and the model's folder; the config's section; what must be said."""

    make: Callable[[Path, Path], object]
    reader: str
    said: str


def _lines(data: bytes, said: str) -> Bad:
    return Bad(lambda samples, model: (samples / "lines.txt").write_bytes(data), TEXT, said)


def _tokenizer(change: Callable[[dict[str, Any]], object] | bytes, said: str) -> Bad:
    def make(samples: Path, model: Path) -> None:
        (samples / "lines.txt").write_text("a" * 60 + "!\n")
        if isinstance(change, bytes):
            (model / "tokenizer.json").write_bytes(change)
            return
        tokenizer = bert.tokenizer()
        change(tokenizer)
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))

    return Bad(make, TEXT, said)


def _grown_tokenizer(samples: Path, model: Path) -> None:
    (samples / "lines.txt").write_text("a\n")
    with (model / "tokenizer.json").open("r+b") as file:
        file.truncate((1 << 28) + 1)


def _split_by(pattern: str) -> Callable[[dict[str, Any]], object]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda tokenizer: tokenizer.update(pre_tokenizer=split, normalizer=None)


def _npz(make: Callable[[Path], object], said: str) -> Bad:
    return Bad(lambda samples, model: make(samples / "0.npz"), NPZ, said)


def _code(text: str, said: str) -> Bad:
    text = f"import numpy as np\nIDS = np.ones((1, 3), np.int64)\n{text}"
    return Bad(lambda samples, model: (samples / "code.py").write_text(text), PYTHON, said)


def _saved(**arrays: Any) -> Callable[[Path], object]:
    return lambda path: np.savez(path, **arrays)


def npy(header: str, data: bytes = b"") -> bytes:
    """A .npy file with this header, as it is."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _zipped(entries: Mapping[str, bytes], *, change: Callable[[bytes], bytes] = lambda data: data) -> Any:
    def write(path: Path) -> None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in entries.items():
                archive.writestr(name, data)
        path.write_bytes(change(stream.getvalue()))

    return write


def bomb(path: Path, size: int = 10 << 30) -> None:
    """An archive of 10 MB that holds an array of 10 GB."""
    head = npy(f"{{'descr': '<i8', 'fortran_order': False, 'shape': (1, {size // 8})}}")
    megabyte = bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = first + one * (size >> 20) + packer.flush()
    total = len(head) + size
    name = b"input_ids.npy"
    # sizes that do not fit 32 bits are in the ZIP64 field of both headers
    wide = struct.pack("<HHQQ", 1, 16, total, len(body))
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(name), len(wide))
    central = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(name), len(wide), 0, 0, 0, 0, 0
    )
    head_size = len(local) + len(name) + len(wide) + len(body)
    directory = central + name + wide
    path.write_bytes(
        local + name + wide + body + directory
        + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(directory), head_size, 0)
    )  # fmt: skip


def _twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for letter in "ab":
            archive.writestr(f"input_id{letter}.npy", npy("{}"))
    path.write_bytes(path.read_bytes().replace(b"input_ida", b"input_ids").replace(b"input_idb", b"input_ids"))


UNREADABLE = "can't read the arrays in 0.npz"
ARRAY = "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 3), }"

SAMPLES: Mapping[str, Bad] = {
    # lines of text
    "binary": _lines(bytes(range(256)) * 40, "is not"),
    "zero-byte": _lines(b"one\0two\n", "it has a NUL byte"),
    "utf-16": _lines("one line\n".encode("utf-16"), "is not UTF-8 text"),
    "bad-utf-8": _lines(b"fine\nbad \xc3\x28\n", "lines.txt:2"),
    "returns-only": _lines(b"one\rtwo\rthree", "it has a carriage return within a line"),
    "long-line": _lines(b"a" * (3 << 20), "a line of lines.txt is too long"),
    "blank": _lines(b"\n \n\r\n", "the calibration set is empty"),
    # tokenizer.json
    "tokenizer-cut": _tokenizer(json.dumps(bert.tokenizer()).encode()[:3000], "is not a tokenizer"),
    "tokenizer-deep": _tokenizer(b'{"version":' + b"[" * 100_000, "is not a tokenizer"),
    "tokenizer-not-text": _tokenizer(b"\xff\xfe\x00", "is not a tokenizer"),
    "tokenizer-huge": Bad(
        _grown_tokenizer,
        TEXT,
        "tokenizer.json is too large",
    ),
    "tokenizer-empty": _tokenizer(b"", "is not a tokenizer"),
    "tokenizer-regex": _tokenizer(_split_by("(a+)+$"), "retry-limit"),
    "tokenizer-bad-regex": _tokenizer(_split_by("("), "is not a tokenizer"),
    "tokenizer-no-unknown": _tokenizer(
        lambda given: given.update(
            model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}, post_processor=None
        ),
        "can't encode a text",
    ),
    "tokenizer-charsmap": _tokenizer(
        lambda given: given.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAAAAAAAAAAAA////"}),
        "is not a tokenizer",
    ),
    # archives
    "bomb": _npz(bomb, "its arrays have 107374"),
    "objects": _npz(_saved(input_ids=np.array([{"a": 1}], object)), "it holds Python objects"),
    "cut-short": _npz(_zipped({"input_ids.npy": npy(ARRAY, bytes(24))}, change=lambda data: data[:-30]), UNREADABLE),
    "encrypted": _npz(
        _zipped(
            {"input_ids.npy": npy(ARRAY, bytes(24))},
            change=lambda data: data.replace(b"PK\1\2\x14\x03\x14\x00\x00\x00", b"PK\1\2\x14\x03\x14\x00\x01\x00"),
        ),
        "it is encrypted",
    ),
    "twice": _npz(_twice, "two of its arrays have one name"),
    "thousands": _npz(_zipped({f"{number}.npy": b"" for number in range(5000)}), "it holds 5000 arrays"),
    "escaping": _npz(_zipped({"../../../evil.npy": npy(ARRAY, bytes(24))}), "no input '../../../evil'"),
    "not-arrays": _npz(_zipped({"evil.sh": b"#!/bin/sh"}), "it holds 'evil.sh'"),
    "shape-lies": _npz(
        _zipped({"input_ids.npy": npy(ARRAY.replace("(1, 3)", f"(1, {2**40})"), bytes(24))}), "which is not what"
    ),
    "shape-overflows": _npz(
        _zipped({"input_ids.npy": npy(ARRAY.replace("(1, 3)", f"({2**40}, {2**40})"), bytes(24))}), "which is not what"
    ),
    "shape-negative": _npz(
        _zipped({"input_ids.npy": npy(ARRAY.replace("(1, 3)", "(-1, -3)"), bytes(24))}), "which is not what follows"
    ),
    "header-huge": _npz(_zipped({"input_ids.npy": npy("(" * 60_000)}), UNREADABLE),
    "header-code": _npz(_zipped({"input_ids.npy": npy("__import__('os').system('id')")}), UNREADABLE),
    "text-array": _npz(_saved(input_ids=np.array([["a", "b"]])), "the model takes int64"),
    "records": _npz(_saved(input_ids=np.zeros((1, 3), [("a", "<i8")])), "the model takes int64"),
    "pipe": _npz(make_pipe, "a device, a pipe or a socket"),
    "link-to-device": _npz(lambda path: path.symlink_to("/dev/zero"), "a device, a pipe or a socket"),
    # a function of the project
    "no-function": _code("", "has no function 'run'"),
    "raises": _code("def run(path):\n    raise ValueError('\\x1b[31mred')\n", r"ValueError: \x1b[31mred"),
    "exits": _code("import sys\ndef run(path):\n    sys.exit(0)\n", "SystemExit: 0"),
    "gives-none": _code("def run(path):\n    return None\n", "'NoneType' object is not iterable"),
    "gives-text": _code("def run(path):\n    return 'abc'\n", "yielded str, not a mapping"),
    "odd-keys": _code("def run(path):\n    yield {1: IDS}\n", "no input '1'"),
    "objects-given": _code("def run(path):\n    yield {'input_ids': [[object()]]}\n", "is object"),
    "ragged": _code("def run(path):\n    yield {'input_ids': [[1], [2, 3]]}\n", "input 'input_ids' is no array"),
    "wrong-rank": _code("def run(path):\n    yield {'input_ids': IDS[0]}\n", "has rank 1"),
    "raising-array": _code(
        "class Odd:\n    def __array__(self, *given, **more):\n        raise KeyError('odd')\n"
        "def run(path):\n    yield {'input_ids': Odd()}\n",
        "is no array",
    ),
    "deep": _code("def run(path):\n    return run(path)\n", "RecursionError"),
}
