"""Give LayerNormalizations scales that 8 bits hold, and put the rest into the weights that read them.

Before (views and transpositions in between, any number of products, Gemm as well; g, b and W constants)::

    MatMul(LayerNormalization(x, g, b), W)

After, with q the numbers of g rounded to 255ths of their range::

    MatMul(LayerNormalization(x, q, b * q / g), W * (g / q))          for each row of W

QNN takes the scale of a LayerNormalization in 8 bits alone, next to 16 bit activations, too. Rounding g costs a channel
up to half a step of the largest, whatever the weights have. One norm and product in w16a16: 52 dB without this, on the
CPU and on the emulator, 80 and 74 with it.

The result of the norm is another one, so it gets another name. Left alone: a result that is an output or that anything
but such products reads, such as the stream of a model that normalizes behind its sums (BERT); weights that others read,
too; a channel whose scale is 0 or so small that its bias would grow beyond the others'; types other than float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from pipeline.graph.ir.attributes import integer, integers
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.traverse import input_at

_STEPS = 255
_SAME = 1e-6
"""A scale that is off by less than this part of it is what float32 makes of a whole number of steps."""
_MOST_BYTES = 512 << 20
"""Of weights that are made anew, which are in memory; the norms of the rest of a model stay as they are."""

AFTER = {
    "fold_gemm_factors": "it looks for products of nothing but their operands",
    "fuse_layer_norm": "it looks for norms",
    "normalize_along_last_axis": "it looks for norms of the last axis",
    "add_spare_columns": "it would copy the weights that are made",
    "put_constants_last": "it looks for products in their last form",
}


@dataclass(frozen=True)
class _Norm:
    node: NodeProto
    products: Sequence[NodeProto]
    moved: Sequence[str]
    """What views and transpositions make of the norm's result, which is another one then."""
    scale: NDArray[np.float64]
    bias: NDArray[np.float64] | None
    rest: NDArray[np.float64]
    """[width], what goes into the weights."""


def apply(model: ModelProto, folder: Path) -> int:
    """Round the scales of every such norm; returns their number."""
    index = GraphIndex(model, folder)
    left, done = _MOST_BYTES, 0
    for node in model.graph.node:
        norm = _match(index, node)
        if norm is None:
            continue
        weights = dict.fromkeys(str(product.input[1]) for product in norm.products)
        left -= sum(4 * int(np.prod(index.initializers[name].dims)) for name in weights)
        if left < 0:
            break
        _change(index, norm)
        done += 1
    return done


def _match(index: GraphIndex, node: NodeProto) -> _Norm | None:
    if not is_op(node, "LayerNormalization") or node.output[0] not in index.types:
        return None
    dims = shape_of(index.types[node.output[0]])
    if integer(node, "axis", -1) not in (-1, len(dims) - 1):
        return None
    scale, bias = _vector(index, node.input[1], dims[-1]), _vector(index, input_at(node, 2), dims[-1])
    if scale is None or (bias is None and input_at(node, 2)):
        return None
    rest = _rest(scale, bias)
    if np.abs(rest - 1).max() < _SAME:
        return None
    moved, products = list[str](), list[NodeProto]()
    if not _follow(index, node.output[0], dims[-1], moved, products) or not products:
        return None
    ids = {id(product) for product in products}
    if any(id(reader) not in ids for product in products for reader in index.readers[product.input[1]]):
        return None
    return _Norm(node, products, moved, scale, bias, rest)


