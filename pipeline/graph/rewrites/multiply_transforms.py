"""Compute Fourier transforms of a fixed length by a product, or by a convolution over frames.

Before, where lengths, axis and window are constants::

    DFT(x, length, axis) <inverse, onesided>
    STFT(signal, step, window, length) <onesided>

After, with the cosines and sines of all frequencies as weights, real and imaginary parts side by side::

    Reshape(MatMul(Reshape(x), waves))                            transposed before and behind if the axis asks for it
    Reshape(Transpose(Conv(Reshape(signal), waves * window) <strides = [step]>))

Transforms of one kind and length share their weights. The same products are added, in another order: 1e-6 of the
largest result apart. QNN (EP 2.7) leaves DFT to the CPU, and takes STFT in float16 alone; in integers nothing of such a
graph is compiled.

The result keeps its name. Left alone: lengths, axes and windows that are computed; half a spectrum that is cut or
padded on its way back, of which ONNX Runtime makes something else than NumPy; whole spectra of frames side by side,
whose convolution HTP does not compile in float16; weights of more than 16 million numbers, as of a transform of 2897
complex numbers; types other than float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import LazyIndex, is_float32, is_op, opset
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.traverse import input_at

_MOST_WEIGHTS = 1 << 24
_AXIS_IS_AN_INPUT = 20
"""The opset in which DFT's axis became one."""


