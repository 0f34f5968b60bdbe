"""The numbers in blocks of GGUF tensors as float32: one function a form. Safetensors have the three without blocks.

The forms are those of ggml (https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c): a block holds 32 or 256
consecutive elements of a row as small integers with a scale, in the K forms with scales of scales. Each function takes
blocks as uint8 [blocks, bytes of a block] and gives float32 [blocks, elements of a block].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """How elements are stored: so many in so many bytes."""

    name: str
    elements: int
    nbytes: int
    dequantize: Callable[[Bytes], Floats]


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at a byte of each block, as [blocks, 1]."""
    found = np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)
    return np.asarray(found)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of some bytes, then their high halves: [blocks, n] -> [blocks, 2n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Bit i of four bytes for element i, at its place in a number of five bits: [blocks, 4] -> [blocks, 32]."""
    return np.asarray(np.unpackbits(packed, axis=1, bitorder="little") << 4, np.uint8)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:18]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:20]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    stored = _nibbles(blocks[:, 6:22]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (stored.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    stored = _nibbles(blocks[:, 8:24]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * stored.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:34]).view(np.int8).astype(np.float32)


def _scales_of_k(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of 6 bits each in 12 bytes, as Q4_K and Q5_K have them: two of [blocks, 8, 1]."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32)[..., None], minima.astype(np.float32)[..., None]


def _halves_by_32(packed: Bytes) -> Bytes:
    """Of each 32 bytes, the low halves, then the high ones: [blocks, 128] -> [blocks, 8, 32]."""
    by_32 = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([by_32 & 15, by_32 >> 4], axis=2).reshape(-1, 8, 32)


def _of_k(blocks: Bytes, stored: Bytes) -> Floats:
    scales, minima = _scales_of_k(blocks[:, 4:16])
    scales *= _half(blocks, 0)[..., None]
    minima *= _half(blocks, 2)[..., None]
    return np.asarray((scales * stored.astype(np.float32) - minima).reshape(-1, 256))


def _q4_k(blocks: Bytes) -> Floats:
    return _of_k(blocks, _halves_by_32(blocks[:, 16:144]))


def _q5_k(blocks: Bytes) -> Floats:
    bits = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    return _of_k(blocks, np.asarray(_halves_by_32(blocks[:, 48:176]) | ((bits & 1) << 4), np.uint8))


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    stored = (low | ((high & 3) << 4)).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    scaled = stored.reshape(-1, 16, 16) * (scales * _half(blocks, 208))[..., None]
    return np.asarray(scaled.reshape(-1, 256))


def _q4_1_steps(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 4:20]).astype(np.float32) - 8)


def _q4_1_middles(blocks: Bytes) -> Floats:
    return _half(blocks, 2) + 8 * _half(blocks, 0)


def _minima(blocks: Bytes) -> Floats:
    return _half(blocks, 2)


def _q4_k_steps(blocks: Bytes) -> Floats:
    scales = _scales_of_k(blocks[:, 4:16])[0] * _half(blocks, 0)[..., None]
    return np.asarray((scales * (_halves_by_32(blocks[:, 16:144]).astype(np.float32) - 8)).reshape(-1, 256))


def _q4_k_middles(blocks: Bytes) -> Floats:
    scales, minima = _scales_of_k(blocks[:, 4:16])
    return np.asarray((8 * scales * _half(blocks, 0)[..., None] - minima * _half(blocks, 2)[..., None])[..., 0])


def _f32(blocks: Bytes) -> Floats:
    return np.asarray(np.ascontiguousarray(blocks).view("<f4"), np.float32)


def _f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def bfloat16(blocks: Bytes) -> Floats:
    """The upper half of a float32: uint8 [n, 2k] -> float32 [n, k]."""
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


FORMATS: Mapping[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4, _f32),
    1: BlockFormat("F16", 1, 2, _f16),
    2: BlockFormat("Q4_0", 32, 18, _q4_0),
    3: BlockFormat("Q4_1", 32, 20, _q4_1),
    6: BlockFormat("Q5_0", 32, 22, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
    12: BlockFormat("Q4_K", 256, 144, _q4_k),
    13: BlockFormat("Q5_K", 256, 176, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    30: BlockFormat("BF16", 1, 2, bfloat16),
}
"""Forms by ggml's number for them."""
BLOCK = 32
"""Elements that have a middle together in :data:`SEPARATED`."""
SEPARATED: Mapping[str, tuple[BlockFormat, BlockFormat]] = {
    "Q4_1": (BlockFormat("Q4_1.steps", 32, 20, _q4_1_steps), BlockFormat("Q4_1.middles", 1, 20, _q4_1_middles)),
    "Q4_K": (BlockFormat("Q4_K.steps", 256, 144, _q4_k_steps), BlockFormat("Q4_K.middles", 8, 144, _q4_k_middles)),
}
"""Forms of 4 bits with minima, by name, as the sum of two: a scale times an integer from -8 to 7, and the number in the
middle of each 32 elements, which is an element of the second."""
MINIMA: Mapping[str, BlockFormat] = {
    "Q4_1": BlockFormat("Q4_1.minima", 1, 20, _minima),
    "Q5_1": BlockFormat("Q5_1.minima", 1, 24, _minima),
}
"""The least number of each block, where forms of 32 elements have it: what is added to a scale times an integer of 0
or more."""
