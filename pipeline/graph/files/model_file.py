"""A model on disk: one small graph file, and blobs beside it that hold its tensors.

A graph file is an ONNX ``ModelProto`` whose initializers of :data:`EXTERNAL_BYTES` or more are external data
(https://onnx.ai/onnx/repo-docs/ExternalData.html) in a blob of the same folder. ``weights.bin`` is the very file of the
source that the weights came in, ``converted.bin`` has those that ingest had to change, ``constants.bin`` what shape
computed for a bucket, and ``rewritten.bin`` what rewrite did. Blobs are written front to back and read through memory
maps, so the tensors of a model are never in memory all at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from pipeline.contracts.values import Signature, TensorSpec
from pipeline.errors import ModelError
from pipeline.graph.files.stored_form import KEY, StoredForm, form_of
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.ir.traverse import all_tensors

MODEL = "model.onnx"
WEIGHTS = "weights.bin"
CONVERTED = "converted.bin"
CONSTANTS = "constants.bin"
REWRITTEN = "rewritten.bin"

EXTERNAL_BYTES = 1024
"""Initializers of this many bytes or more live in a blob, smaller ones in the graph file."""

ALIGNMENT = 64
"""Every tensor that we write starts at a multiple of this: the width of the widest vector load."""

PROTOBUF_LIMIT = 2**31 - 1
"""A protobuf message can't be longer (https://protobuf.dev/programming-guides/encoding/#size-limits)."""

SUB_BYTE_BITS: Mapping[int, int] = {
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.FLOAT6E2M3: 6,
    TensorProto.FLOAT6E3M2: 6,
}
"""Element types of which several share a byte."""
_NO_NAME = frozenset("/\\:\0")
"""What a location has that is more than the name of a file."""
_DATA_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


@dataclass(frozen=True)
class ExternalRange:
    """Where an external tensor says its bytes are. `length` is None when it doesn't say."""

    location: str
    offset: int
    length: int | None


def load_graph(path: Path) -> ModelProto:
    """Parse a graph file; external tensors stay on disk.

    Raises:
        ModelError: it is no ONNX protobuf, is cut short, or exceeds protobuf's size limit.
    """
    if path.stat().st_size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{path.name} is larger than an ONNX file can be",
            why=f"{path.stat().st_size} bytes; protobuf messages end at 2 GiB",
            remedy="save the model with its weights as external data",
        )
    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise not_onnx(path.name, "it can't be parsed as a protobuf") from error
    if not model.HasField("graph"):
        raise not_onnx(path.name, "it holds no graph")
    return model


def not_onnx(file: str, why: str) -> ModelError:
    """The error for a file that should be an ONNX model and isn't."""
    return ModelError(
        f"{file} is not an ONNX model, or is damaged", why=why, remedy="fetch the file again, or export it again"
    )


def save_graph(model: ModelProto, path: Path) -> None:
    """Write a graph file; the same model gives the same bytes."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes are outside the graph file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def tensor_dtype(tensor: TensorProto) -> np.dtype[Any]:
    """The numpy dtype of a tensor.

    Raises:
        ModelError: its element type is none that ONNX defines.
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError:
        raise ModelError(
            f"tensor {tensor.name!r} has no known element type", why=f"its data_type is {tensor.data_type}"
        ) from None


def byte_size(tensor: TensorProto) -> int:
    """The bytes a tensor takes by its dims and type (not by the data it carries). Strings count as 0.

    Raises:
        ModelError: a dim is negative or the element type unknown.
    """
    if min(tensor.dims[:], default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r} has a negative dim", why=f"its dims are {list(tensor.dims)}")
    if tensor.data_type == TensorProto.STRING:
        return 0
    return packed_size(tensor, math.prod(tensor.dims[:]))


def packed_size(tensor: TensorProto, count: int) -> int:
    """The bytes that so many elements of a tensor's type take, which is not that of strings.

    Raises:
        ModelError: the element type is unknown.
    """
    bits = SUB_BYTE_BITS.get(tensor.data_type) or 8 * tensor_dtype(tensor).itemsize
    return (count * bits + 7) // 8


def blob_names(model: ModelProto) -> set[str]:
    """The blobs that a graph file refers to."""
    return {external_range(tensor).location for tensor in all_tensors(model.graph) if is_external(tensor)}