@dataclass(frozen=True)
class _Transform:
    """Of `given` numbers, or as many of them as it has places for, each of one part (real) or two."""

    given: int
    parts: int
    length: int
    inverse: bool
    half: bool
    """Whether frequencies beyond the middle are left out, of the result or, if it is inverse, of what is given."""

    @property
    def made(self) -> int:
        """How many numbers come out."""
        return self.length // 2 + 1 if self.half and not self.inverse else self.length

    @property
    def parts_made(self) -> int:
        """Of how many parts each of them is."""
        return 1 if self.half and self.inverse else 2

    @property
    def is_defined(self) -> bool:
        """Whether ONNX has it: half a spectrum is of real numbers, and comes back as it was."""
        if self.half and self.inverse:
            return self.parts == 2 and self.given == self.length // 2 + 1
        return not self.half or self.parts == 1

    @property
    def weights(self) -> int:
        """How many numbers its matrix has."""
        return self.given * self.parts * self.made * self.parts_made

    def matrix(self) -> NDArray[np.float64]:
        """Float64 [given, parts, made, parts made]."""
        turns = np.outer(np.arange(self.given), np.arange(self.made)) % self.length
        angles = 2 * np.pi * turns / self.length * (1 if self.inverse else -1)
        real, imaginary = np.cos(angles), np.sin(angles)
        if self.inverse:
            counts = np.ones(self.given)
            if self.half:  # but for the first, and the middle one, each stands for two
                counts[1 : (self.length + 1) // 2] = 2
            real, imaginary = (each * counts[:, None] / self.length for each in (real, imaginary))
        matrix = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], 1)
        matrix[self.length :] = 0
        return matrix[:, : self.parts, :, : self.parts_made]


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every DFT and STFT of a fixed length; returns their number."""
    writer = _Writer(Additions(LazyIndex(model, folder)))
    replaced = sum(
        (is_op(node, "DFT") and writer.multiply(node)) or (is_op(node, "STFT") and writer.convolve(node))
        for node in list(model.graph.node)
    )
    if replaced:
        writer.added.join()
    return replaced


class _Writer:
    """Writes transforms out."""

    def __init__(self, added: Additions) -> None:
        self.added = added
        self._matrices: dict[_Transform, str] = {}

    def multiply(self, node: NodeProto) -> bool:
        """Replace a DFT by a product."""
        dims = self.added.shape(node.input[0])
        axis = self._axis(node, len(dims))
        if axis is None or not is_float32(self.added.index, node.output[0]):
            return False
        length = self._whole(input_at(node, 1), dims[axis])
        half, inverse = bool(integer(node, "onesided")), bool(integer(node, "inverse"))
        if not input_at(node, 1) and half and inverse:
            length = 2 * (dims[axis] - 1)
        if length is None or length < 1:
            return False
        transform = _Transform(dims[axis], dims[-1], length, inverse, half)
        result, made = node.output[0], self.added.shape(node.output[0])
        if not transform.is_defined or transform.weights > _MOST_WEIGHTS:
            return False
        if (made[axis], made[-1]) != (transform.made, transform.parts_made):
            return False
        behind = math.prod(dims[axis + 1 : -1])
        source = node.input[0] if behind == 1 else self._axis_last(node, axis, behind)
        rows = self._reshaped(source, (-1, transform.given * transform.parts), f"{result}_rows")
        product = self.added.op("MatMul", rows, self._matrix(transform, result), out=f"{result}_product")
        if behind > 1:
            apart = (-1, behind, transform.made, transform.parts_made)
            spectrum = self._reshaped(product, apart, f"{result}_spectrum")
            product = self.added.op("Transpose", spectrum, out=f"{result}_turned_back", perm=[0, 2, 1, 3])
        self.added.replace("Reshape", product, self.added.integers(f"{result}_dims", *made), out=result)
        return True

    def convolve(self, node: NodeProto) -> bool:
        """Replace an STFT by a convolution."""
        signal, result = node.input[0], node.output[0]
        dims, made = self.added.shape(signal), self.added.shape(result)
        names = [input_at(node, at) for at in (1, 2, 3)]
        step, window = self._whole(names[0], None), self.added.index.constant(names[1])
        length = self._whole(names[2], None if window is None else window.size)
        if step is None or length is None or (names[1] and (window is None or window.size != length)):
            return False
        if step == length and not integer(node, "onesided", 1):
            return False
        parts = dims[2] if len(dims) > 2 else 1
        transform = _Transform(length, parts, length, inverse=False, half=bool(integer(node, "onesided", 1)))
        if not transform.is_defined or transform.weights > _MOST_WEIGHTS or made[2:] != (transform.made, 2):
            return False
        if not is_float32(self.added.index, result):
            return False
        waves = transform.matrix() * (1 if window is None else window.astype(np.float64).reshape(-1, 1, 1, 1))
        kernels = waves.transpose(2, 3, 1, 0).reshape(-1, parts, length).astype(np.float32)
        if parts == 1:
            shape = self.added.integers(f"{result}_row_dims", dims[0], 1, dims[1])
            source = self.added.op("Reshape", signal, shape, out=f"{result}_row")
        else:
            source = self.added.op("Transpose", signal, out=f"{result}_row", perm=[0, 2, 1])
        name = self.added.constant(f"{result}_waves", np.ascontiguousarray(kernels))
        frames = self.added.op(
            "Conv", source, name, out=f"{result}_frames", kernel_shape=[length], strides=[step], pads=[0, 0]
        )
        last = self.added.op("Transpose", frames, out=f"{result}_spectrum", perm=[0, 2, 1])
        self.added.replace("Reshape", last, self.added.integers(f"{result}_dims", *made), out=result)
        return True

    def _axis(self, node: NodeProto, rank: int) -> int | None:
        if opset(self.added.index.model) < _AXIS_IS_AN_INPUT:
            return integer(node, "axis", 1) % rank
        axis = self._whole(input_at(node, 2), -2)
        return None if axis is None else axis % rank

    def _whole(self, name: str, otherwise: int | None) -> int | None:
        """A constant number, or what it is where the node doesn't give it; None if it is computed."""
        if not name:
            return otherwise
        value = self.added.index.constant(name)
        return None if value is None or value.size != 1 else int(value.flat[0])

    def _axis_last(self, node: NodeProto, axis: int, behind: int) -> str:
        """What a DFT is of, with the numbers of one transform side by side; no more than four dims, as HTP has them."""
        dims, result = self.added.shape(node.input[0]), node.output[0]
        apart = self._reshaped(node.input[0], (-1, dims[axis], behind, dims[-1]), f"{result}_apart")
        return self.added.op("Transpose", apart, out=f"{result}_turned", perm=[0, 2, 1, 3])

    def _reshaped(self, name: str, dims: tuple[int, ...], out: str) -> str:
        return self.added.op("Reshape", name, self.added.integers(f"{out}_dims", *dims), out=out)

    def _matrix(self, transform: _Transform, stem: str) -> str:
        if transform not in self._matrices:
            rows = transform.given * transform.parts
            values = transform.matrix().reshape(rows, math.prod((transform.made, transform.parts_made)))
            self._matrices[transform] = self.added.constant(f"{stem}_waves", values.astype(np.float32))
        return self._matrices[transform]


AFTER = {
    "decompose_einsum": "it writes products with weights",
}
