"""The frames of the protocol: what is carried, and what damaged ones do to either side."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.qnn_release import Release, client, serve
from pipeline.qnn_release.client import ArraysError, FrameError, encode, encode_frame, read_frame
from tests.support import runtime_releases, tiny_models


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release of a tiny model, on the CPU."""
    with Release.open(runtime_releases.tiny(tmp_path_factory.mktemp("tiny")), device="cpu") as release:
        yield release


def x(length: int = 5) -> dict[str, Any]:
    return {"x": tiny_models.sample(length)}


def frame(header: dict[str, Any], arrays: dict[str, Any] | None = None) -> bytes:
    listed, buffers = encode(arrays or {})
    return b"".join(bytes(part) for part in encode_frame({"arrays": listed, **header}, buffers, 1 << 30))


DTYPES = sorted(client.FORMATS)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=4))
def test_frames_carry_every_type_and_shape(kinds: list[tuple[str, list[int]]]) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"a{number}": rng.integers(0, 100, shape).astype(dtype) for number, (dtype, shape) in enumerate(kinds)}
    stream = io.BytesIO(frame({"id": 3}, arrays) + frame({"id": 4}))
    header, got = cast("tuple[dict[str, Any], dict[str, Any]]", read_frame(stream))
    assert header["id"] == 3
    assert {name: (array.dtype, array.shape) for name, array in got.items()} == {
        name: (array.dtype, array.shape) for name, array in arrays.items()
    }
    assert all(np.array_equal(got[name], array) for name, array in arrays.items())
    assert cast("Any", read_frame(stream))[0] == {"id": 4, "arrays": []}
    assert read_frame(stream) is None


def test_arrays_that_are_no_plain_memory_are_sent_right() -> None:
    whole = np.arange(24, dtype=">i4").reshape(4, 6)
    _, got = cast("tuple[Any, dict[str, Any]]", read_frame(io.BytesIO(frame({}, {"x": whole[::2, ::-1].T}))))
    assert np.array_equal(got["x"], whole[::2, ::-1].T)


ODD_HEADERS: list[dict[str, Any]] = [
    {"call": "run"},
    {"call": "run", "component": 3},
    {"call": ["run"]},
    {"call": "delete"},
    {},
    {"id": [1], "call": "report"},
    {"id": {"a": 1}},
    {"call": "load", "component": "no"},
    {"arrays": None},
    {"arrays": 7},
    {"arrays": [7]},
    {"arrays": [{}]},
    {"arrays": [{"name": "x", "dtype": "complex64", "shape": [1]}]},
    {"arrays": [{"name": "x", "dtype": ["int8"], "shape": [1]}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": 1}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": [-1]}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": [1.5]}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": [True]}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": [10**30, 10**30]}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": [1] * 100}]},
    {"arrays": [{"name": "x", "dtype": "int8", "shape": [0]}] * 2},
]


def answers(requests: bytes, opened: Release) -> tuple[int, list[dict[str, Any]]]:
    """What the server says to these bytes, and its exit status."""
    out = io.BytesIO()
    status = serve._answer_all(opened, cast("Any", io.BytesIO(requests)), cast("Any", out), 1 << 20)
    out.seek(0)
    return status, [header for header, _ in iter(lambda: cast("Any", read_frame(out)), None)]


@pytest.mark.parametrize("header", ODD_HEADERS, ids=json.dumps)
def test_a_request_that_is_wrong_is_answered_and_the_next_is_too(header: dict[str, Any], opened: Release) -> None:
    status, got = answers(frame(header) + frame({"id": 9, "call": "run", "component": "layers"}, x()), opened)
    assert status == 0
    assert len(got) == 2
    assert "error" in got[0] or header.get("call") == "report"
    assert got[1]["id"] == 9
    assert "error" not in got[1]


def test_bytes_that_are_no_frame_end_the_server(opened: Release) -> None:
    good = frame({"id": 1, "call": "report"})
    for odd in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, struct.pack("<4sIQ", b"QNR1", 1 << 30, 0), good[:10], good[:30],
                struct.pack("<4sIQ", b"QNR1", 2, 1 << 40) + b"{}"):  # fmt: skip
        status, got = answers(good + odd, opened)
        assert status == 3
        assert [each.get("id") for each in got] == [1, None]
        assert got[1]["error"]["kind"] in ("FrameError", "EOFError")


def test_damaged_requests_never_hang_nor_break_the_server(opened: Release) -> None:
    rng = random.Random(0)
    good = frame({"id": 1, "call": "run", "component": "layers"}, x()) + frame({"id": 2, "call": "report"})
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            change = rng.randrange(3)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1:
                del data[at : at + rng.randint(1, 9)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
        status, got = answers(bytes(data), opened)
        assert status in (0, 3)
        assert all("error" in each or each["id"] in (1, 2) or "report" in each or each["arrays"] for each in got)


def test_damaged_frames_are_read_or_refused() -> None:
    rng = random.Random(1)
    good = frame({"id": 1}, {"x": np.arange(40, dtype=np.int16), "y": np.zeros((2, 3), np.float16)})
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read_frame(io.BytesIO(bytes(data[: rng.randint(0, len(data))])), 1 << 20)
        except (FrameError, ArraysError, EOFError):
            continue
