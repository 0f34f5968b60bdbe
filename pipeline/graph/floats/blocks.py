"""Weights that are packed in blocks with a scale each, as float weights.

``MatMulNBits`` (``model_q4.onnx``, ``model_q4f16.onnx``), ``MatMulBnb4`` (``model_bnb4.onnx``) and
``GatherBlockQuantized``, all of com.microsoft. Blocks are unpacked by operators whose inputs are constants, so that
they are folded like any other.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from pipeline.graph.floats.rewriting import Replacing

_PACKED = 4
"""Bits of which two values share a byte."""
_WHOLE = 8

# The 16 values of a byte's half in the two forms of bitsandbytes: FP4 (sign, 3 bits), NF4 (quantiles of a normal
# distribution), https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/csrc/kernels.cu.
_FP4 = (0, 0.005208333333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
)  # fmt: skip


def write_matmul(made: Replacing) -> None:
    """MatMulNBits: weights ``uint8 [outputs, blocks, bytes]``, the first of two values in the lower half of a byte."""
    x, packed, scales, zeros, order, bias = (made.given(place) for place in range(6))
    made.refuse_unless(not order, "its inputs are in another order than its weights (g_idx)")
    outputs, inputs = made.whole("N"), made.whole("K")
    weights = _in_blocks(made, packed, scales, zeros, outputs, inputs)
    result = made.op("MatMul", x, made.op("Transpose", weights, perm=[1, 0]))
    made.give(made.op("Add", result, bias) if bias else result)


def write_gather(made: Replacing) -> None:
    """GatherBlockQuantized: rows of a table that is quantized in blocks along its last axis."""
    table, rows, scales, zeros = (made.given(place) for place in range(4))
    dims = made.dims(table)
    made.refuse_unless(len(dims) == 2 and not made.whole("gather_axis"), "it takes no rows of a matrix")
    made.refuse_unless(made.whole("quantize_axis", 1) in (1, -1), "its blocks are not along the last axis")
    bits = made.whole("bits", _PACKED)
    found = made.kind(table)
    packs = found == TensorProto.UINT8 and bits == _PACKED
    if packs:
        weights = _in_blocks(made, table, scales, zeros, dims[0], 2 * dims[1])
    else:
        size, count = made.whole("block_size", 128), -(-dims[1] // made.whole("block_size", 128))
        made.refuse_unless(count * size == dims[1], "its blocks don't fill the rows")
        rows_of_blocks = made.op("Reshape", table, made.integers(dims[0] * count, size))
        zero = made.op("Reshape", zeros, made.integers(-1)) if zeros else ""
        numbers = made.op("DequantizeLinear", rows_of_blocks, _row(made, scales), zero, axis=0)
        weights = made.op("Reshape", numbers, made.integers(*dims))
    made.give(made.op("Gather", weights, rows, axis=0))


def write_bnb4(made: Replacing) -> None:
    """MatMulBnb4: blocks run over the rows of ``[outputs, inputs]``, the first of two values in a byte's upper half."""
    x, packed, scales = (made.given(place) for place in range(3))
    outputs, inputs, size = made.whole("N"), made.whole("K"), made.whole("block_size")
    made.refuse_unless(outputs * inputs % size == 0, "its blocks don't fill the weights")
    low, high = _halves(made, made.op("Reshape", packed, made.integers(-1, 1)))
    places = made.op("Cast", made.op("Concat", high, low, axis=1), to=TensorProto.INT32)
    values = (*_FP4, *(-value for value in _FP4)) if made.whole("quant_type") == 0 else _NF4
    numbers = made.op("Gather", made.constant(np.array(values, np.float32)), places)
    blocks = made.op("Reshape", numbers, made.integers(-1, size))
    column = made.op("Reshape", made.op("Cast", scales, to=TensorProto.FLOAT), made.integers(-1, 1))
    weights = made.op("Reshape", made.op("Mul", blocks, column), made.integers(outputs, inputs))
    made.give(made.op("MatMul", x, made.op("Transpose", weights, perm=[1, 0])))


def _in_blocks(made: Replacing, packed: str, scales: str, zeros: str, outputs: int, inputs: int) -> str:
    """``float32 [outputs, inputs]`` of bytes that hold one value or two."""
    bits, size = made.whole("bits", _PACKED), made.whole("block_size")
    made.refuse_unless(bits in (_PACKED, _WHOLE), f"its weights have {bits} bits")
    count = -(-inputs // size)
    zero = _zero_points(made, zeros, outputs, count, bits)
    values = _unpacked(made, packed, bits)
    blocks = made.op("Reshape", values, made.integers(outputs * count, size))
    numbers = made.op("DequantizeLinear", blocks, _row(made, scales), zero, axis=0)
    whole = made.op("Reshape", numbers, made.integers(outputs, count * size))
    if count * size == inputs:
        return whole
    return made.op("Slice", whole, made.integers(0), made.integers(inputs), made.integers(1))


def _zero_points(made: Replacing, zeros: str, outputs: int, count: int, bits: int) -> str:
    """``uint8 [outputs * count]``: the middle of the range where the node has none."""
    if not zeros:
        return made.constant(np.full(outputs * count, 1 << (bits - 1), np.uint8))
    made.refuse_unless(made.kind(zeros) == TensorProto.UINT8, "its zero points are no whole numbers")
    rows = made.op("Reshape", zeros, made.integers(outputs, -1))
    given = made.op("Reshape", _unpacked(made, rows, bits), made.integers(outputs, -1))
    cut = made.op("Slice", given, made.integers(0), made.integers(count), made.integers(1))
    return made.op("Reshape", cut, made.integers(outputs * count))


def _unpacked(made: Replacing, packed: str, bits: int) -> str:
    """One value a byte, with an axis behind the others that counts those of a byte."""
    column = made.op("Unsqueeze", packed, made.integers(-1))
    if bits == _WHOLE:
        return column
    return made.op("Concat", *_halves(made, column), axis=-1)


def _halves(made: Replacing, packed: str) -> tuple[str, str]:
    """The lower and the upper half of each byte."""
    four = made.constant(np.array(_PACKED, np.uint8))
    raised = made.op("BitShift", packed, four, direction="LEFT")
    return made.op("BitShift", raised, four, direction="RIGHT"), made.op("BitShift", packed, four, direction="RIGHT")


def _row(made: Replacing, scales: str) -> str:
    return made.op("Reshape", made.op("Cast", scales, to=TensorProto.FLOAT), made.integers(-1))
