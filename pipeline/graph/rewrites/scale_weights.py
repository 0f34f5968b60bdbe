"""Multiply weights by the constant that their product is multiplied by.

Before (or a Div; W and c constants)::

    Mul(MatMul(x, W), c)

After::

    MatMul(x, W * c)

Files that onnxruntime quantized have whole numbers up to 255 as weights and their scale behind the product, which is so
many times what the model computes with: float16 ends at 65504, and 16 bits at an encoding of their own.

The result keeps its name, and the bias of a Conv is multiplied as well. c is one number, or one for each output: the
last axis of MatMul and Gemm, the channels of Conv. Left alone: weights or products that others read, a product that is
an output, weights that are not two-dimensional (of Conv: three or more), a Gemm with a bias, a factor that is 0, no
number, makes a weight overflow, or makes all weights of an output smaller than float16 has them fine; types other than
float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import input_at

_FINE = 2.0**-11
"""What the largest weight of an output is at least: numbers a 256th as large are steps of 2^-24 apart in float16, which
is 1 in 8192 of the largest."""


def apply(model: ModelProto, folder: Path) -> int:
    """Fold every such factor; returns their number."""
    index = GraphIndex(model, folder)
    scaled = [(node, found) for node in model.graph.node if (found := _product(index, node)) is not None]
    for node, (product, constants) in scaled:
        for place, (name, values) in constants.items():
            model.graph.initializer.append(numpy_helper.from_array(values, name))
            product.input[place] = name
        product.output[0] = node.output[0]
        model.graph.node.remove(node)
    return len(scaled)


def _product(index: GraphIndex, scaled: NodeProto) -> tuple[NodeProto, dict[int, tuple[str, NDArray[Any]]]] | None:
    """The product that a node scales, and its new constants by place; None where the factor can't be folded."""
    if not is_op(scaled, "Mul", "Div"):
        return None
    for position in (0,) if scaled.op_type == "Div" else (0, 1):
        name, factor = scaled.input[position], _float(index, scaled.input[1 - position])
        product = index.makers.get(name)
        if factor is None or not factor.all() or product is None or not is_op(product, "MatMul", "Gemm", "Conv"):
            continue
        if name not in index.outputs and len(index.readers[name]) == 1:
            constants = _scaled(index, product, factor if scaled.op_type == "Mul" else 1 / factor, scaled.output[0])
            return None if constants is None else (product, constants)
    return None


def _scaled(
    index: GraphIndex, product: NodeProto, factor: NDArray[Any], result: str
) -> dict[int, tuple[str, NDArray[Any]]] | None:
    """The constants of a product with the factor in them, by their place; None if that can't be."""
    conv = product.op_type == "Conv"
    weights = _float(index, product.input[1])
    if weights is None or (weights.ndim < 3 if conv else weights.ndim != 2):
        return None
    if product.op_type == "Gemm" and input_at(product, 2):
        return None
    axis = 0 if conv or integer(product, "transB") else 1
    given, made = shape_of(index.types[product.output[0]]), shape_of(index.types[result])
    if given != made:
        return None
    along = 1 if conv else len(made) - 1
    shape = (1,) * (len(made) - factor.ndim) + factor.shape
    if factor.size != 1 and (factor.size != made[along] or shape[along] != factor.size):
        return None
    spread = factor.reshape(-1)
    if any(len(index.readers[product.input[place]]) != 1 for place in range(1, len(product.input))):
        return None
    sizes = [1] * weights.ndim
    sizes[axis] = factor.size
    scaled = {1: weights * spread.reshape(sizes)}
    others = tuple(each for each in range(weights.ndim) if each != axis)
    before, after = (np.abs(each).max(others, initial=0) for each in (weights, scaled[1]))
    if (after < np.minimum(before, _FINE)).any():
        return None
    if conv and input_at(product, 2):
        bias = _float(index, product.input[2])
        if bias is None:
            return None
        scaled[2] = bias * spread
    with np.errstate(over="ignore"):
        rounded = {place: values.astype(np.float32) for place, values in scaled.items()}
    if not all(np.isfinite(values).all() for values in rounded.values()):
        return None
    return {place: (index.unused(f"{product.input[place]}_times"), values) for place, values in rounded.items()}


def _float(index: GraphIndex, name: str) -> NDArray[Any] | None:
    """A constant of float32, in float64; None for anything else."""
    tensor = index.initializers.get(name)
    if tensor is None or tensor.data_type != TensorProto.FLOAT:
        return None
    values = index.constant(name)
    return None if values is None else values.astype(np.float64)


AFTER = {
    "merge_scales": "of two factors it folds one",
}
