"""Matrix products, and the sums and factors beside them.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from pipeline.graph.ir.index import FLOATS
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op

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


@lower(
    "Add",
    of=F32,
    after={
        "merge_dims": "it writes sums",
    },
)
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


@lower(
    "Mul",
    of=F32,
    after={
        "merge_dims": "it reshapes factors",
    },
)
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


@lower("Gemm", of=FLOATS)
def fold_gemm_factors(n: Node) -> GraphValue | None:
    """``Gemm(a, b, c, alpha, beta) -> Gemm(a, b * alpha, c * beta)``; QNN takes no other factor than 1.

    A computed operand is multiplied by a Mul; a bias with a beta of 0, which ONNX does not add, is left out. Weights
    that others read stay as they are, and a is multiplied: two forms of them would be stored.
    """
    alpha, beta, inputs = n.attr("alpha", 1.0), n.attr("beta", 1.0), n.inputs
    if alpha == 1 and beta == 1:
        return None
    own = [at for at in (1, 0) if n[at].is_constant and len(n[at].readers) == 1]
    at = own[0] if own and alpha else 0  # weights of zeros alone have no scale
    inputs[at] = _times(n, n[at], alpha)
    bias = n.get(2)
    if bias is not None:
        inputs[2] = _times(n, bias, beta) if beta else None
    return op.Gemm(*inputs, **{name: value for name, value in n.attributes.items() if name not in ("alpha", "beta")})


def _times(n: Node, value: GraphValue, factor: float) -> GraphValue:
    """The value, or the constant, times a factor."""
    if factor == 1:
        return value
    constant = value.array
    if constant is None:
        return value * factor
    return n.constant((constant * factor).astype(constant.dtype), f"{value.name}_times")


@lower(
    "MatMul",
    of=FLOATS,
    after={
        "decompose_einsum": "it writes an Einsum as a product",
        "multiply_transforms": "it looks for products with weights",
    },
)
def flatten_products(n: Node) -> GraphValue | None:
    """``MatMul(x [a, b, c, m, k], y [a, b, c, k, n]) -> Reshape(MatMul(x [a b c, m, k], y [a b c, k, n]))``.

    Where y is one matrix for all batches, x becomes [a b c m, k]. A constant x that is one matrix stays one. A side
    with fewer batches is expanded otherwise. HTP computes other numbers of two values of 5 dims in 8 bits (-7 and -12
    dB where two of the batch dims are more than 1; 45 otherwise), and does not compile the product of 5 dims by a
    constant. Of one constant matrix of 5 dims from the left it computes 0 dB in 8 bits, and does not compile it in 16;
    40 and 51 with this. Left alone: vectors, and a constant of some batches, which would have no encoding of weights if
    expanded.
    """
    left, right, dims = n[0], n[1], n.y.shape
    batches = dims[:-2]
    if len(dims) < 5 or min(len(left.shape), len(right.shape)) < 2:
        return None
    if not all(x.shape[:-2] == batches or prod(x.shape[:-2]) == 1 or not x.is_constant for x in (left, right)):
        return None
    if prod(right.shape[:-2]) == 1:
        rows = left.shaped(prod(left.shape[:-1]), left.shape[-1])
        return op.MatMul(rows, right.shaped(*right.shape[-2:])).reshape(*dims)
    flat = []
    for x in (left, right):
        matrix, count = x.shape[-2:], prod(x.shape[:-2])
        if count != prod(batches) and not x.is_constant:
            x, count = op.Expand(x, (*batches, *matrix)), prod(batches)
        flat.append(x.shaped(count, *matrix))
    return op.MatMul(*flat).reshape(*dims)


@lower(
    "Mul",
    of=F32,
    after=dict.fromkeys(("merge_scales", "fuse_gelu"), "it looks for products with one number"),
)
def widen_scales(n: Node) -> bool:
    """``(x + c) * s -> (x + c) * [s, s, ..., s]`` for a constant c of several elements, Reshapes in between or not.

    In float16 HTP makes ``x * s + c * s`` of the first, with the first element of `c` for all of them: a query that is
    scaled after its bias, as in speech models, is off by a quarter of its size (0.213 of 0.853), and right to 5e-4 by a
    row. Integers are right either way. Where the last axis has one element, the factors have the dims of the result.
    Left alone: sums that others read.
    """
    dims = n.y.shape
    at = next((at for at in (0, 1) if n[at].is_constant and prod(n[at].shape) == 1), None)
    if at is None or prod(dims) == 1:
        return False
    value = n[1 - at]
    while value.reader("Mul", *VIEWS) and (view := value.maker(*VIEWS)):
        value = view[0]
    total = value.maker("Add")
    if total is None or value.reader("Mul", *VIEWS) is None:
        return False
    if not any(each.is_constant and max(each.shape, default=1) > 1 for each in (total[0], total[1])):
        return False
    row = np.full(dims if dims[-1] == 1 else dims[-1:], n[at].scalar, np.float32)
    return n.read(at, n.constant(row, f"{n.y.name}_factors"))


_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_Dims = tuple[int, ...]


@lower(
    "MatMul",
    "Gemm",
    of=F32,
    after={
        "expand_factors": "it reshapes around products",
        "flatten_rows": "it reshapes around products",
        "merge_dims": "it reshapes around products",
    },
)
def add_spare_columns(n: Node) -> GraphValue | None:
    """``Reshape(MatMul(Reshape(x), w)) -> Reshape(Slice(MatMul(Reshape(x), w'), all but the last))``.

    `w'` has a column of zeros more. It is for an x and a result that have the same dims but for the last, and a
    constant w (no bias, or one of zeros) that reads more of x than its last dim. In float16 HTP takes such a layer for
    one over the last dim of x, as the dims around it look, and no tool says so: x of [1, 8, 16], flattened, through a
    layer of 128 by 256, to [1, 8, 32] is at 0 dB, 68 with this; or nothing is compiled ("Memory allocation related
    error"). Integers are right, a bias that is not zero, and other dims. Decoders that make a picture of a vector are
    such, and Fourier transforms by products.
    """
    weights, bias, made = n[1], n.get(2), n.y.shape
    if not weights.is_constant or len(weights.shape) != 2 or n.attr("transA", 0) or (bias and bias.scalar != 0):
        return None
    rows = n.attr("transB", 0)
    before = {dims[:-1] for dims in _dims_before(n[0]) if dims and dims[-1] != weights.shape[1 if rows else 0]}
    if not any(dims[:-1] in before for dims in _dims_after(n.y) if dims):
        return None
    array = weights.array
    assert array is not None
    more = n.constant(np.pad(array, ((0, rows), (0, 1 - rows))), f"{weights.name}_more")
    product: GraphValue = getattr(op, n.kind)(n[0], more, name=n.name, **n.attributes)
    return product.slice([0], [made[-1]], [len(made) - 1])


def _dims_before(value: GraphValue) -> Iterator[_Dims]:
    """The dims that a value had before each of the Reshapes that it came through."""
    while (reshape := value.maker(*_RESHAPES)) is not None:
        value = reshape[0]
        yield _plain(value.shape)


def _dims_after(value: GraphValue) -> Iterator[_Dims]:
    """The dims that Reshapes give a value, and its sum with zeros."""
    for reader in value.readers:
        if reader.kind in _RESHAPES:
            yield _plain(reader.y.shape)
        elif reader.kind != "Add" or reader.other(value).scalar != 0:
            continue
        yield from _dims_after(reader.y)


def _plain(dims: _Dims) -> _Dims:
    """Dims without those of 1 that they begin with, which HTP adds up to four."""
    return dims[next((axis for axis, size in enumerate(dims) if size != 1), len(dims)) :]
