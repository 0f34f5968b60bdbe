"""Where the constants of QDQ models are kept: in the models, or in blobs that the models of all buckets refer to.

A constant is quantized when the first reader asks for it, and kept at once: no more than one is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import external_range, inline_tensor, is_external, tensor_array, tensor_pieces
from pipeline.graph.files.stored_form import form_of
from pipeline.graph.quantization.weights.weight_encodings import Integers


@dataclass(frozen=True, eq=False)
class EncodedConstant:
    """A constant as integers: ``real = scale * (values - zero_point)``, as in :class:`Integers`."""

    values: TensorProto
    scale: NDArray[np.float64]
    zero_point: NDArray[Any]
    axis: int | None
    block: int | None = None


class ConstantStore(Protocol):
    """Keeps the constants of one QDQ model. `of` is always the float model's constant, or one that was made of it."""

    def made(self, name: str, of: str) -> None:
        """Tell that one constant is made of another."""

    def encoded(self, of: TensorProto, how: Hashable, encode: Callable[[], Integers]) -> EncodedConstant:
        """What `encode` makes of a constant; `how` is all that this depends on but the constant itself."""

    def parameter(self, of: str, name: str, array: NDArray[Any]) -> TensorProto:
        """A scale or zero point of an encoded constant, as an initializer."""

    def unchanged(self, of: TensorProto, folder: Path) -> TensorProto:
        """A constant that is not encoded, as an initializer; `folder` holds its blob."""


class InModel:
    """Keeps constants in the model itself."""

    def made(self, name: str, of: str) -> None:
        """See :class:`ConstantStore`; all are in one place."""

    def encoded(self, of: TensorProto, how: Hashable, encode: Callable[[], Integers]) -> EncodedConstant:
        """See :class:`ConstantStore`."""
        made = encode()
        return _encoded(numpy_helper.from_array(made.array(), of.name), made)

    def parameter(self, of: str, name: str, array: NDArray[Any]) -> TensorProto:
        """See :class:`ConstantStore`."""
        return inline_tensor(name, array)

    def unchanged(self, of: TensorProto, folder: Path) -> TensorProto:
        """See :class:`ConstantStore`."""
        return numpy_helper.from_array(tensor_array(of, folder), of.name) if is_external(of) else of


class SharedConstants:
    """What the QDQ models of all buckets have in common: each constant is encoded for the first that needs it."""

    def __init__(self, blob: BlobWriter) -> None:
        self.blob = blob
        self._known: dict[Hashable, EncodedConstant] = {}

    def encoded(self, key: Hashable, encode: Callable[[], EncodedConstant]) -> EncodedConstant:
        """What is known under a key, or is made now. A new object each time: readers that share one get one DQ node."""
        if key not in self._known:
            self._known[key] = encode()
        return replace(self._known[key])


class InBlobs:
    """Keeps the constants of one bucket's model in two blobs: one that all buckets share, and one of its own."""

    def __init__(
        self, shared: SharedConstants, own: BlobWriter, of_this_bucket: Collection[str], digests: Mapping[str, str]
    ) -> None:
        """`digests` tells for each blob of the float model what is in it; equal ones hold equal constants."""
        self._shared = shared
        self._own = own
        self._of_this_bucket = set(of_this_bucket)
        self._digests = digests

    def made(self, name: str, of: str) -> None:
        """See :class:`ConstantStore`: what is made of a constant of this bucket is of this bucket, too."""
        if of in self._of_this_bucket:
            self._of_this_bucket.add(name)

    def encoded(self, of: TensorProto, how: Hashable, encode: Callable[[], Integers]) -> EncodedConstant:
        """See :class:`ConstantStore`."""

        def keep() -> EncodedConstant:
            made = encode()
            return _encoded(self._blob(of.name).tensor(of.name, made.values), made)

        if of.name in self._of_this_bucket or not is_external(of):
            return keep()
        return self._shared.encoded((self._content(of), how), keep)

    def parameter(self, of: str, name: str, array: NDArray[Any]) -> TensorProto:
        """See :class:`ConstantStore`."""
        return self._blob(of).tensor(name, array)

    def unchanged(self, of: TensorProto, folder: Path) -> TensorProto:
        """See :class:`ConstantStore`."""
        return self._blob(of.name).tensor(of.name, tensor_pieces(of, folder)) if is_external(of) else of

    def _blob(self, name: str) -> BlobWriter:
        return self._own if name in self._of_this_bucket else self._shared.blob

    def _content(self, of: TensorProto) -> Hashable:
        place = external_range(of)
        form = form_of(of)
        return self._digests[place.location], place.offset, form and form.text, of.data_type, tuple(of.dims)


def _encoded(values: TensorProto, made: Integers) -> EncodedConstant:
    return EncodedConstant(values, made.scale, made.zero_point, made.axis, made.block)
