"""Weights that are packed in blocks with a scale each, as float weights.

``MatMulNBits`` (``model_q4.onnx``, ``model_q4f16.onnx``), ``MatMulBnb4`` (``model_bnb4.onnx``) and
``GatherBlockQuantized``, all of com.microsoft. Blocks are unpacked by operators whose inputs are constants, so that
they are folded like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from pipeline.graph.floats.rewriting import Replacing

_BYTE = 8
_IN_BYTES: Mapping[int, int] = {TensorProto.INT4: TensorProto.INT8, TensorProto.UINT4: TensorProto.UINT8}

# The 16 values of a byte's half in the two forms of bitsandbytes: FP4 (sign, 3 bits), NF4 (quantiles of a normal
# distribution), https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/csrc/kernels.cu.
_FP4 = (0, 0.005208333333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
)  # fmt: skip


def write_matmul(made: Replacing) -> None:
    """MatMulNBits: weights ``uint8 [outputs, blocks, bytes]``, the first value in the lowest bits of a byte."""
    x, packed, scales, zeros, order, bias = (made.given(place) for place in range(6))
    made.refuse_unless(not order, "its inputs are in another order than its weights (g_idx)")
    outputs, inputs, size = made.whole("N"), made.whole("K"), made.whole("block_size")
    bits = _bits(made, packed)
    made.refuse_unless(min(outputs, inputs, size) > 0, f"N is {outputs}, K {inputs}, block_size {size}")
    count = -(-inputs // size)
    if zeros and made.kind(zeros) == TensorProto.UINT8:
        zeros = _unpacked(made, zeros, (outputs, -(-count * bits // _BYTE)), bits, count)
    elif not zeros:
        zeros = made.constant(np.full(outputs * count, 1 << (bits - 1), np.uint8))
    values = _unpacked(made, packed, (outputs, -(-count * size * bits // _BYTE)), bits, count * size)
    weights = _numbers(made, values, (outputs, count * size), size, scales, zeros)
    if count * size > inputs:
        weights = made.op("Slice", weights, made.integers(0), made.integers(inputs), made.integers(1))
    result = made.op("MatMul", x, made.op("Transpose", weights, perm=[1, 0]))
    made.give(made.op("Add", result, bias) if bias else result)


def write_gather(made: Replacing) -> None:
    """GatherBlockQuantized: rows of a table that is quantized in blocks along one axis.

    Zero points are 2^(bits - 1) where the node has none and the table is of bytes, else 0.
    """
    table, rows, scales, zeros = (made.given(place) for place in range(4))
    kind, dims, bits, size = made.kind(table), made.dims(table), _bits(made, table), made.whole("block_size", 128)
    axis = made.whole("quantize_axis", 1)
    made.refuse_unless(size > 0 and -len(dims) <= axis < len(dims), f"its blocks have {size} values of axis {axis}")
    axis %= len(dims)
    if kind == TensorProto.UINT8:
        made.refuse_unless(made.whole("gather_axis") % len(dims) == 0, "it takes no rows of a table of bytes")
        made.refuse_unless(axis == len(dims) - 1, "bytes hold values of an axis, and blocks are along another")
        dims = (*dims[:-1], dims[-1] * _BYTE // bits)
    counts = (*dims[:axis], -(-dims[axis] // size), *dims[axis + 1 :])
    if kind == TensorProto.UINT8:
        values = _unpacked(made, table, made.dims(table), bits, dims[-1])
        if zeros:
            zeros = _unpacked(made, zeros, (*counts[:-1], -(-counts[-1] * bits // _BYTE)), bits, counts[-1])
        else:
            zeros = made.constant(np.full(counts, 1 << (bits - 1), np.uint8))
    else:
        made.refuse_unless(kind in _IN_BYTES, f"its table has elements of type {kind}")
        values, zeros = (made.op("Cast", each, to=_IN_BYTES[kind]) if each else "" for each in (table, zeros))
    order = [*(each for each in range(len(dims)) if each != axis), axis]
    if order[-1] != order[axis]:
        values, scales, zeros = (
            made.op("Transpose", each, perm=order) if each else "" for each in (values, scales, zeros)
        )
    turned = tuple(dims[each] for each in order)
    if spare := -turned[-1] % size:
        values = made.op("Pad", values, made.integers(*[0] * (2 * len(dims) - 1), spare))
    numbers = _numbers(made, values, (*turned[:-1], turned[-1] + spare), size, scales, zeros)
    if spare:
        numbers = made.op("Slice", numbers, made.integers(0), made.integers(turned[-1]), made.integers(len(dims) - 1))
    if order[-1] != order[axis]:
        numbers = made.op("Transpose", numbers, perm=[order.index(each) for each in range(len(dims))])
    result = made.op("Gather", numbers, rows, axis=made.whole("gather_axis"))
    made.give(result if made.kind(scales) in (0, TensorProto.FLOAT) else made.op("Cast", result, to=made.kind(scales)))


def write_bnb4(made: Replacing) -> None:
    """MatMulBnb4: blocks run over the rows of ``[outputs, inputs]``, the first of two values in a byte's upper half."""
    x, packed, scales = (made.given(place) for place in range(3))
    outputs, inputs, size = made.whole("N"), made.whole("K"), made.whole("block_size")
    made.refuse_unless(size > 0 and outputs * inputs % size == 0, "its blocks don't fill the weights")
    column = made.op("Reshape", packed, made.integers(-1, 1))
    low, high = (_part(made, column, 4, place) for place in range(2))
    places = made.op("Cast", made.op("Concat", high, low, axis=1), to=TensorProto.INT32)
    values = (*_FP4, *(-value for value in _FP4)) if made.whole("quant_type") == 0 else _NF4
    numbers = made.op("Gather", made.constant(np.array(values, np.float32)), places)
    blocks = made.op("Reshape", numbers, made.integers(-1, size))
    column = made.op("Reshape", made.op("Cast", scales, to=TensorProto.FLOAT), made.integers(-1, 1))
    weights = made.op("Reshape", made.op("Mul", blocks, column), made.integers(outputs, inputs))
    made.give(made.op("MatMul", x, made.op("Transpose", weights, perm=[1, 0])))