def _rest(scale: NDArray[np.float64], bias: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """What is left of each scale over the one that 8 bits hold; 1 where it is to be rounded as it is."""
    low, high = min(float(scale.min()), 0.0), max(float(scale.max()), 0.0)
    step = (high - low) / _STEPS
    if not 0 < step < np.inf:
        return np.ones(scale.size)
    zero = np.rint(-low / step)
    whole = np.clip(np.rint(scale / step) + zero, 0, _STEPS) - zero
    # What would be 0 is one step, inside of what 8 bits hold: with its own sign, else with the other one.
    faint = np.clip(np.sign(scale), -zero, _STEPS - zero)
    whole = np.where(whole == 0, np.where(faint == 0, -np.sign(scale), faint), whole)
    rest = np.divide(scale, whole * step, out=np.ones(scale.size), where=whole != 0)
    if bias is not None:
        if not np.isfinite(bias).all():
            return np.ones(scale.size)
        rest = np.where(np.abs(bias) > 2 * np.abs(bias).max() * np.abs(rest), 1.0, rest)
    return np.asarray(rest)


def _follow(index: GraphIndex, name: str, width: int, moved: list[str], products: list[NodeProto]) -> bool:
    """Note all that reads a value whose last axis is that of the norm; False where that is anything else."""
    if name in index.outputs:
        return False
    for reader in index.readers.get(name, []):
        if _is_product(index, reader, name):
            products.append(reader)
        elif _keeps_last(index, reader, width):
            moved.append(reader.output[0])
            if not _follow(index, reader.output[0], width, moved, products):
                return False
        else:
            return False
    return True


def _is_product(index: GraphIndex, node: NodeProto, name: str) -> bool:
    """Whether a node multiplies rows of a value with a constant matrix, and does nothing else with it."""
    if not is_op(node, "MatMul", "Gemm") or list(node.input).count(name) != 1 or node.input[0] != name:
        return False
    weight = index.initializers.get(node.input[1])
    return weight is not None and len(weight.dims) == 2 and not integer(node, "transA")


def _inputs(product: NodeProto) -> int:
    """The axis of a product's weight along which its inputs lie."""
    return 1 if integer(product, "transB") else 0


def _keeps_last(index: GraphIndex, node: NodeProto, width: int) -> bool:
    """Whether a node makes a view of a value, or transposes it, whose last axis is the same."""
    if not is_op(node, *VIEWS, "Transpose") or node.output[0] not in index.types:
        return False
    dims = shape_of(index.types[node.output[0]])
    if is_op(node, "Transpose"):
        return integers(node, "perm")[-1:] == [len(dims) - 1]
    return bool(dims) and dims[-1] == width


def _change(index: GraphIndex, norm: _Norm) -> None:
    node = norm.node
    node.input[1] = _put(index, node.input[1], norm.scale / norm.rest)
    if norm.bias is not None:
        node.input[2] = _put(index, node.input[2], norm.bias / norm.rest)
    made: dict[str, str] = {}
    for product in norm.products:
        name, axis = str(product.input[1]), _inputs(product)
        if name not in made:
            weight = index.constant(name)
            assert weight is not None
            made[name] = _put(index, name, weight * np.expand_dims(norm.rest, 1 - axis))
        product.input[1] = made[name]
    for name in (node.output[0], *norm.moved):
        _rename(index, name)


def _rename(index: GraphIndex, name: str) -> None:
    """Give a value that is another one now a name of its own."""
    new = index.unused(f"{name}_rounded")
    index.model.graph.value_info.append(ValueInfoProto(name=new, type=index.types[name]))
    index.makers[name].output[0] = new
    for reader in index.readers[name]:
        reader.input[0] = new


def _put(index: GraphIndex, name: str, values: NDArray[Any]) -> str:
    """Add a constant in place of another one; its name."""
    made = index.unused(f"{name}_rounded")
    array = np.ascontiguousarray(values, np.float32)
    index.model.graph.initializer.append(numpy_helper.from_array(array, made))
    index.initializers[made] = index.model.graph.initializer[-1]
    return made


def _vector(index: GraphIndex, name: str, width: int) -> NDArray[np.float64] | None:
    """A constant of float32 and [width], in float64; None for anything else."""
    tensor = index.initializers.get(name)
    if tensor is None or tensor.data_type != TensorProto.FLOAT or list(tensor.dims) != [width] or not width:
        return None
    values = index.constant(name)
    return values.astype(np.float64) if values is not None else None
