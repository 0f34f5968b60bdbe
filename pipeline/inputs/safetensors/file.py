"""Reads the header of a safetensors file: the places and types of its tensors, without reading any of them.

The format is that of https://github.com/huggingface/safetensors#format: eight bytes with the length of the header, the
header as JSON, and the tensors' bytes, which fill the rest without gaps and without overlaps. What a header says is
compared with the size of the file before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.inputs.safetensors.index import parsed, refused
from pipeline.model import Json

_SIZES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_LARGEST_HEADER = 1 << 24
"""The most bytes of a header. The format allows 100 MB; a tensor takes some 120 bytes."""
_MOST_TENSORS, _MOST_DIMS, _MOST_ELEMENTS = 65_536, 8, 1 << 36


@dataclass(frozen=True)
class SafeTensor:
    """One tensor: its type by the format's name, its shape, its file, and where its bytes are in that."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a file by name.

    Raises:
        ModelError: the file is not of this format, was cut short, or contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 10 or length > size - 8:
            raise _damaged(path, f"it has {size} bytes, and claims a header of {length}")
        if length > _LARGEST_HEADER:
            raise _damaged(path, f"it claims a header of {length} bytes; {_LARGEST_HEADER} are the most")
        header = parsed(stream.read(length), path.name)
    header.pop("__metadata__", None)
    if len(header) > _MOST_TENSORS:
        raise _damaged(path, f"it claims {len(header)} tensors")
    start = 8 + length
    found = {name: _tensor(path, name, entry, start) for name, entry in header.items()}
    end = start
    for tensor in sorted(found.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            what = "lies over another one" if tensor.offset < end else "has a gap before it"
            raise _damaged(path, f"tensor {tensor.name[:100]!r} {what}")
        end = tensor.offset + tensor.nbytes
    if end != size:
        raise _damaged(path, f"its tensors end at byte {end}, the file at {size}")
    return found


def _tensor(path: Path, name: str, entry: Json, start: int) -> SafeTensor:
    shown = repr(name[:100])
    if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor {shown} is not described by dtype, shape and data_offsets")
    dtype, dims, offsets = entry["dtype"], _naturals(entry["shape"]), _naturals(entry["data_offsets"])
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise _damaged(path, f"tensor {shown} has type {str(dtype)[:40]!r}; known are {', '.join(_SIZES)}")
    if dims is None or len(dims) > _MOST_DIMS or math.prod(dims) > _MOST_ELEMENTS:
        raise _damaged(path, f"tensor {shown} has shape {str(entry['shape'])[:100]}")
    nbytes = math.prod(dims) * _SIZES[dtype]
    if offsets is None or len(offsets) != 2 or offsets[1] - offsets[0] != nbytes:
        raise _damaged(path, f"tensor {shown} of {nbytes} bytes is said to be at {str(entry['data_offsets'])[:100]}")
    return SafeTensor(name, dtype, dims, path, start + offsets[0], nbytes)


def _naturals(value: Json) -> tuple[int, ...] | None:
    """A list of natural numbers; None for anything else."""
    if not isinstance(value, list):
        return None
    found = [each for each in value if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 62]
    return tuple(found) if len(found) == len(value) else None


def _damaged(path: Path, why: str) -> ModelError:
    return refused(path.name, why)