def external_range(tensor: TensorProto) -> ExternalRange:
    """Read a tensor's external_data entries.

    Raises:
        ModelError: no location, or an offset or length that is no natural number.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers: dict[str, int | None] = {}
    for key in ("offset", "length"):
        text = entries.get(key)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise _bad_external(tensor, f"its {key} is {text!r}")
        numbers[key] = None if text is None else int(text)
    if not entries.get("location"):
        raise _bad_external(tensor, "it names no file")
    return ExternalRange(entries["location"], numbers["offset"] or 0, numbers["length"])


def external_file(location: str, folder: Path) -> Path:
    """The file a location names, which must lie in `folder` however it is spelt, links followed.

    Raises:
        ModelError: the location is absolute or leads out of the folder, or there is no such file.
    """
    plain = _NO_NAME.isdisjoint(location) and bool(location.strip("."))
    if plain or not _escapes(location):
        path = folder / location
        try:
            # A name that is no link needs no look at the folders above, which takes longer than to read a small tensor.
            if (plain and not path.is_symlink()) or path.resolve().is_relative_to(folder.resolve()):
                if path.is_file():
                    return path
                raise _missing(location, "")
        except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
            raise _missing(location, f"; {error}") from error
    raise ModelError(
        f"external data location {location!r} leads out of the model's folder",
        why="a model may read files of its own folder only",
        remedy="save the model again with its external data beside it, and ask whoever made it why it points elsewhere",
    )


def _escapes(location: str) -> bool:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    parts = {*posix.parts, *windows.parts}
    return posix.is_absolute() or bool(windows.drive or windows.root) or ".." in parts or "\0" in location


def _missing(location: str, why: str) -> ModelError:
    return ModelError(
        f"external data file {location!r} is missing",
        why=f"the model's weights are in that file, beside the .onnx{why}",
        remedy="put it next to the .onnx, under the very name the model gives",
    )


def external_bytes(tensor: TensorProto, folder: Path) -> tuple[Path, int, int]:
    """Where the bytes of an external tensor are: a file that is there, offset and length within it.

    Raises:
        ModelError: they are missing, outside `folder`, or of another size than dims and type say.
    """
    form = form_of(tensor)
    size = form.nbytes if form else byte_size(tensor)
    source = external_range(tensor)
    path = external_file(source.location, folder)
    available = path.stat().st_size - source.offset
    if source.length is not None and source.length != size:
        raise _bad_external(tensor, f"{list(tensor.dims)} needs {size} bytes, its length says {source.length}")
    if size > available:
        raise _bad_external(
            tensor, f"it needs {size} bytes at offset {source.offset}, {source.location!r} has {max(available, 0)} left"
        )
    return path, source.offset, size


def tensor_array(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """The values of a tensor, in its dtype and dims; read-only and mapped from disk when external and in no form.

    Raises:
        ModelError: the data is missing, outside `folder`, or of another size than dims and type say.
    """
    if not is_external(tensor):
        return _inline_array(tensor)
    path, offset, size = external_bytes(tensor, folder)
    if form := form_of(tensor):
        return form.array(path, offset, tuple(tensor.dims))
    if tensor.data_type in SUB_BYTE_BITS or size == 0:
        with path.open("rb") as file:
            file.seek(offset)
            return _inline_array(
                TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=file.read(size))
            )
    try:
        return np.memmap(str(path), tensor_dtype(tensor), "r", offset, tuple(tensor.dims))
    except ValueError as error:  # more dims than numpy has
        raise _bad_external(tensor, str(error)) from error


def tensor_pieces(tensor: TensorProto, folder: Path) -> Pieces:
    """The same values a piece at a time, none of which stays in memory when it comes from disk.

    Raises:
        ModelError: as for :func:`tensor_array`.
    """
    if not is_external(tensor) or tensor.data_type in (*SUB_BYTE_BITS, TensorProto.STRING):
        return Pieces.of_array(tensor_array(tensor, folder))
    path, offset, _ = external_bytes(tensor, folder)
    if form := form_of(tensor):
        return form.pieces(path, offset, tuple(tensor.dims))
    return Pieces.of_file(path, offset, tensor_dtype(tensor), tuple(tensor.dims))


def set_external(tensor: TensorProto, location: str, offset: int, length: int, form: StoredForm | None = None) -> None:
    """Make `tensor` refer to bytes in a blob, which may be in a form, dropping any data it carries."""
    for field in (*_DATA_FIELDS, "external_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    if form is not None:
        tensor.external_data.add(key=KEY, value=form.text)


def inline_tensor(name: str, array: NDArray[Any]) -> TensorProto:
    """An initializer that carries these values."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype.hasobject or kind in SUB_BYTE_BITS:
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    return TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=as_bytes(array).tobytes())


def as_bytes(data: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array in C order, little-endian."""
    little = data.astype(data.dtype.newbyteorder("<"), copy=False) if data.dtype.byteorder == ">" else data
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8)


def signature(model: ModelProto) -> Signature:
    """Inputs and outputs in graph order; initializers are no inputs."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return Signature(
        inputs=tuple(value_signature(value) for value in model.graph.input if value.name not in initialized),
        outputs=tuple(value_signature(value) for value in model.graph.output),
    )


def value_signature(value: ValueInfoProto) -> TensorSpec:
    """A value as the graph declares it: dims as a size, an axis name, or None for neither.

    Raises:
        ModelError: it is not a tensor, or says no element type.
    """
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or kind.elem_type not in helper.get_all_tensor_dtypes():
        raise ModelError(
            f"{value.name!r} is not a tensor",
            why=f"its type is {value.type.WhichOneof('value') or 'not given'}; only tensors go in and out of an NPU",
            remedy="export the model with tensors as inputs and outputs",
        )
    shape: list[int | str | None] = []
    for dim in kind.shape.dim:
        which = dim.WhichOneof("value")
        shape.append(dim.dim_value if which == "dim_value" else (dim.dim_param or None) if which else None)
    return TensorSpec(value.name, helper.tensor_dtype_to_np_dtype(kind.elem_type).name, tuple(shape))


def _inline_array(tensor: TensorProto) -> NDArray[Any]:
    try:
        if tensor.HasField("raw_data"):
            raw, size = tensor.raw_data, byte_size(tensor)
            if len(raw) != size:
                raise ValueError(f"it needs {size} bytes and has {len(raw)}")
            if tensor.data_type not in SUB_BYTE_BITS and size:
                return np.frombuffer(raw, tensor_dtype(tensor).newbyteorder("<")).reshape(tensor.dims)
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise ModelError(
            f"tensor {tensor.name!r} carries other data than its dims say",
            where=f"{tensor_dtype(tensor)} {list(tensor.dims)}",
            why=str(error),
            remedy="fetch the file again, or export it again",
        ) from error


def _bad_external(tensor: TensorProto, why: str) -> ModelError:
    return ModelError(
        f"the external data of tensor {tensor.name!r} is not what the model says",
        why=why,
        remedy="fetch the model and its external data again: they may be of two different exports",
    )
