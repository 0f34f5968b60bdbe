"""Writes the blobs that external tensors of graph files refer to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pipeline.graph.files.model_file import (
    ALIGNMENT,
    EXTERNAL_BYTES,
    SUB_BYTE_BITS,
    as_bytes,
    inline_tensor,
    set_external,
)
from pipeline.graph.ir.tensor_chunks import Pieces


class BlobWriter:
    """Writes tensors into one blob, front to back, equal bytes once. A context manager.

    The file exists once something was added; a blob nothing was added to leaves no file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._end = 0
        self._seen: dict[tuple[int, bytes], list[int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def flush(self) -> None:
        """Let readers of the file have what was added so far."""
        if self._file is not None:
            self._file.flush()

    def add(self, data: NDArray[Any] | Pieces) -> tuple[int, int]:
        """Store the bytes of a tensor (C order, little endian) and return their (offset, length) in the blob."""
        pieces = data.held() if isinstance(data, Pieces) else Pieces.of_array(data)
        # The head tells most tensors of a size apart; only then is it worth reading back what was written.
        head = next((as_bytes(piece)[:4096].tobytes() for piece in pieces), b"")
        key = (pieces.nbytes, hashlib.blake2b(head).digest())
        for offset in self._seen.get(key, ()):
            if self._holds(offset, pieces):
                return offset, pieces.nbytes
        if self._file is None:
            self._file = self._path.open("w+b")
        padding = -self._end % ALIGNMENT
        self._file.write(b"\0" * padding)
        offset = self._end + padding
        for piece in pieces:
            self._file.write(as_bytes(piece).data)
        self._end = offset + pieces.nbytes
        self._seen.setdefault(key, []).append(offset)
        return offset, pieces.nbytes

    def tensor(self, name: str, values: NDArray[Any] | Pieces) -> TensorProto:
        """An initializer with these values: inside the graph file if small, in the blob otherwise."""
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        small = values.nbytes < EXTERNAL_BYTES or values.dtype.hasobject
        if isinstance(values, Pieces) and (small or kind in SUB_BYTE_BITS):
            values = values.array()
        if not isinstance(values, Pieces) and small:
            return inline_tensor(name, values)
        if not isinstance(values, Pieces) and kind in SUB_BYTE_BITS:
            tensor = numpy_helper.from_array(values, name)
            values = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            tensor = TensorProto(name=name, data_type=kind, dims=values.shape)
        set_external(tensor, self._path.name, *self.add(values))
        return tensor

    def _holds(self, offset: int, pieces: Pieces) -> bool:
        assert self._file is not None
        self._file.seek(offset)
        try:
            return all(self._file.read(piece.nbytes) == as_bytes(piece).data for piece in pieces)
        finally:
            self._file.seek(self._end)
