"""Where the constants of a source go: those that stay as they came stay in its files, the others go to a blob.

A file of the source that holds tensors is a blob of what ingest makes of it, under another name: nothing is copied, and
the store has these bytes once. An offset in it is what the exporter made it, for tensors inside a protobuf any number;
numpy, onnxruntime's CPU and QNN EP read tensors from any address (``tests/graph/files/test_source_weights.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import (
    EXTERNAL_BYTES,
    WEIGHTS,
    byte_size,
    external_bytes,
    is_external,
    set_external,
    tensor_pieces,
)
from pipeline.graph.files.single_precision import NARROW, widened
from pipeline.graph.ir.tensor_chunks import Pieces


class SourceWeights:
    """Stores the constants of one model, in the order in which they are asked for."""

    def __init__(self, folder: Path, location: Path, blob: BlobWriter) -> None:
        """`folder` holds the source; its external data is relative to `location`, a folder within."""
        self._folder = folder
        self._location = location
        self._blob = blob
        self._names: dict[str, str] = {}

    @property
    def kept(self) -> dict[str, str]:
        """Blob -> the file of the source that it is."""
        return {blob: file for file, blob in self._names.items()}

    def kept_tensor(self, tensor: TensorProto) -> TensorProto | None:
        """The tensor as it came, in the blob that its file is; None if it has to be written.

        Raises:
            ModelError: its data is not what it says, or holds NaN.
        """
        if not is_external(tensor) or tensor.data_type in NARROW or byte_size(tensor) < EXTERNAL_BYTES:
            return None
        path, offset, size = external_bytes(tensor, self._location)
        file = path.relative_to(self._folder).as_posix()
        _check(tensor.name, tensor_pieces(tensor, self._location))
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        set_external(kept, self._blob_of(file), offset, size)
        return kept

    def written_tensor(self, name: str, values: NDArray[Any]) -> TensorProto:
        """A constant that is not in the source like this; float16 and bfloat16 become float32.

        Raises:
            ModelError: it holds NaN.
        """
        values = widened(values)
        _check(name, Pieces.of_array(values))
        return self._blob.tensor(name, values)

    def inline_tensor(self, name: str, values: NDArray[Any]) -> TensorProto:
        """A constant that the graph file holds itself; float16 and bfloat16 become float32.

        Raises:
            ModelError: it holds NaN.
        """
        values = widened(values)
        _check(name, Pieces.of_array(values))
        return numpy_helper.from_array(values, name)

    def _blob_of(self, file: str) -> str:
        if file not in self._names:
            stem, suffix = WEIGHTS.rsplit(".", 1)
            number = len(self._names) + 1
            self._names[file] = WEIGHTS if number == 1 else f"{stem}_{number}.{suffix}"
        return self._names[file]


def _check(name: str, values: Pieces) -> None:
    # Small constants may hold NaN on purpose, weights don't. A maximum is NaN if any is.
    if values.dtype.kind == "f" and values.nbytes >= EXTERNAL_BYTES and any(np.isnan(np.max(each)) for each in values):
        raise ModelError(
            f"tensor {name!r} holds NaN",
            why="whatever is computed with it is NaN too",
            remedy="fetch the file again; if it is so in the source, the model was exported from a failed training run",
        )
