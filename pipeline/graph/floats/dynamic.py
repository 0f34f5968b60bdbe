"""Products of integers whose left side is quantized while the model runs, as float products.

onnxruntime's dynamic quantization, which made most of the ``model_quantized.onnx`` on hubs, writes::

    q, s, z = DynamicQuantizeLinear(x)
    y = Mul(Cast(MatMulInteger(q, W, z, zw)), Mul(s, sw))

As all that follows is linear in what q stands for, q may stand for x itself, s for 1 and z for 0. Then, with the
weights as numbers, nothing else changes::

    y = Mul(MatMul(x, W - zw), Mul(1, sw))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import NodeProto, TensorProto

from pipeline.graph.floats.rewriting import Replacing
from pipeline.graph.ir.ops import VIEWS

_LSTM_STATE = 8
_TABLES = 5
_SHAPES = (*VIEWS, "Expand", "Transpose")
"""What brings a bias into the dims of a product."""


def write_dynamic(made: Replacing) -> None:
    """DynamicQuantizeLinear: its output is its input, the scale 1, the zero point 0."""
    made.give(made.given(0))
    for position, value in ((1, 1.0), (2, 0.0)):
        made.give(made.constant(np.array(value, np.float32)), position)
    made.real.update(name for name in made.node.output if name)


def write_integer_product(made: Replacing) -> None:
    """MatMulInteger and ConvInteger: products of what is left when zero points are taken off."""
    conv = made.node.op_type == "ConvInteger"
    a, b, a_zero, b_zero = (made.given(place) for place in range(4))
    left, right = made.difference(a, a_zero), made.difference(b, b_zero, axis=0 if conv else -1)
    made.give(made.op("Conv" if conv else "MatMul", left, right, **made.attributes()))


def write_sum(made: Replacing, products: Mapping[str, bool], maker: Callable[[str], NodeProto | None]) -> None:
    """Add of an integer product and a bias in its units, which onnxruntime before 1.6 divides, rounds and makes int32.

    The bias is taken as it was before that: next to a scale of 1 its steps are no longer small. `products` says of each
    product whether its scale is found at run time.
    """
    dynamic = any(products.get(name, False) for name in made.node.input)
    given = [name if name in products else _unrounded(made, name, maker, dynamic) for name in made.node.input]
    made.give(made.op("Add", *given))


def _unrounded(made: Replacing, name: str, maker: Callable[[str], NodeProto | None], dynamic: bool) -> str:
    """An int32 value as a float, without the rounding that made it; with it where scales are constants."""
    node = maker(name)
    if node is not None and node.op_type in _SHAPES:
        before = _unrounded(made, node.input[0], maker, dynamic)
        moved = NodeProto.FromString(node.SerializeToString())
        moved.input[0], moved.output[0] = before, made.unused()
        moved.name = moved.output[0]
        made.nodes.append(moved)
        return str(moved.output[0])
    rounding = maker(node.input[0]) if node is not None and node.op_type == "Cast" else None
    if rounding is not None and rounding.op_type in ("Floor", "Round"):
        return str(rounding.input[0])
    made.refuse_unless(not dynamic, f"{name!r} is added to a product whose scale is found at run time")
    return made.op("Cast", name, to=TensorProto.FLOAT)


def write_product_to_float(made: Replacing) -> None:
    """MatMulIntegerToFloat, of com.microsoft."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (made.given(place) for place in range(7))
    result = made.op("MatMul", made.number(a, a_scale, a_zero), made.number(b, b_scale, b_zero, axis=-1))
    made.give(made.op("Add", result, bias) if bias else result)


def write_dynamic_product(made: Replacing) -> None:
    """DynamicQuantizeMatMul, of com.microsoft: its left side is a float."""
    a, b, scale, zero, bias = (made.given(place) for place in range(5))
    result = made.op("MatMul", a, made.number(b, scale, zero, axis=-1))
    made.give(made.op("Add", result, bias) if bias else result)


def write_attention(made: Replacing) -> None:
    """QAttention, of com.microsoft."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (made.given(place) for place in range(9))
    _become(
        made, "Attention", made.number(x, x_scale, x_zero), made.number(w, w_scale, w_zero, axis=-1), bias, mask, past
    )


def write_embeddings(made: Replacing) -> None:
    """QEmbedLayerNormalization, of com.microsoft: five tables with scales and zero points behind all of them."""
    tables = [
        made.number(made.given(2 + each), made.given(8 + each), made.given(8 + _TABLES + each))
        if made.given(2 + each)
        else ""
        for each in range(_TABLES)
    ]
    _become(made, "EmbedLayerNormalization", made.given(0), made.given(1), *tables, made.given(7))


def _become(made: Replacing, kind: str, *given: str) -> None:
    """Let the node be another operator of these inputs; those that are empty are left out at the end."""
    while not given[-1]:
        given = given[:-1]
    made.node.op_type = kind
    made.node.input[:] = given
    made.nodes.append(made.node)


def write_lstm(made: Replacing) -> None:
    """DynamicQuantizeLSTM, of com.microsoft: weights are stored as ``[directions, inputs, 4 hidden]``."""
    given = [made.given(place) for place in range(_LSTM_STATE)]
    for place in (1, 2):
        scale, zero = made.given(2 * place + 6), made.given(2 * place + 7)
        dims = made.dims(scale)
        spread = made.integers(dims[0], 1, dims[1] if len(dims) > 1 else 1)
        weights = made.op("Cast", given[place], to=1)
        if zero:
            weights = made.op("Sub", weights, made.op("Reshape", made.op("Cast", zero, to=1), spread))
        weights = made.op("Mul", weights, made.op("Reshape", scale, spread))
        given[place] = made.op("Transpose", weights, perm=[0, 2, 1])
    while not given[-1]:
        given.pop()
    made.node.op_type = "LSTM"
    made.node.ClearField("domain")
    del made.node.input[:]
    made.node.input.extend(given)
    made.nodes.append(made.node)
