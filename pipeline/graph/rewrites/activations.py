"""Activations: those that HTP computes wrongly, or QNN does not have, written with operators that are right.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import math

from pipeline.graph.ir.index import CONTRIB_DOMAIN, import_contrib, opset
from pipeline.graph.ir.rules import F32, Node, GraphValue, lower, op

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


@lower("Sigmoid", of=F32)
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
    after={"decompose_pow": "powers of constants become an Exp", "decompose_log_sums": "LogSoftmax becomes an Exp"},
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


@lower("Tanh", of=F32)
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


@lower("HardSigmoid", of=F32)
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
