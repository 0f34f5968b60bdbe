"""Parsing without weights gives the same model as parsing with them, and survives any bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files import lean_parse
from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.files.model_file import is_external, tensor_array
from tests.support.sources import model, numbers


def source() -> ModelProto:
    """Weights in initializers and in a Constant node, a large one and a small one of each."""
    made = model(
        "g (float[batch,512] x) => (float[batch,512] y) { a = Add (x, large)  b = Add (a, c)  y = Add (b, small) }",
        {"large": numbers(512), "small": numbers(1)},
    )
    made.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(numbers(512))))
    return made


def test_large_tensors_stay_in_the_file(tmp_path: Path) -> None:
    original = source()
    (tmp_path / "m.onnx").write_bytes(original.SerializeToString())
    lean = parse_lean(tmp_path / "m.onnx")
    pairs = [
        *zip(original.graph.initializer, lean.graph.initializer, strict=True),
        (original.graph.node[0].attribute[0].t, lean.graph.node[0].attribute[0].t),
    ]
    assert [is_external(tensor) for _, tensor in pairs] == [True, False, True]
    for before, after in pairs:
        assert np.array_equal(tensor_array(after, tmp_path), tensor_array(before, tmp_path))
        after.CopyFrom(before)
    assert lean == original


def test_weights_take_no_memory(tmp_path: Path) -> None:
    text = "g (float[8000000] x) => (float[8000000] y) { y = Add (x, w) }"
    large = model(text, {"w": np.zeros(8_000_000, np.float32)})
    (tmp_path / "m.onnx").write_bytes(large.SerializeToString())
    tracemalloc.start()
    parse_lean(tmp_path / "m.onnx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_tensors_that_are_external_already_stay_as_they_are(tmp_path: Path) -> None:
    made = source()
    made.graph.initializer[0].data_location = TensorProto.EXTERNAL
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert parse_lean(tmp_path / "m.onnx").graph.initializer[0] == made.graph.initializer[0]


def invalid_text(made: ModelProto) -> bytes:
    made.graph.node[1].name = "zzzz"
    data: bytes = made.SerializeToString()
    return data.replace(b"zzzz", b"\xff\xfezz")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda made: b"", "the file is empty"),
        (lambda made: made.SerializeToString()[:-1], "cut short"),
        (lambda made: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no protobuf field at byte 0"),
        (lambda made: b"\x08", "cut short"),
        (lambda made: b"\x08\x07", "it holds no graph"),
        (invalid_text, "a name in it is not UTF-8"),
    ],
    ids=["empty", "truncated", "lfs pointer", "tag alone", "no graph", "not UTF-8"],
)
def test_damaged_files_are_refused(damage: Callable[[ModelProto], bytes], why: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(damage(source()))
    with pytest.raises(ModelError, match=r"m\.onnx is not an ONNX model, or is damaged") as caught:
        parse_lean(tmp_path / "m.onnx")
    assert why in caught.value.why


def test_files_beyond_protobuf_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(ModelError, match="larger than an ONNX file can be") as caught:
        parse_lean(tmp_path / "m.onnx")
    assert caught.value.remedy == "save the model with its weights as external data"


@pytest.mark.parametrize(("limit", "value"), [("GRAPH_LIMIT", 1000), ("FIELD_LIMIT", 20)])
def test_graphs_beyond_the_limits_are_refused(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source()
    for number in range(20):
        made.graph.node.append(helper.make_node("Relu", ["y"], [f"r{number}"], name="n" * 100))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    parse_lean(tmp_path / "m.onnx")
    monkeypatch.setattr(lean_parse, limit, value)
    with pytest.raises(ModelError, match=r"m\.onnx holds a graph that is too large") as caught:
        parse_lean(tmp_path / "m.onnx")
    assert "decision trees" in str(caught.value.remedy), "of which a large file is made of numbers in attributes"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_parses_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole = source().SerializeToString()
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 20))
    changed = whole[:start] + data.draw(st.binary(max_size=20)) + whole[start + length :]
    (tmp_path / "m.onnx").write_bytes(changed)
    try:
        lean = parse_lean(tmp_path / "m.onnx")
    except ModelError:
        return
    full = ModelProto.FromString(changed)
    assert len(lean.graph.node) == len(full.graph.node)
    assert [tensor.name for tensor in lean.graph.initializer] == [tensor.name for tensor in full.graph.initializer]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
@example(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
def test_any_bytes_parse_or_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    try:
        parse_lean(tmp_path / "m.onnx")
    except ModelError:
        return
    ModelProto.FromString(data)
