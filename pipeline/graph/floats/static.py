"""Operators on quantized values with encodings of their own (QOperator form), as float operators between encodings.

    QLinearConv(x, sx, zx, w, sw, zw, sy, zy, b)

becomes::

    QuantizeLinear(Conv(DequantizeLinear(x, sx, zx), DequantizeLinear(w, sw, zw), DequantizeLinear(b, sx sw)), sy, zy)

Operators: https://onnx.ai/onnx/operators/ and
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from pipeline.graph.floats.rewriting import Replacing

_SOFTMAX_OF_AN_AXIS = 13
"""The opset from which on a Softmax is over one axis."""


def write_conv(made: Replacing) -> None:
    """QLinearConv."""
    made.refuse_unless(not made.whole("channels_last"), "its channels come last")
    x, scale, zero, w, w_scale, w_zero, y_scale, y_zero, bias = (made.given(place) for place in range(9))
    given = [made.number(x, scale, zero), made.number(w, w_scale, w_zero)]
    if bias:
        given.append(made.op("DequantizeLinear", bias, made.op("Mul", scale, w_scale), axis=0))
    result = made.op("Conv", *given, **made.attributes(("channels_last",)))
    made.give_rounded(result, y_scale, y_zero)


def write_matmul(made: Replacing) -> None:
    """QLinearMatMul."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (made.given(place) for place in range(8))
    left, right = made.number(a, a_scale, a_zero), made.number(b, b_scale, b_zero, axis=-1)
    made.give_rounded(made.op("MatMul", left, right), y_scale, y_zero)


def write_gemm(made: Replacing) -> None:
    """QGemm."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (made.given(place) for place in range(9))
    given = [made.number(a, a_scale, a_zero), made.number(b, b_scale, b_zero, axis=0 if made.whole("transB") else 1)]
    if c:
        given.append(made.op("DequantizeLinear", c, made.op("Mul", a_scale, b_scale), axis=-1))
    alpha = made.attributes().get("alpha", 1.0)  # scales what is added as well
    made.give_rounded(made.op("Gemm", *given, **made.attributes() | {"beta": alpha}), y_scale, y_zero)


def write_pair(made: Replacing) -> None:
    """QLinearAdd, QLinearMul."""
    left, right = _number(made, 0), _number(made, 3)
    result = made.op(made.node.op_type.removeprefix("QLinear"), left, right)
    made.give_rounded(result, made.given(6), made.given(7))


def write_single(made: Replacing) -> None:
    """QLinear operators with one input: Sigmoid, LeakyRelu, AveragePool, GlobalAveragePool, Softmax, ReduceMean."""
    made.refuse_unless(not made.whole("channels_last"), "its channels come last")
    x = _number(made, 0)
    kind = made.node.op_type.removeprefix("QLinear")
    attributes = made.attributes(("channels_last", "opset"))
    whole = kind == "AveragePool" and made.whole("ceil_mode") and made.whole("count_include_pad")
    # onnxruntime 1.31 divides a window that reaches beyond the padding by all of its places, ONNX by those within.
    made.refuse_unless(not whole, "its last windows may reach beyond the padding (ceil_mode with count_include_pad)")
    if kind == "ReduceMean" and "axes" in attributes:
        attributes["axes"] = [int(axis) for axis in attributes["axes"]]
    if kind == "Softmax" and made.whole("opset", _SOFTMAX_OF_AN_AXIS) < _SOFTMAX_OF_AN_AXIS:
        flat = made.op("Flatten", x, axis=made.whole("axis", -1))  # over all axes from this one on
        result = made.op("Reshape", made.op("Softmax", flat, axis=-1), made.op("Shape", x))
    else:
        result = made.op(kind, x, **attributes)
    made.give_rounded(result, made.given(3), made.given(4))


def write_concat(made: Replacing) -> None:
    """QLinearConcat."""
    places = range(2, len(made.node.input), 3)
    parts = [_number(made, place) for place in places]
    made.give_rounded(made.op("Concat", *parts, **made.attributes()), made.given(0), made.given(1))


def write_where(made: Replacing) -> None:
    """QLinearWhere."""
    left, right = _number(made, 1), _number(made, 4)
    made.give_rounded(made.op("Where", made.given(0), left, right), made.given(7), made.given(8))


def _number(made: Replacing, place: int) -> str:
    """The value at an input, whose scale and zero point are the next two."""
    return made.number(made.given(place), made.given(place + 1), made.given(place + 2))
