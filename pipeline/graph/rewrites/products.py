"""Matrix products, and the sums and factors beside them.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

from math import prod

import numpy as np

from pipeline.graph.ir.index import FLOATS
from pipeline.graph.ir.rules import F32, Node, GraphValue, lower, op

_CLAMPS = ("Clip", "Relu")


@lower("Gemm", of=FLOATS, after={"fold_gemm_factors": "it leaves no other factor than 1"})
def multiply_apart(n: Node) -> GraphValue | None:
    """``Gemm(a, b, c) -> MatMul(a, b) + c``, with Transposes, for a computed b, or a c that is no constant row.

    QNN's FullyConnected, which a quantized Gemm becomes, takes no computed second matrix of 16 bits, and a bias for
    each column alone: such a node stayed on the CPU, or nothing was compiled. Left alone: factors other than 1.
    """
    bias = n.get(2)
    if n.attr("alpha", 1.0) != 1 or n.attr("beta", 1.0) != 1:
        return None
    if n[1].is_constant and (bias is None or (bias.is_constant and prod(bias.shape[:-1]) == 1)):
        return None
    product = op.MatMul(_turned(n, 0), _turned(n, 1))
    return product if bias is None else product + bias


def _turned(n: Node, at: int) -> GraphValue:
    """One of the two matrices, as MatMul takes it."""
    if not n.attr(("transA", "transB")[at], 0):
        return n[at]
    constant = n[at].array
    return n[at].transpose(1, 0) if constant is None else n.constant(constant.T.copy(), f"{n[at].name}_turned")


@lower(
    "MatMul",
    of=FLOATS,
    after={
        "bound_activations": "it looks for activations right behind a product",
        "scale_weights": "it looks for factors right behind a product",
    },
)
def flatten_rows(n: Node) -> GraphValue | None:
    """``MatMul(x [a, b, m, k], w [k, n]) -> Reshape(MatMul(Reshape(x, [a b m, k]), w))`` for a constant w.

    QNN compiles nothing of a model with such a product where its weight is in blocks ("Memory allocation related
    error", whatever the sizes): a linear layer over windows, as in Swin, over planes with channels last, as in
    ConvNeXt, or with a batch of more than one. Flat it compiles, 46 dB from the original as any product in blocks. Left
    alone: vectors, two computed values, matrices in batches.
    """
    x, w = n[0], n[1]
    if not w.is_constant or x.is_constant or len(w.shape) != 2 or prod(x.shape[:-2]) <= 1:
        return None
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    return op.MatMul(rows, w, name=n.name).reshape(*n.y.shape)


@lower("Add", of=F32)
def put_constants_last(n: Node) -> bool:
    """``Add(c, x) -> Add(x, c)`` for a constant that is added in several places; the other way after ConvTranspose.

    QNN's compiler writes the first operand of an Add into the binary once for every place that it is added to, and the
    second one once. The results are the same bit for bit in 16 and 8 bits and float16, but for LayerNormalization in
    float16, which gains 2 dB (69.8 to 72.3). torch's exporter puts the biases of linear layers first. MiniLM with 64
    tokens, in MB: 37.5 and 35.0 at w8a16, 24.3 and 23.1 at w8a8, 45.7 and 45.2 in float16.

    After a ConvTranspose, clamped or not, the constant comes first: as the second one HTP adds something else in
    integers, 0 to 14 dB. Left alone: constants of one number, or of as many as the result has; Sub.
    """
    first, second = n[0], n[1]
    if first.is_constant == second.is_constant:
        return False
    constant, value = (first, second) if first.is_constant else (second, first)
    maker = value.maker("ConvTranspose", *_CLAMPS)
    while maker is not None and maker.kind != "ConvTranspose":
        maker = maker[0].maker("ConvTranspose", *_CLAMPS)
    turn = second is constant if maker else first is constant and 1 < prod(constant.shape) < prod(n.y.shape)
    if turn:
        n.proto.input[:] = [second.name, first.name]
    return turn


@lower("Mul", of=F32)
def expand_factors(n: Node) -> bool:
    """``Reshape(a) * Reshape(b) -> Expand(Reshape(a)) * Reshape(b)`` where each is multiplied by each.

    In integers HTP multiplies before such Reshapes, where each element meets one: of a and b of [4, 16] that become [4,
    16, 1] and [4, 1, 16] the product is at -17 dB in 16 bits, -14 in 8 bits, and 81 with this. Float16 is right, and
    sums, quotients and maxima are. Outer products are written so, and linear attention (keys by values).
    """
    sources = [each.maker("Reshape", "Unsqueeze", "Squeeze", "Flatten") for each in (n[0], n[1])]
    first, second = ([size for size in made[0].shape if size != 1] if made else [] for made in sources)
    full = np.broadcast_shapes(n[0].shape, n[1].shape)
    if not first or first != second or full in (n[0].shape, n[1].shape):
        return False
    return n.read(0, op.Expand(n[0], full))
