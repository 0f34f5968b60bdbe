"""Reading GGUF files, sound ones and others."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ModelError
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.language import GgufWeights, hyper_of
from tests.support.gguf_files import F32, Q8_0, Value, interleaved, q8_0, string, tiny_gguf, value, write

ROW = np.arange(64, dtype=np.float32).reshape(2, 32)


def test_metadata_and_tensors_are_found_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "a": 3,
        "b": 0.5,
        "c": True,
        "d": ["x", "yä"],
        "e": [1, 2],
    }
    write(path, metadata, {"one": ((2, 32), F32, ROW.tobytes()), "two": ((2, 32), Q8_0, q8_0(ROW))})

    found = read_gguf(path)

    assert (found.text("general.architecture"), found.number("a"), found.number("b")) == ("llama", 3, 0.5)
    assert (found.flag("c"), found.strings("d"), found.numbers("e").tolist()) == (True, ["x", "yä"], [1, 2])
    assert (found.text("a"), found.number("c"), found.strings("e")) == (None, None, [])
    assert found.tensors["one"].shape == (2, 32)
    raw = path.read_bytes()
    assert raw[found.tensors["one"].offset :][: ROW.nbytes] == ROW.tobytes()
    assert found.tensors["two"].form.name == "Q8_0"


def test_a_model_has_its_sizes_and_weights(tmp_path: Path) -> None:
    weights = tiny_gguf(tmp_path / "a.gguf")

    file = read_gguf(tmp_path / "a.gguf")
    hyper = hyper_of(file)
    read = GgufWeights(file, hyper)

    assert (hyper.layers, hyper.hidden, hyper.heads, hyper.kv_heads, hyper.head_dim) == (2, 64, 4, 2, 16)
    assert read.shape("nothing") is None
    for name, array in weights.items():  # queries and keys as well, which the file has interleaved
        np.testing.assert_array_equal(read.pieces(name).array(), array)
    assert not np.array_equal(interleaved(weights["blk.0.attn_q.weight"], 4), weights["blk.0.attn_q.weight"])


def head(*, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def tensor(name: str, dims: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    return string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack(
        "<IQ", kind, offset
    )  # fmt: skip


PADDING = b"\0" * 512
HOSTILE = {
    "nothing": b"",
    "another format": b"ONNX" + PADDING,
    "big-endian": b"GGUF" + struct.pack(">I", 3) + PADDING,
    "an old version": head(version=1) + PADDING,
    "more tensors than anything has": head(tensors=1 << 60),
    "more keys than anything has": head(keys=1 << 60),
    "fewer keys than it says": head(keys=2) + string("a") + value(1),
    "a key without an end": head(keys=1) + struct.pack("<Q", 1 << 62) + PADDING,
    "a value of no type": head(keys=1) + string("a") + struct.pack("<I", 77) + PADDING,
    "a text without an end": head(keys=1) + string("a") + struct.pack("<IQ", 8, 1 << 40) + PADDING,
    "an array without an end": head(keys=1) + string("a") + struct.pack("<IIQ", 9, 5, 1 << 61) + PADDING,
    "more texts than it has room for": head(keys=1) + string("a") + struct.pack("<IIQ", 9, 8, 1 << 50) + PADDING,
    "texts that lie": head(keys=1) + string("a") + struct.pack("<IIQQ", 9, 8, 2, 1 << 63) + PADDING,
    "arrays of arrays": head(keys=1) + string("a") + struct.pack("<IIQ", 9, 9, 1) + PADDING,
    "one key twice": head(keys=2) + 2 * (string("a") + value(1)) + PADDING,
    "an alignment of nothing": head(keys=1) + string("general.alignment") + value(0) + PADDING,
    "an alignment of text": head(keys=1) + string("general.alignment") + value("32") + PADDING,
    "no dims": head(tensors=1) + tensor("a", ()) + PADDING,
    "dims beyond counting": head(tensors=1) + tensor("a", (1 << 40, 1 << 40)) + PADDING,
    "a dim of nothing": head(tensors=1) + tensor("a", (0, 4)) + PADDING,
    "a tensor beyond the end": head(tensors=1) + tensor("a", (4,), offset=1 << 20) + PADDING,
    "an offset that wraps": head(tensors=1) + tensor("a", (4,), offset=(1 << 64) - 32) + PADDING,
    "an offset between": head(tensors=1) + tensor("a", (4,), offset=4) + PADDING,
    "tensors on each other": head(tensors=2) + tensor("a", (32,)) + tensor("b", (32,), offset=32) + PADDING,
    "one tensor twice": head(tensors=2) + 2 * tensor("a", (4,)) + PADDING,
    "a form of no number": head(tensors=1) + tensor("a", (4,), kind=999) + PADDING,
    "half a block": head(tensors=1) + tensor("a", (40,), kind=Q8_0) + PADDING,
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_what_lies_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(raw)

    with pytest.raises(ModelError):
        read_gguf(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_file_says_it_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.gguf"
    if not path.exists():
        tiny_gguf(path)
    raw = bytearray(path.read_bytes())
    end = read_gguf(path).tensors["token_embd.weight"].offset
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end))
        raw[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    changed = tmp_path / "b.gguf"
    changed.write_bytes(raw)

    try:
        file = read_gguf(changed)
        hyper = hyper_of(file)
        for name in file.tensors:
            GgufWeights(file, hyper).pieces(name).array()
    except ModelError:
        pass
