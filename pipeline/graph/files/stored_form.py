"""Tensors of float32 whose bytes stay in the form that the source has them in: float16, bfloat16, blocks of GGUF.

An initializer of a graph of ours may say, beside location, offset and length of its external data, in which `form` the
bytes are. It is float32 for whoever reads it, a piece or a tensor at a time; the store has the source's bytes, once.
onnxruntime knows no such entry: sessions and compilers are handed the numbers (:mod:`pipeline.graph.cpu`,
:mod:`pipeline.qnn.compiling.compiler`). A source may not have it: :mod:`pipeline.graph.files.admission` refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from pipeline.errors import ModelError
from pipeline.graph.files.blocks import BLOCK, FORMATS, SEPARATED, BlockFormat
from pipeline.graph.ir.tensor_chunks import Pieces

KEY = "form"
ENTRY = b"\x0a\x04form\x12"
"""How the entry's key looks in a serialized graph."""
_BYTES_AT_ONCE = 1 << 20
_BY_NAME = {form.name: form for form in (*FORMATS.values(), *(each for pair in SEPARATED.values() for each in pair))}
_MOST_ELEMENTS = 1 << 36
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StoredForm:
    """How a file has a tensor: as a matrix [rows, columns] in blocks of a format.

    The tensor is that matrix, with `heads` after the halves of each head were put behind each other, with `transposed`
    as [columns, rows], and times `scale`; in whatever shape it has.
    """

    blocks: BlockFormat
    rows: int
    columns: int
    heads: int = 0
    transposed: bool = False
    scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """What it takes in the file."""
        return self.rows * self.columns // self.blocks.elements * self.blocks.nbytes

    @property
    def text(self) -> str:
        """The entry of the external data."""
        way = "transposed" if self.transposed else "straight"
        return f"{self.blocks.name} {self.rows} {self.columns} {self.heads} {way} {self.scale!r}"

    @classmethod
    def parse(cls, text: str) -> StoredForm:
        """The inverse of :attr:`text`.

        Raises:
            ModelError: it is none.
        """
        try:
            name, rows, columns, heads, way, scale = text.split(" ")
            found = cls(_BY_NAME[name], int(rows), int(columns), int(heads), way == "transposed", float(scale))
        except (ValueError, KeyError):
            raise _wrong(text) from None
        sizes = found.rows, found.columns, found.heads
        fits = min(sizes) >= 0 and found.rows * found.columns <= _MOST_ELEMENTS
        if not fits or found.columns % found.blocks.elements or (found.heads and found.rows % (2 * found.heads)):
            raise _wrong(text)
        return found

    @property
    def holds_steps(self) -> bool:
        """Whether it is the first of two that :meth:`separated` gives."""
        return any(self.blocks == steps for steps, _ in SEPARATED.values())

    def separated(self) -> tuple[StoredForm, StoredForm] | None:
        """The same bytes as two tensors, of blocks of 4 bits with minima: what is left when each 32 neighbours in a row
        have lost the number in their middle, which has no minima; and these numbers, [rows, columns / 32]. Else None.
        """
        if self.blocks.name not in SEPARATED:
            return None
        steps, middles = SEPARATED[self.blocks.name]
        return replace(self, blocks=steps), replace(self, blocks=middles, columns=self.columns // BLOCK)

    def pieces(self, path: Path, offset: int, shape: tuple[int, ...]) -> Pieces:
        """The elements of the tensor, in its order."""
        if not self.heads and not self.transposed:
            plain = Pieces(np.dtype(np.float32), shape, lambda: self._read(path, offset))
            return plain if self.scale == 1 else plain.map(self._scaled, np.dtype(np.float32))
        return Pieces(np.dtype(np.float32), shape, lambda: iter(Pieces.of_array(self.array(path, offset, shape))))

    def array(self, path: Path, offset: int, shape: tuple[int, ...]) -> Floats:
        """All of them."""
        read = Pieces(np.dtype(np.float32), (self.rows, self.columns), lambda: self._read(path, offset))
        found: Floats = read.array()
        if self.heads:
            pairs = found.reshape(self.heads, self.rows // self.heads // 2, 2, self.columns)
            found = np.asarray(pairs.swapaxes(1, 2).reshape(self.rows, self.columns))
        turned = np.ascontiguousarray(found.T) if self.transposed else found
        return self._scaled(turned).reshape(shape)

    def _scaled(self, values: Floats) -> Floats:
        return values if self.scale == 1 else values * np.float32(self.scale)

    def _read(self, path: Path, offset: int) -> Iterator[Floats]:
        form = self.blocks
        at_once = max(1, _BYTES_AT_ONCE // form.nbytes) * form.nbytes
        with path.open("rb") as stream:
            stream.seek(offset)
            left = self.nbytes
            while left:
                raw = stream.read(min(at_once, left))
                if len(raw) != min(at_once, left):
                    raise ModelError(f"{path.name} was cut short while it was read", remedy="build again")
                left -= len(raw)
                blocks = np.frombuffer(raw, np.uint8).reshape(-1, form.nbytes)
                with np.errstate(invalid="ignore", over="ignore"):  # what is no number is found by whoever reads it
                    yield form.dequantize(blocks).reshape(-1)


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a file of the source: where, in which form, and its shape there."""

    path: Path
    offset: int
    form: StoredForm
    shape: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, offset: int, blocks: BlockFormat, shape: tuple[int, ...], heads: int = 0) -> StoredWeight:
        """A tensor as a source's directory has it; its last dim is a row."""
        columns = shape[-1] if shape else 1
        rows = math.prod(shape) // columns if columns else 0
        return cls(path, offset, StoredForm(blocks, rows, columns, heads), shape)

    def pieces(self) -> Pieces:
        """Its elements as float32, in the order that the graph has them in."""
        return self.form.pieces(self.path, self.offset, self.shape)


def form_of(tensor: TensorProto) -> StoredForm | None:
    """The form of a tensor's external data; None for the plain one.

    Raises:
        ModelError: it says a form that there is none of, or one of another size than the tensor.
    """
    text = next((entry.value for entry in tensor.external_data if entry.key == KEY), None)
    if text is None:
        return None
    found = StoredForm.parse(text)
    if found.rows * found.columns != math.prod(tensor.dims) or tensor.data_type != TensorProto.FLOAT:
        raise _wrong(text)
    return found


def without_forms(model: ModelProto) -> ModelProto:
    """A copy of a graph for onnxruntime, which is handed the tensors that had a form."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key != KEY]
        if len(kept) < len(tensor.external_data):
            pairs = [(entry.key, entry.value) for entry in kept]
            del tensor.external_data[:]
            for key, value in pairs:
                tensor.external_data.add(key=key, value=value)
    return copy


def _wrong(text: str) -> ModelError:
    return ModelError(
        "a tensor is stored in a form that there is none of", why=f"it says {text[:100]!r}", remedy="build again"
    )
