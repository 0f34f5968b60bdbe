"""Operators on quantized values, with and without each of their optional inputs; what they round is accounted for.

Inputs lie on the grid of their scale, so that nothing is lost where they are quantized: what is left is the rounding of
the output, one step of its scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.fuzz.forms.graphs import Form, Graph

QUANTIZED_FORMS: dict[str, tuple[int, int, Form]] = {}
"""Forms by name, with the first and the last opset that has them."""

_M = "com.microsoft"
_KINDS = (np.uint8, np.int8)


def _form(form: Form) -> Form:
    QUANTIZED_FORMS[form.__name__.strip("_")] = (13, 1000, form)
    return form


def _bytes(g: Graph, kind: Any, *shape: int) -> NDArray[Any]:
    info = np.iinfo(kind)
    return g.rng.integers(info.min, info.max + 1, shape).astype(kind)


def _scale(g: Graph, *shape: int) -> NDArray[np.float32]:
    return g.rng.uniform(0.01, 0.05, shape).astype(np.float32)


def _zero(g: Graph, kind: Any, *shape: int) -> NDArray[Any]:
    return (g.rng.integers(-20, 20, shape) + (128 if kind == np.uint8 else 0)).astype(kind)


def _activation(g: Graph, kind: Any, *shape: int, optional: bool = False) -> list[str]:
    """A quantized value with its scale and zero point: names; the last is empty where the zero point is left out."""
    scale, q = _scale(g), _bytes(g, kind, *shape)
    without = optional and g.maybe(0.3)
    zero = np.zeros((), kind) if without else _zero(g, kind)
    names = [g.constant(scale), g.constant(zero)]
    if g.maybe(0.2):
        made = g.feed(q)
    else:
        x = (q.astype(np.float32) - zero.astype(np.float32)) * scale
        left_out = without and kind == np.uint8 and g.maybe()
        made = g.op("QuantizeLinear", g.feed(x.astype(np.float32)), names[0], "" if left_out else names[1])
    return [made, names[0], "" if without else names[1]]


def _rounded(g: Graph, kind: Any, optional: bool = False) -> tuple[tuple[str, str], float]:
    """The scale and the zero point of an output, and the step that it may differ by."""
    scale = g.rng.uniform(0.02, 0.1, ()).astype(np.float32)
    without = optional and g.maybe(0.3)
    zero = "" if without else g.constant(_zero(g, kind))
    return (g.constant(scale), zero), float(scale)


def _give(g: Graph, name: str, scale: str, zero: str, step: float, kind: Any) -> None:
    """Let a quantized value be an output, as it is or as numbers."""
    if g.maybe(0.2):
        g.give(name, step=1)
        return
    zero = zero or g.constant(np.zeros((), kind))
    g.give(g.op("DequantizeLinear", name, scale, zero), step=1.01 * step)


@_form
def _pair(g: Graph) -> None:
    kind = g.random.choice(_KINDS)
    shape = g.shape(1, 3)
    a = _activation(g, kind, *shape, optional=True)
    b = _activation(g, kind, *g.random.choice((shape, shape[-1:], ())), optional=True)
    to, step = _rounded(g, kind, optional=True)
    made = g.op(g.random.choice(("QLinearAdd", "QLinearMul")), *a, *b, *to, domain=_M)
    _give(g, made, *to, step, kind)


@_form
def _single(g: Graph) -> None:
    kind = g.random.choice(_KINDS)
    name = g.random.choice(("Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool", "Softmax", "ReduceMean"))
    shape = (1, 3, 5, 6) if "Pool" in name else g.shape(2, 3)
    x = _activation(g, kind, *shape, optional=True)
    to, step = _rounded(g, kind, optional=True)
    if name in ("Sigmoid", "Softmax"):
        step = 1 / 256
        to = g.constant(np.float32(step)), g.constant(np.array(0 if kind == np.uint8 else -128, kind))
    more: dict[str, Any] = {}
    match name:
        case "LeakyRelu":
            more = g.some(alpha=0.3)
        case "AveragePool":
            more = {"kernel_shape": [2, 3]} | g.some(
                strides=[2, 1], pads=[1, 0, 1, 1], ceil_mode=1, count_include_pad=1, channels_last=0
            )
            if g.maybe(0.2):
                more = {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"}
        case "GlobalAveragePool":
            more = g.some(channels_last=g.random.choice((0, 1)))
        case "Softmax":
            more = {"opset": g.random.choice((11, 13))} | g.some(axis=g.axis(len(shape)))
        case "ReduceMean":
            more = g.some(axes=g.axes(len(shape)), keepdims=0)
    made = g.op(f"QLinear{name}", *x, *to, domain=_M, **more)
    _give(g, made, *to, step, kind)


@_form
def _concat(g: Graph) -> None:
    kind = g.random.choice(_KINDS)
    to, step = _rounded(g, kind)
    parts = [name for _ in range(g.random.randint(1, 3)) for name in _activation(g, kind, 2, 3)]
    made = g.op("QLinearConcat", *to, *parts, domain=_M, axis=g.random.choice((0, 1, -1)))
    _give(g, made, *to, step, kind)


@_form
def _where(g: Graph) -> None:
    kind = g.random.choice(_KINDS)
    to, step = _rounded(g, kind)
    asked = g.feed(g.rng.integers(0, 2, (2, 3)).astype(bool))
    made = g.op("QLinearWhere", asked, *_activation(g, kind, 2, 3), *_activation(g, kind, 3), *to, domain=_M)
    _give(g, made, *to, step, kind)


@_form
def _conv(g: Graph) -> None:
    kind, weights = g.random.choice(_KINDS), g.random.choice(_KINDS)
    group = g.random.choice((1, 2))
    x = _activation(g, kind, 1, 4, 6, 6)
    each = (6,) if g.maybe() else ()
    zero = (
        np.zeros(each, weights)
        if weights == np.int8
        else _zero(g, weights, *([1] * len(each))) * np.ones(each, weights)
    )
    w = [g.constant(_bytes(g, weights, 6, 4 // group, 3, 3)), g.constant(_scale(g, *each)), g.constant(zero)]
    to, _ = _rounded(g, kind)
    bias = [g.constant(g.rng.integers(-3000, 3000, 6).astype(np.int32))] if g.maybe() else []
    more = g.some(pads=[1, 0, 1, 1], strides=[2, 1], dilations=[1, 2]) | ({"group": group} if group > 1 else {})
    made = g.op("QLinearConv", *x, *w, *to, *bias, **more)
    _give(g, made, *to, 0.1, kind)


@_form
def _matmul(g: Graph) -> None:
    kind, weights = g.random.choice(_KINDS), g.random.choice(_KINDS)
    a = _activation(g, kind, 2, 3, 4)
    each = (5,) if g.maybe() else ()
    b = [g.constant(_bytes(g, weights, 4, 5)), g.constant(_scale(g, *each)), g.constant(_zero(g, weights, *each))]
    to, step = _rounded(g, kind)
    _give(g, g.op("QLinearMatMul", *a, *b, *to), *to, step, kind)


@_form
def _gemm(g: Graph) -> None:
    kind, weights = g.random.choice(_KINDS), g.random.choice(_KINDS)
    turns = g.some(transA=1, transB=1, alpha=0.5)
    a = _activation(g, kind, *((4, 3) if "transA" in turns else (3, 4)))
    each = (5,) if g.maybe(0.3) else ()
    shape = (5, 4) if "transB" in turns else (4, 5)
    b = [g.constant(_bytes(g, weights, *shape)), g.constant(_scale(g, *each)), g.constant(_zero(g, weights, *each))]
    c = (
        g.constant(g.rng.integers(-3000, 3000, g.random.choice(((5,), (1, 5), (3, 5), (1,)))).astype(np.int32))
        if g.maybe()
        else ""
    )
    if g.maybe(0.3):
        g.give(g.op("QGemm", *a, *b, c, domain=_M, **turns))
        return
    to, step = _rounded(g, kind)
    _give(g, g.op("QGemm", *a, *b, c, *to, domain=_M, **turns), *to, step, kind)


def _exact(g: Graph, *shape: int) -> str:
    """An input that dynamic quantization takes as it is: its scale is 1."""
    x = g.rng.integers(-100, 156, shape).astype(np.float32)
    x.flat[0], x.flat[-1] = -100, 155
    return g.feed(x)


@_form
def _integer_products(g: Graph) -> None:
    weights = g.random.choice(_KINDS)
    if g.maybe(0.6):
        x = _exact(g, 1, 4, 6, 6)
        a = g.op("DynamicQuantizeLinear", x, outputs=3)
    else:
        a = _activation(g, np.uint8, 1, 4, 6, 6)
    s = g.constant(_scale(g))
    if g.maybe():
        b, zero = g.constant(_bytes(g, weights, 6, 5)), g.constant(_zero(g, weights, *((5,) if g.maybe(0.3) else ())))
        made = g.op("MatMulInteger", a[0], b, a[2], zero if g.maybe(0.7) else "")
    else:
        b, zero = g.constant(_bytes(g, weights, 6, 4, 3, 3)), g.constant(_zero(g, weights))
        made = g.op(
            "ConvInteger", a[0], b, a[2], zero if g.maybe(0.7) else "", **g.some(pads=[1, 0, 1, 1], strides=[2, 1])
        )
    g.give(g.op("Mul", g.op("Cast", made, to=1), g.op("Mul", a[1], s)))


@_form
def _float_products(g: Graph) -> None:
    weights = g.random.choice(_KINDS)
    each = (5,) if g.maybe() else ()
    b, scale = g.constant(_bytes(g, weights, 4, 5)), g.constant(_scale(g, *each))
    zero = g.constant(_zero(g, weights, *each)) if g.maybe(0.6) else ""
    bias = g.constant(g.numbers(5)) if g.maybe() else ""
    if g.maybe():
        g.give(g.op("DynamicQuantizeMatMul", _exact(g, 2, 3, 4), b, scale, zero, bias, domain=_M))
        return
    a = _activation(g, np.uint8, 2, 3, 4, optional=True)
    g.give(g.op("MatMulIntegerToFloat", a[0], b, a[1], scale, a[2], zero, bias, domain=_M))


@_form
def _lstm(g: Graph) -> None:
    direction = g.random.choice(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    weights = g.random.choice(_KINDS)
    each = (ways, 12) if g.maybe(0.4) else (ways,)
    scales = [g.constant(_scale(g, *each) / 4) for _ in range(2)]
    zeros = [g.constant(_zero(g, weights, *each) if each == (ways,) else np.zeros(each, np.int8)) for _ in range(2)]
    weights = np.int8 if len(each) > 1 else weights
    given = [g.constant(_bytes(g, weights, ways, 4, 12)), g.constant(_bytes(g, weights, ways, 3, 12))]
    bias = g.constant(g.numbers(ways, 24)) if g.maybe() else ""
    states = [g.constant(g.numbers(ways, 2, 3)) if g.maybe() else "" for _ in range(2)]
    peeps = g.constant(g.numbers(ways, 9)) if g.maybe(0.2) else ""
    inputs = [g.feed(g.numbers(5, 2, 4)), *given, bias, "", *states, peeps, scales[0], zeros[0], scales[1], zeros[1]]
    more = g.some(clip=0.5, activations=["Sigmoid", "Tanh", "Tanh"] * ways) if g.maybe(0.3) else {}
    more |= {"direction": direction} if ways == 2 or g.maybe(0.7) else {}
    made = g.op("DynamicQuantizeLSTM", *inputs, domain=_M, outputs=3, hidden_size=3, **more)
    g.give(*made, step=0.05)


@_form
def _attention(g: Graph) -> None:
    weights = g.random.choice(_KINDS)
    x = _activation(g, np.uint8, 2, 4, 8, optional=True)
    each = (24,) if g.maybe(0.3) else ()
    w, scale = g.constant(_bytes(g, weights, 8, 24)), g.constant(_scale(g, *each))
    mask = (
        g.either(g.random.choice((np.array([3, 4], np.int32), np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.int32))))
        if g.maybe()
        else ""
    )
    zero = g.constant(_zero(g, weights)) if g.maybe(0.7) else ""
    more = g.some(unidirectional=1, scale=0.3, mask_filter_value=-50.0)
    bias = g.constant(g.numbers(24))
    past = g.feed(g.numbers(2, 2, 2, 3, 4)) if g.maybe(0.2) and not mask else ""
    given = [x[0], w, bias, x[1], scale, mask, x[2], zero, past]
    if past:
        g.give(*g.op("QAttention", *given, domain=_M, outputs=2, num_heads=2, **more), step=1e-3)
    else:
        g.give(g.op("QAttention", *given, domain=_M, num_heads=2, **more), step=1e-3)


@_form
def _embeddings(g: Graph) -> None:
    kind = g.random.choice(_KINDS)
    segments = g.maybe()
    ids = g.feed(g.rng.integers(0, 20, (2, 5)).astype(np.int32))
    kinds = g.feed(g.rng.integers(0, 2, (2, 5)).astype(np.int32)) if segments else ""
    shapes: list[tuple[int, ...]] = [(20, 8), (9, 8), (2, 8), (8,), (8,)]
    present = [True, True, segments, True, True]
    tables = [g.constant(_bytes(g, kind, *shape)) if here else "" for shape, here in zip(shapes, present, strict=True)]
    mask = g.constant(np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)) if g.maybe() else ""
    scales = [g.constant(_scale(g)) if here else "" for here in present]
    zeros = [g.constant(_zero(g, kind)) if here else "" for here in present]
    given = [ids, kinds, *tables, mask, *scales, *zeros]
    g.give(*g.op("QEmbedLayerNormalization", *given, domain=_M, outputs=2, **g.some(epsilon=0.1)))


@_form
def _bits(g: Graph) -> None:
    bits, size, outputs = g.random.choice((2, 4, 8)), g.random.choice((16, 32)), g.random.choice((5, 16))
    inputs = g.random.choice((32, 40, 48))
    count = -(-inputs // size)
    w = g.constant(_bytes(g, np.uint8, outputs, count, size * bits // 8))
    kind = g.random.choice((np.float32, np.float32, np.float16))
    s = g.constant(_scale(g, *g.random.choice(((outputs * count,), (outputs, count)))).astype(kind))
    zero = ""
    packed = -(-count * bits // 8)
    if g.maybe():
        zero = g.constant(_bytes(g, np.uint8, *g.random.choice(((outputs * packed,), (outputs, packed)))))
    elif g.maybe(0.3):
        zero = g.constant((4 + g.numbers(outputs, count)).astype(kind))
    order = g.constant((np.arange(inputs) // size).astype(np.int32)) if g.maybe(0.15) else ""
    bias = g.constant(g.numbers(outputs).astype(kind)) if g.maybe(0.4) else ""
    more = g.some(bits=bits) if bits == 4 else {"bits": bits}
    level = g.random.choice((0, 1, 4))
    more |= g.some(accuracy_level=level)
    made = g.op(
        "MatMulNBits", g.feed(g.numbers(2, 3, inputs).astype(kind)), w, s, zero, order, bias,
        domain=_M, K=inputs, N=outputs, block_size=size, **more,
    )  # fmt: skip
    g.give(made, step=0.6 if more.get("accuracy_level") == 4 else 2e-2 if kind == np.float16 else 2e-4)


@_form
def _bnb4(g: Graph) -> None:
    size = g.random.choice((16, 32))
    inputs, outputs = g.random.choice((32, 48)), g.random.choice((4, 6))
    w, s = g.constant(_bytes(g, np.uint8, outputs * inputs // 2)), g.constant(_scale(g, outputs * inputs // size))
    x = g.feed(g.numbers(2, inputs))
    g.give(
        g.op(
            "MatMulBnb4", x, w, s, domain=_M, K=inputs, N=outputs, block_size=size, quant_type=g.random.choice((0, 1))
        ),
        step=2e-4,
    )


@_form
def _gather(g: Graph) -> None:
    kind = g.random.choice((TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4))
    bits = g.random.choice((2, 4, 8)) if kind == TensorProto.UINT8 else 4
    shape = g.random.choice(((8, 32), (8, 40), (4, 6, 32)))
    bytes_ = kind == TensorProto.UINT8
    axis = g.random.choice((-1, len(shape) - 1)) if bytes_ else g.random.choice((*range(len(shape)), -1))
    gather = 0 if bytes_ else g.random.randrange(-len(shape), len(shape))
    counts = [*shape]
    counts[axis] = -(-counts[axis] // 16)

    def stored(dims: list[int]) -> str:
        if bytes_:
            return g.constant(_bytes(g, np.uint8, *dims[:-1], -(-dims[-1] * bits // 8)))
        values = g.rng.integers(*((0, 16) if kind == TensorProto.UINT4 else (-8, 8)), dims)
        return g.constant(values.astype(helper.tensor_dtype_to_np_dtype(kind)))

    given = [stored([*shape]), g.feed(g.rng.integers(0, 4, g.shape(1, 2))), g.constant(_scale(g, *counts))]
    given.append(stored(counts) if g.maybe() else "")
    more = g.some(bits=4) if bits == 4 else {"bits": bits}
    more |= {} if axis == 1 and g.maybe() else {"quantize_axis": axis}
    more |= {} if gather == 0 and g.maybe() else {"gather_axis": gather}
    g.give(g.op("GatherBlockQuantized", *given, domain=_M, block_size=16, **more))


@_form
def _encodings(g: Graph) -> None:
    """A value between QuantizeLinear and DequantizeLinear, moved in between, with weights that are encoded too."""
    kind = g.random.choice((*_KINDS, np.int16, np.uint16) if g.opset >= 21 else _KINDS)
    domain = _M if g.maybe(0.2) else ""
    scale = _scale(g)
    q = g.rng.integers(0 if np.iinfo(kind).min == 0 else -100, 100, (2, 3, 4)).astype(kind)
    zero = np.array(g.random.choice((0, 3)), kind)
    names = [g.constant(scale), g.constant(zero)]
    x = g.feed((q.astype(np.float32) - zero.astype(np.float32)) * scale)
    without = kind == np.uint8 and not zero and not domain and g.maybe()
    made = g.op("QuantizeLinear", x, names[0], "" if without else names[1], domain=domain)
    match g.random.choice(("as it is", "Transpose", "Reshape", "Slice", "MaxPool", "Concat", "Pad", "Relu")):
        case "Transpose":
            made = g.op("Transpose", made, perm=[0, 2, 1])
        case "Reshape":
            made = g.op("Reshape", made, g.integers(2, -1))
        case "Slice":
            made = g.op("Slice", made, g.integers(1), g.integers(9), g.integers(2))
        case "MaxPool" if kind in _KINDS:
            made = g.op("MaxPool", made, kernel_shape=[2])
        case "Concat":
            made = g.op("Concat", made, made, axis=1)
        case "Pad" if kind in _KINDS:
            fill = g.constant(np.array(5, kind)) if g.maybe() else ""
            made = g.op("Pad", made, g.integers(0, 0, 1, 0, 1, 0), fill)
    other = g.maybe(0.2)
    if other:
        names = [g.constant(_scale(g)), g.constant(np.array(7, kind))]
    g.give(
        g.op(
            "DequantizeLinear", made, names[0], "" if not other and not zero and g.maybe() else names[1], domain=domain
        )
    )
