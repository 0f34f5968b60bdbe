"""Activations: those that HTP computes wrongly, or QNN does not have, written with operators that are right.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from pipeline.graph.ir.index import CONTRIB_DOMAIN, FLOATS, WHOLE, import_contrib, is_op, opset
from pipeline.graph.ir.rules import F32, INTS, GraphValue, Node, lower, op

_GELU_OPSET = 20
_GELU_TOLERANCE = 1e-3
"""Relative; constants of fp16 exports are off by up to 5e-4."""


@lower("Swish", of=F32)
def decompose_swish(n: Node) -> GraphValue:
    """``Swish(x) -> x * Sigmoid(alpha * x)``.

    QNN computes something else from a quantized Swish (uint16, [1, 8, 16]: -6 dB; as a product 46 dB); float16 is
    right.
    """
    x, alpha = n[0], n.attr("alpha", 1.0)
    return x * op.Sigmoid(x if alpha == 1 else x * alpha)


@lower(
    "Sigmoid",
    of=F32,
    after={
        "bound_activations": "it changes the input of a Swish",
    },
)
def separate_swish(n: Node) -> bool:
    """``x * Sigmoid(x) -> x * Max(Sigmoid(x), 0)``, which is the same.

    HTP computes the pair as one, in 16 bits now and then wrongly: after a convolution over images of 9 to 12 rows 3 to
    10 dB (74 dB apart); in a small MobileViT each Swish is right where the graph ends with it, and the whole has 4 dB
    (27 dB apart, as the QDQ model).
    """
    products = [each for each in n.y.readers if each.kind == "Mul" and {*each.proto.input} == {n[0].name, n.y.name}]
    if not products:
        return False
    bound = op.Max(n.y, 0)
    return all(each.read(list(each.proto.input).index(n.y.name), bound) for each in products)


@lower(
    "Exp",
    of=F32,
    after={
        "decompose_activations": "Cosh and Sinh become an Exp",
        "scale_spectra": "it writes an Exp",
        "decompose_pow": "powers of constants become an Exp",
        "decompose_log_sums": "LogSoftmax becomes an Exp",
    },
)
def bound_exp(n: Node) -> GraphValue | None:
    """``Exp(x) -> Exp(Max(x, -60))``, unless a Max or Clip bounds x, and up to 4 dims: HTP has no Max of 5.

    HTP takes a float16 Exp wrongly below -88: of -90 it makes -131008, of -300 +131008, as of the filler of a mask
    before a softmax that is written out. Exp(-60) is 1e-26, zero in float16 and in every encoding. Of x in -300 to 2
    the context has 88.4 dB without and 85.4 with the Max in uint16, -101.8 and 73.4 in float16.
    """
    bounded = n[0].maker("Max", "Clip")
    bounds = (bounded.inputs if bounded.kind == "Max" else bounded.inputs[1:2]) if bounded else []
    least = [each.scalar for each in bounds if each is not None and each.is_constant]
    if len(n.y.shape) > 4 or any(number is not None and number >= -85 for number in least):
        return None
    return op.Exp(op.Max(n[0], -60.0))


@lower("Reciprocal")
def divide_one(n: Node) -> GraphValue | None:
    """``Reciprocal(x) -> 1 / x``.

    HTP computes a Reciprocal wrongly where its result is large, in 8 and 16 bits (uint16, Reciprocal and quotient: x of
    0.02 to 0.1 0.9 and 75.8 dB, 0.1 to 0.5 6.0 and 73.1, 0.5 to 3 70.2 and 70.4, 10 to 100 63.5 and 70.6).
    """
    return 1 / n[0] if n[0].name in n.index.types else None


@lower("Erf")
def fuse_gelu(n: Node) -> bool:
    """``x * (Erf(x / sqrt 2) + 1) * 0.5 -> Gelu(x)``, factors in any order: of com.microsoft before opset 20.

    QNN has a Gelu and no Erf, which would split the graph in two. Left alone: another constant in any place, and a
    value in between that something else reads.
    """
    x, shifted = _gelu_input(n), n.y.reader("Add")
    if x is None or shifted is None or not _is(shifted.other(n.y), 1.0):
        return False
    last = shifted.y.reader("Mul")
    if last is None:
        return False
    factor = last.other(shifted.y)
    half = factor.maker("Mul")
    if half is None or not half.reads(x) or not _is(half.other(x), 0.5):
        first, last = last, last.y.reader("Mul")
        if last is None:
            return False
        second = last.other(first.y)
        if not (factor.name == x.name and _is(second, 0.5)) and not (_is(factor, 0.5) and second.name == x.name):
            return False
    model = n.index.model
    domain = "" if opset(model) >= _GELU_OPSET else CONTRIB_DOMAIN
    if domain:
        import_contrib(model)
    return last.become(op.Gelu(x, domain=domain, name=last.name))


def _gelu_input(erf: Node) -> GraphValue | None:
    """The x of Erf(x / sqrt 2)."""
    scale = erf[0].maker("Div", "Mul")
    if scale is None or erf[0].reader("Erf") is None:
        return None
    if scale.kind == "Div":
        return scale[0] if _is(scale[1], math.sqrt(2)) else None
    return next((scale.other(each) for each in (scale[0], scale[1]) if _is(each, math.sqrt(0.5))), None)


def _is(value: GraphValue, expected: float) -> bool:
    found = value.scalar
    return found is not None and math.isclose(found, expected, rel_tol=_GELU_TOLERANCE)


_ERF_END = 3.92
_ERF = (
    1.1283756011548747, 0.10280021210288104, -0.00025756056550116976, -0.0005673190562165362, 6.946632411700867e-05,
    -2.9488824595725704e-06,
)  # fmt: skip
"""Of x², the lowest power first."""


@lower("Erf", of=F32, after={"fuse_gelu": "it looks for an Erf"})
def approximate_erf(n: Node) -> GraphValue:
    """``Erf(x) -> Tanh(x * p(x²))`` with x cut at 3.92, where the function is 1 in float32. QNN leaves Erf to the CPU.

    The polynomial of six terms was fitted here by least squares whose weights follow the error: 5e-7 at most, and 3e-6
    of the result near 0. SQNR on HTP for x up to 0.1, 1, 4 and 50: float16 65, 68, 75, 88 dB, 16 bits 66, 82, 83, 78.
    """
    x = op.Clip(n[0], -_ERF_END, _ERF_END)
    part = x * (1 / _ERF_END)
    square = part * part
    *lower_factors, highest = (factor * _ERF_END ** (2 * power) for power, factor in enumerate(_ERF))
    value = square * highest
    for power, factor in reversed(list(enumerate(lower_factors))):
        value = value + factor
        value = value * square if power else value
    return op.Tanh(x * value)


@lower(
    "Tanh",
    of=F32,
    after={
        "write_out_rnns": "it writes a Tanh",
        "decompose_lstm_step": "it writes a Tanh",
    },
)
def replace_tanh(n: Node) -> GraphValue | None:
    """``Tanh(x) -> Sigmoid(x * 2) * 2 - 1`` over 16 places, and with a last axis of one.

    In 16 bits HTP computes only the first 64 elements of a Tanh over 16 places, [1, 16, channels] or [1, channels, 1,
    16] of a convolution (15, 17 and 32 are right), and nothing of Tanh and Mul or Add where Tanh has one channel and
    the result many: a tanh Gelu, a gate of WaveNet, a Mish meet that in a bucket of 16. Tanh(x + 2) times something,
    [1, 16, 24]: -5 dB, also with Max(Tanh, -1) between; 70 dB after. Where Tanh is right, both are equal within 2 of
    80 dB.
    """
    dims = n.y.shape
    one_channel = len(dims) > 1 and dims[-1] == 1 and math.prod(dims) > 1
    one_row = len(dims) > 1 and math.prod(dims[:-2]) == 1 and 16 in dims[-2:]  # [1, 16, channels] or transposed
    image = len(dims) == 4 and dims[0] == dims[2] == 1 and dims[3] == 16  # HTP has channels last
    if not (one_channel or one_row or image):
        return None
    two = n.number(2)
    return op.Sigmoid(n[0] * two) * two - 1


@lower(
    "HardSigmoid",
    of=F32,
    after={
        "merge_scales": "a factor in between may go into another one",
    },
)
def decompose_hard_sigmoid(n: Node) -> GraphValue | None:
    """``HardSigmoid(ConvTranspose(x, w)) -> Clip(... * alpha + beta, 0, 1)`` after one that strides.

    In float16 HTP reads other memory than the ConvTranspose wrote: of 12 columns the first four are right, others off
    by up to 0.5, and operators that are compiled with it go wrong. Operators of one computed input between the two do
    not help; a Sigmoid in its place is right.
    """
    maker: Node | None = n
    while maker is not None and maker.kind != "ConvTranspose":
        computed = [each for each in maker.inputs if each is not None and not each.is_constant]
        found = n.index.makers.get(computed[0].name) if len(computed) == 1 else None
        maker = Node(n.added, found) if found is not None else None
    if maker is None or maker.proto.domain or max(maker.attr("strides", [1])) == 1:
        return None
    return op.Clip(n[0] * n.attr("alpha", 0.2) + n.attr("beta", 0.5), 0, 1)


@lower("Acos", "Acosh", "Asin", "Asinh", "Atanh", "Celu", "Cosh", "Sinh", "Softsign", "Shrink", of=F32)
def decompose_activations(n: Node) -> GraphValue | None:
    """Write activations that QNN does not have with operators that it has; each would be a partition more.

    5 partitions of a small convolutional net with Celu are 1, at the same SQNR. QNN takes Asin in integers alone, at 17
    dB where x ends at 1 and is rounded to more. There ONNX has NaN, and this goes on with a number (57 dB). Left alone:
    a Shrink with a negative lambd.
    """
    x = n[0]
    if n.kind in ("Acos", "Asin"):
        one = n.number(1)
        cosine = op.Sqrt(op.Relu((one - x) * (x + one)))
        angle = op.Atan(x / (cosine + one)) * 2
        return angle if n.kind == "Asin" else math.pi / 2 - angle
    if n.kind == "Acosh":
        return op.Log(x + op.Sqrt(x * x - 1))
    if n.kind == "Asinh":
        return op.Sign(x) * op.Log(op.Abs(x) + op.Sqrt(x * x + 1))
    if n.kind == "Atanh":
        one = n.number(1)
        return op.Log((x + one) / (one - x)) * 0.5
    if n.kind == "Celu":
        alpha = n.attr("alpha", 1.0)
        return op.Elu(x) if alpha == 1 else op.Elu(x * (1 / alpha)) * alpha
    if n.kind in ("Cosh", "Sinh"):
        rising, falling = op.Exp(x), op.Exp(-x)
        return (rising + falling if n.kind == "Cosh" else rising - falling) * 0.5
    if n.kind == "Softsign":
        return x / (op.Abs(x) + 1)
    lambd, bias = n.attr("lambd", 0.5), n.attr("bias", 0.0)
    if lambd < 0:
        return None
    if bias == lambd:
        return x - op.Clip(x, -lambd, lambd)
    return op.Where(op.Greater(op.Abs(x), lambd), x - op.Sign(x) * bias if bias else x, 0)


@lower("Softplus", "Tanh", "Mish", of=F32)
def decompose_softplus(n: Node) -> GraphValue | None:
    """Write Softplus, Tanh of a Softplus, and Mish with operators that HTP computes right.

    ``Softplus(x) -> Relu(x) - Log(Sigmoid(Abs(x)))`` and ``Tanh(Softplus(x)) -> (1 - q) / (1 + q)`` with ``q = (1 -
    Sigmoid(x)) ** 2``, which are the same: log(1 + e^x) = max(x, 0) - log(1 / (1 + e^-|x|)), and tanh(-log(s)) = (1 -
    s^2) / (1 + s^2). In 16 bits HTP computes a Softplus to 37 to 44 dB where x is within 3, and 3 to 9 dB over images
    of 9 to 12 rows; so 80 dB, and all shapes are right. Tanh after Softplus is wrong over 16 places (2 dB and 75). Mish
    ends the compiler's process.
    """
    if n.kind == "Softplus":
        if not n.y.is_output and all(reader.kind == "Tanh" for reader in n.y.readers):
            return None
        logarithm = op.Log(op.Sigmoid(op.Abs(n[0])))
        return op.Relu(n[0]) - logarithm
    inner = n[0].maker("Softplus") if n.kind == "Tanh" else n
    if inner is None:
        return None
    one = n.number(1)
    rest = one - op.Sigmoid(inner[0])
    square = rest * rest
    tangent = (one - square) / (one + square)
    return n[0] * tangent if n.kind == "Mish" else tangent


@lower("Log", of=F32, after={"merge_scales": "two factors in a row become one"})
def divide_log_arguments(n: Node) -> GraphValue | None:
    """``Log(x * k + o) -> Log(x * (k / d) + o / d) + log(d)`` for a k above 65504 and an o above zero.

    `d` is the largest power of two up to `k` and ``o * 2**14``. Spectra of sound have `k` of 2**20 and `o` of 1. In
    float16 the factor is infinite, and nothing is left of the sum: of x in 0 to 14.4, HTP gives 0 for 16.5 without, and
    is off by 0.005 with this. The divided offset is no less than the smallest normal float16, 2**-14.
    """
    product, offset = _with_number(n[0].maker("Add"))
    x, factor = _with_number(product.maker("Mul") if product else None)
    if x is None or factor <= 65504 or offset <= 0:
        return None
    divisor = 2.0 ** math.floor(math.log2(min(factor, offset * 2.0**14)))
    return op.Log(x * (factor / divisor) + offset / divisor) + math.log(divisor) if divisor > 1 else None


def _with_number(node: Node | None) -> tuple[GraphValue | None, float]:
    """The value that a node joins with a finite constant number, and that number."""
    for value, other in ((node[0], node[1]), (node[1], node[0])) if node else ():
        number = other.scalar
        if number is not None and math.isfinite(number):
            return value, number
    return None, 0.0


@lower(
    "Add",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    of=F32,
    after={
        "write_out_rnns": "it writes activations of a sum",
        "decompose_lstm_step": "it writes a Tanh of a sum",
        "decompose_softplus": "it writes a Sigmoid, and looks for a Tanh",
        "decompose_swish": "it writes a Sigmoid",
        "replace_tanh": "the Sigmoid in place of a Tanh is not of a sum",
    },
)
def bound_activations(n: Node) -> bool:
    """``Sigmoid(x) -> Sigmoid(Clip(x, -128))``, and so Tanh and Swish, where a sum or product makes x.

    In float32 the first is 0 and the second -1 from there on. In float16 HTP makes one operator of the two nodes, whose
    activation is a coarse table, as it is inside LSTM. Largest errors, and SQNR, for x within 8::

                           as one              apart
        Sigmoid(Conv)      3.7e-3  49 dB       7.5e-4  67 dB         the same for Gemm, MatMul and Add
        Tanh(Conv)         7.3e-3  49 dB       2.7e-4  77 dB
        Swish(Conv)        1.9e-2  49 dB       3.7e-3  68 dB

    A detector's probabilities and a recurrent net's gates go wrong by that. In integers the quantizer drops the bound,
    as x has the same encoding, unless something else reads x. Other readers of x keep x.
    """
    x = n.y
    activations = [reader for reader in x.readers if is_op(reader.proto, "Sigmoid", "Tanh")]
    if not activations:
        return False
    bound = op.Clip(x, -128.0)
    for reader in activations:
        reader.read(list(reader.proto.input).index(x.name), bound)
        for product in reader.y.readers if reader.kind == "Sigmoid" else ():
            if is_op(product.proto, "Mul") and product.reads(x):
                product.read(list(product.proto.input).index(x.name), bound)
    return True


@lower(
    "Clip",
    of=FLOATS,
    after=dict.fromkeys(("drop_idle_bounds", "make_masks_finite", "bound_exp"), "it looks for a Clip"),
)
def split_clips(n: Node) -> GraphValue | None:
    """``Clip(x, 0.5, 4) -> Clip(Max(x, 0.5), "", 4)`` for bounds that leave no zero, or are computed; so Min.

    In 8 and 16 bits HTP lets the encoding of the node before do the work of a Clip. Every encoding holds zero, so a
    bound beyond it is lost: Sqrt(Clip(x * x, 0.5)) has 22.9 dB against the QDQ model, Sqrt(Max(x * x, 0.5)) 67.4. A
    computed bound QNN leaves to the CPU ("QNN doesn't support dynamic min/max").
    """
    low, high = n.get(1), n.get(2)
    lost_low, lost_high = (
        each is not None and (not each.is_constant or sign * (each.scalar or 0) > 0)
        for each, sign in ((low, 1), (high, -1))
    )
    if not lost_low and not lost_high:
        return None
    steps: list[tuple[str, list[GraphValue | None]]] = [("Max", [low])] if lost_low else []
    steps += [("Min", [high])] if lost_high else []
    rest = [None if lost_low else low, None if lost_high else high]
    steps += [("Clip", rest)] if any(rest) else []
    x = n[0]
    for at, (kind, bounds) in enumerate(steps, 1):
        x = getattr(op, kind)(x, *bounds, name=n.name if at == len(steps) else "")
    return x


@lower(
    "Pow",
    after={
        "fuse_gelu": "it looks for the powers in an activation",
        "fuse_layer_norm": "it looks for the powers in a norm",
        "fuse_rms_norm": "it looks for the powers in a norm",
    },
)
def decompose_pow(n: Node) -> GraphValue | None:
    """Write powers with a constant exponent as products, quotients and roots, and those of a constant with Exp.

    ::

        Pow(x, 2), 3, to 8      products of squares; of int32 and int64, which are exact, to 31
        Pow(x, 0), Pow(x, 1)    x * 0 + 1, Identity(x)
        Pow(x, 0.5), 1.5        Sqrt(x), x * Sqrt(x)
        Pow(x, -n)              1 / the form for n
        Pow(x, any other)       Pow(Abs(x), exponent), unless the exponent is whole
        Pow(2, x)               Exp(x * log(2)), and so of any positive number
        Pow(x, whole numbers)   Pow(x, Cast(whole numbers)), x being floats

    HTP computes a float16 Pow wrongly where x is -0, or a negative number that float16 rounds to it: x to the 2 is -4,
    to the 4 is 16, to the 0.5 is 131008. In 16 bits it is right and coarse (uint16, x in 0.1 to 4, Pow and after:
    exponent 2 105.7 and 105.7 dB, 3 63.4 and 100.2, 4 63.8 and 98.4, -1 43.5 and 71.8, -0.5 46.5 and 91.4, 0.5 64.5 and
    66.9). Powers of a constant are wrong in 8 and 16 bits, as if base and exponent changed places (2 to the x, uint16:
    -8.1 dB, by Exp 86.9; 10 to the x: -12.6 and 81.0). QNN leaves powers of and by integers to the CPU.

    A root of something negative, which is NaN, may become a number. Left alone: exponents that differ between elements,
    or are whole and beyond 8, and the negative ones of integers; computed exponents of another base than a positive
    number.
    """
    x, by = n[0], n[1]
    exponent = _exponent(n)
    if exponent is not None:
        size = abs(exponent)
        if size == 0:
            return x * 0 + 1
        if not size.is_integer() and size not in (0.5, 1.5):
            return op.Pow(op.Abs(x), by)
        return 1 / _power(x, size) if exponent < 0 else _power(x, size)
    base = x.scalar
    computed = by.name in n.index.types and not by.is_constant and by.is_f32 and n.y.is_f32
    if base is not None and computed and 0 < base < math.inf and by.shape == n.y.shape:
        return op.Exp(by * math.log(base))
    return op.Pow(x, by.cast(TensorProto.FLOAT)) if x.is_f32 and by.kind in WHOLE else None


def _exponent(n: Node) -> float | None:
    """The exponent of a power that is to be replaced."""
    x, exponent = n[0], n[1].scalar
    if x.name not in n.index.types or x.is_constant or exponent is None or not math.isfinite(exponent):
        return None
    if x.shape != n.y.shape:
        return None
    whole = exponent.is_integer()
    if x.kind in INTS:
        return exponent if whole and 0 <= exponent <= 31 else None  # int32 does not hold more than 2**31
    if not x.is_f32:
        return None
    if whole:
        return exponent if abs(exponent) <= 8 else None  # more than three squarings in a row round more than Pow
    return None if abs(exponent) not in (0.5, 1.5) and x.maker("Abs") else exponent


def _power(x: GraphValue, size: float) -> GraphValue:
    """X to a size of 0.5, 1.5, or a whole number."""
    if size == 1:
        return x
    if size == 0.5:
        return op.Sqrt(x)
    if size == 1.5:
        return x * op.Sqrt(x)
    if size % 2:
        return _power(x, size - 1) * x
    half = _power(x, size / 2)
    return half * half


@lower("Pow", of=F32)
def expand_powers(n: Node) -> GraphValue | None:
    """``Pow(x, y) -> Pow(Expand(x, dims), Expand(y, dims))`` of 5 dims, for a side with other dims than the result.

    On such a Pow QNN's compiler ends its process in float16, and in integers other numbers come out; equal shapes are
    right. A constant is stored so. Left alone: constants of one element.
    """
    dims, sides = n.y.shape, (n[0], n[1])
    differs = [each.shape != dims and (not each.is_constant or math.prod(each.shape) > 1) for each in sides]
    if len(dims) < 5 or not any(differs) or not all(each.is_f32 for each in sides):
        return None
    full: list[GraphValue] = []
    for each, other in zip(sides, differs, strict=True):
        array = each.array if other else None
        full.append(
            n.constant(np.broadcast_to(array, dims).copy())
            if array is not None
            else op.Expand(each, dims)
            if other
            else each
        )
    return op.Pow(*full)