def _bits(made: Replacing, packed: str) -> int:
    """Bits of a value: in bytes as the node says, in a type of four bits as that has them."""
    bits = made.whole("bits", 4)
    known = (2, 4, _BYTE) if made.kind(packed) == TensorProto.UINT8 else (4,)
    made.refuse_unless(bits in known, f"its weights have {bits} bits")
    return bits


def _numbers(made: Replacing, values: str, dims: tuple[int, ...], size: int, scales: str, zeros: str) -> str:
    """``float32 [dims]`` of one value a byte, with a scale and a zero point for `size` values of the last axis."""
    blocks = made.op("Reshape", values, made.integers(-1, size))
    scale = made.op("Cast", scales, to=TensorProto.FLOAT)
    if zeros and made.kind(zeros) in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        column = made.integers(-1, 1)
        steps = made.op("DequantizeLinear", blocks, made.constant(np.array(1, np.float32)))
        zero = made.op("Reshape", made.op("Cast", zeros, to=TensorProto.FLOAT), column)
        numbers = made.op("Mul", made.op("Sub", steps, zero), made.op("Reshape", scale, column))
    else:
        row = made.integers(-1)
        zero = made.op("Reshape", zeros, row) if zeros else ""
        numbers = made.op("DequantizeLinear", blocks, made.op("Reshape", scale, row), zero, axis=0)
    return made.op("Reshape", numbers, made.integers(*dims))


def _unpacked(made: Replacing, packed: str, dims: tuple[int, ...], bits: int, length: int) -> str:
    """``uint8 [..., length]``, one value a byte, of ``uint8 [dims]`` that hold several, the first lowest."""
    given = made.dims(packed)
    made.refuse_unless(math.prod(given) == math.prod(dims), f"{packed!r} is {list(given)}, and not {list(dims)}")
    rows = made.op("Reshape", packed, made.integers(*dims))
    if bits == _BYTE:
        return rows
    column = made.op("Unsqueeze", rows, made.integers(-1))
    parts = [_part(made, column, bits, place) for place in range(_BYTE // bits)]
    values = made.op("Reshape", made.op("Concat", *parts, axis=-1), made.integers(*dims[:-1], -1))
    if dims[-1] * _BYTE // bits == length:
        return values
    return made.op("Slice", values, made.integers(0), made.integers(length), made.integers(len(dims) - 1))


def _part(made: Replacing, packed: str, bits: int, place: int) -> str:
    """The value at a place of each byte."""
    above = _BYTE - bits * (place + 1)
    if above:
        packed = made.op("BitShift", packed, made.constant(np.array(above, np.uint8)), direction="LEFT")
    return made.op("BitShift", packed, made.constant(np.array(_BYTE - bits, np.uint8)), direction="RIGHT")
