"""Graph files and blobs: what is written is read back, and nothing outside the model's folder is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.contracts.values import Signature, TensorSpec
from pipeline.errors import ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import (
    ALIGNMENT,
    EXTERNAL_BYTES,
    byte_size,
    external_file,
    external_range,
    is_external,
    load_graph,
    save_graph,
    set_external,
    signature,
    tensor_array,
)
from tests.support.sources import model, numbers


def external(**entries: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 8], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize(
    "array",
    [
        numbers(40, 50),
        numbers(40, 50).T,
        numbers(3),
        np.array(3, np.int64),
        np.zeros((0, 400), np.float32),
        numbers(900).astype(np.float16),
        numbers(900).astype(ml_dtypes.bfloat16),
        np.arange(4001, dtype=np.int64).astype(ml_dtypes.int4),
        numbers(40, 40) > 0,
        np.array(["a", "é"], np.object_),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_tensor_reads_back(array: NDArray[Any], tmp_path: Path) -> None:
    with BlobWriter(tmp_path / "weights.bin") as blob:
        blob.tensor("before", numbers(257))
        tensor = blob.tensor("w", array)
    read = tensor_array(tensor, tmp_path)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert np.array_equal(read, array)
    assert is_external(tensor) == (array.nbytes >= EXTERNAL_BYTES)
    assert not is_external(tensor) or external_range(tensor).offset % ALIGNMENT == 0


def test_external_tensors_are_mapped_read_only(tmp_path: Path) -> None:
    with BlobWriter(tmp_path / "weights.bin") as blob:
        tensor = blob.tensor("w", numbers(1000))
    read = tensor_array(tensor, tmp_path)
    assert isinstance(read, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1


def test_equal_tensors_are_stored_once_and_like_ones_apart(tmp_path: Path) -> None:
    first = np.zeros(5000, np.float32)
    other = first.copy()
    other[-1] = 1
    with BlobWriter(tmp_path / "weights.bin") as blob:
        places = [blob.add(first), blob.add(other), blob.add(first.copy()), blob.add(other.reshape(50, 100))]
    assert places[0] == places[2]
    assert places[1] == places[3]
    assert places[0] != places[1]
    assert (tmp_path / "weights.bin").stat().st_size == places[1][0] + 20000


def test_blob_without_tensors_leaves_no_file(tmp_path: Path) -> None:
    with BlobWriter(tmp_path / "constants.bin") as blob:
        blob.tensor("small", numbers(2))
    assert not (tmp_path / "constants.bin").exists()


@pytest.mark.parametrize(
    "location",
    ["../w.bin", "/etc/passwd", "C:\\w.bin", "C:w.bin", "..\\w.bin", "a/../../w.bin", "\\\\host\\share\\w", "link.bin",
     "folder/w.bin", "a\0b"],
)  # fmt: skip
def test_locations_out_of_the_folder_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 128)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "folder").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ModelError, match="leads out of the model's folder"):
        external_file(location, folder)


def test_missing_external_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"external data file 'onnx/w\.bin' is missing"):
        tensor_array(external(location="onnx/w.bin"), tmp_path)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"location": "w.bin", "length": "64"}, "[4, 8] needs 128 bytes, its length says 64"),
        ({"location": "w.bin", "offset": "8"}, "it needs 128 bytes at offset 8, 'w.bin' has 120 left"),
        ({"location": "w.bin", "offset": "4096"}, "it needs 128 bytes at offset 4096, 'w.bin' has 0 left"),
        ({"location": "w.bin", "offset": "-8"}, "its offset is '-8'"),
        ({"location": "w.bin", "length": "9" * 30}, "its length is '999999999999999999999999999999'"),
        ({"offset": "0"}, "it names no file"),
    ],
)
def test_external_data_that_lies_is_refused(entries: dict[str, str], why: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 128)
    with pytest.raises(ModelError, match="external data of tensor 'w'") as caught:
        tensor_array(external(**entries), tmp_path)
    assert caught.value.why == why


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"\0" * 8), "carries other data than its dims say"),
        (TensorProto(name="w", data_type=1, dims=[2**40, 2**40], raw_data=b""), "carries other data than its dims say"),
        (TensorProto(name="w", data_type=1, dims=[3], float_data=[1.0]), "carries other data than its dims say"),
        (TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"\0" * 8), "has a negative dim"),
        (TensorProto(name="w", data_type=77, dims=[1], raw_data=b"\0"), "has no known element type"),
    ],
)
def test_inline_data_that_lies_is_refused(tensor: TensorProto, what: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"tensor 'w' {what}"):
        tensor_array(tensor, tmp_path)


def test_byte_size_of_packed_types() -> None:
    assert byte_size(helper.make_tensor("w", TensorProto.INT4, [5], [1] * 5)) == 3
    assert byte_size(helper.make_tensor("w", TensorProto.UINT2, [5], [1] * 5)) == 2


def test_set_external_drops_the_data() -> None:
    tensor = numpy_helper.from_array(numbers(8), "w")
    set_external(tensor, "weights.bin", 64, 32)
    assert not tensor.raw_data
    assert external_range(tensor).offset == 64


def test_graph_files_are_deterministic(tmp_path: Path) -> None:
    source = model("g (float[batch,3] x) => (float[batch,3] y) { y = Relu (x) }")
    save_graph(source, tmp_path / "a.onnx")
    save_graph(load_graph(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"\xff\xff", "parsed"), (b"", "no graph"), (ModelProto(ir_version=8).SerializeToString(), "no graph")],
)
def test_files_that_are_no_models_are_refused(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.onnx is not an ONNX model, or is damaged") as caught:
        load_graph(tmp_path / "m.onnx")
    assert why in caught.value.why


def test_signature_lists_dims_as_they_are() -> None:
    source = model("g (int64[batch,3] ids, float[2] w) => (float16[?,batch] y) { y = Foo (ids, w) }", {"w": numbers(2)})
    ids, y = TensorSpec("ids", "int64", ("batch", 3)), TensorSpec("y", "float16", (None, "batch"))
    assert signature(source) == Signature(inputs=(ids,), outputs=(y,))


def test_signature_refuses_sequences() -> None:
    source = model("g (seq(float[2]) x) => (float[2] y) { y = ConcatFromSequence <axis = 0> (x) }")
    with pytest.raises(ModelError, match="'x' is not a tensor") as caught:
        signature(source)
    assert "sequence_type" in caught.value.why
