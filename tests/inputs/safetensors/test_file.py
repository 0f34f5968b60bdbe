"""Reading safetensors, sound ones and others."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ModelError
from pipeline.inputs.safetensors.file import read_safetensors
from pipeline.inputs.safetensors.source import safetensors_source
from tests.support.safetensors_files import entry, framed, tiny_folder, write

ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_tensors_are_found_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, {"one": ROW, "two": ROW + 1})

    found = read_safetensors(path)

    assert [(each.dtype, each.shape, each.nbytes) for each in found.values()] == [("F32", (2, 3), 24)] * 2
    assert path.read_bytes()[found["two"].offset :] == (ROW + 1).tobytes()


def header(**tensors: object) -> bytes:
    return json.dumps(tensors).encode()


DATA = bytes(16)
HOSTILE = {
    "nothing": b"",
    "a length alone": struct.pack("<Q", 2),
    "a header beyond the end": struct.pack("<Q", 1 << 62) + DATA,
    "a header larger than any": struct.pack("<Q", 1 << 25) + b" " * ((1 << 25) + 8),
    "no JSON": framed(b"{" * 20, DATA),
    "JSON as deep as the sea": framed(b'{"a":' + b"[" * 200_000, DATA),
    "a list": framed(b"[]", DATA),
    "no text": framed(b"\xff\xfe", DATA),
    "one name twice": framed(b'{"a": 1, "a": 1}', DATA),
    "a number for a tensor": framed(header(a=1), DATA),
    "a key too many": framed(header(a={**entry(), "more": 1}), DATA),
    "an unknown type": framed(header(a=entry("F4")), DATA),
    "a type that is no text": framed(header(a={**entry(), "dtype": ["F32"]}), DATA),
    "another type than its bytes": framed(header(a=entry("F16")), DATA),
    "a negative dim": framed(header(a=entry(shape=(-4,))), DATA),
    "a dim that is true": framed(header(a={**entry("F32", (4,)), "shape": [True, 4]}), DATA),
    "a dim with a point": framed(header(a={**entry(), "shape": [4.0]}), DATA),
    "dims beyond counting": framed(header(a=entry(shape=(1 << 40, 1 << 40))), DATA),
    "more dims than anything has": framed(header(a=entry(shape=(1,) * 9 + (4,))), DATA),
    "an end before the beginning": framed(header(a=entry(offsets=(16, 0))), DATA),
    "a tensor beyond the end": framed(header(a=entry(offsets=(16, 32))), DATA),
    "three offsets": framed(header(a=entry(offsets=(0, 16, 16))), DATA),
    "tensors on each other": framed(header(a=entry(), b=entry()), DATA),
    "a gap": framed(header(a=entry(), b=entry(offsets=(20, 36))), DATA + bytes(20)),
    "bytes of no tensor": framed(header(a=entry()), DATA + b"x"),
    "no tensor for its bytes": framed(b"{}", DATA),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_what_lies_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)

    with pytest.raises(ModelError, match=r"a\.safetensors is damaged"):
        read_safetensors(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_files_say_they_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        tiny_folder(folder)
    name = data.draw(st.sampled_from(["model.safetensors", "config.json", "tokenizer_config.json"]))
    sound = (folder / name).read_bytes()
    end = min(len(sound), 8 + int.from_bytes(sound[:8], "little")) if name == "model.safetensors" else len(sound)
    raw = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end))
        raw[at : at + 3] = data.draw(
            st.binary(min_size=3, max_size=3) | st.sampled_from([b"1e9", b'":0', b"-10", b"[[1"])
        )
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        (folder / name).write_bytes(raw)
        source = safetensors_source(folder / "model.safetensors")
        for tensor in ("token_embd.weight", "blk.0.attn_q.weight"):
            if source.weights.shape(tensor):
                source.weights.pieces(tensor).array()
    except ModelError:
        pass
    finally:
        (folder / name).write_bytes(sound)
