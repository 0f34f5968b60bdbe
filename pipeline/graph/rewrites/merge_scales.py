"""Multiply by two constants in a row at once.

Before (either may be a Div)::

    Mul(Mul(x, a), b)

After::

    Mul(x, a * b)

HTP (2.51, all architectures, emulated) gets the pair wrong where a is one number, x has an entry for each place, [1,
1, 32, 1] say, and b one for each channel: the result is all zeros, in 8 and 16 bits, though right in float16. Rotary
positions are made in this way, places times a span times frequencies. Elsewhere the merged form saves a node.

The result keeps its name. Left alone: a product of constants that would have more elements than the larger of them has
(unless it is small), that overflows or vanishes, or that would make a mask's huge filler of something else; types other
than float32; an inner result that is an output, or that more than its scaled forms read.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

_TINIEST, _HUGEST = 1e-6, 1e4
"""Magnitudes that a factor may have: far from what float16 can't hold, and from a mask's filler."""

_SMALL = 1024
"""Elements that a product of constants may have, however few its factors have."""


def apply(model: ModelProto, folder: Path) -> int:
    """Merge every pair of constant factors; returns the number of nodes that now do the work of two."""
    index = GraphIndex(model, folder)
    factors = {node.output[0]: found for node in model.graph.node if (found := _factor(index, node)) is not None}
    inner = {source for source, _ in factors.values() if source in factors and _only_scaled(index, source, factors)}
    added, merged = Additions(index), 0
    for node in model.graph.node:
        if not is_op(node, "Mul", "Div") or node.output[0] not in factors:
            continue
        source, factor = factors[node.output[0]]
        if source not in inner:
            continue
        first, scale = factors[source]
        product = np.asarray(scale * factor, np.float32)
        if _is_worth(product, scale, factor) and _same_shape(index, first, product, node.output[0]):
            name = added.constant(f"{node.output[0]}_merged", product)  # onnxruntime calls encodings "_scale"
            node.CopyFrom(helper.make_node("Mul", [first, name], list(node.output), node.name))
            factors[node.output[0]] = (first, product)
            merged += 1
    added.join()
    return merged


def _factor(index: GraphIndex, node: NodeProto) -> tuple[str, NDArray[Any]] | None:
    """What a node scales, and by what; None if it does something else, or by a factor out of bounds."""
    if not is_op(node, "Mul", "Div"):
        return None
    for position in (1,) if node.op_type == "Div" else (0, 1):
        name, source = node.input[position], node.input[1 - position]
        tensor = index.initializers.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT or source in index.initializers:
            continue
        values = index.constant(name)
        if values is None or not _in_bounds(values):
            return None
        return source, np.asarray(values if node.op_type == "Mul" else 1 / values.astype(np.float64))
    return None


def _in_bounds(values: NDArray[Any]) -> bool:
    magnitudes = np.abs(values)
    return bool(values.size and np.isfinite(values).all() and ((magnitudes >= _TINIEST) & (magnitudes < _HUGEST)).all())


def _only_scaled(index: GraphIndex, name: str, factors: Collection[str]) -> bool:
    return name not in index.outputs and all(node.output[0] in factors for node in index.readers[name])


def _is_worth(product: NDArray[Any], *factors: NDArray[Any]) -> bool:
    return _in_bounds(product) and product.size <= max(_SMALL, *(factor.size for factor in factors))


def _same_shape(index: GraphIndex, source: str, product: NDArray[Any], result: str) -> bool:
    return np.broadcast_shapes(shape_of(index.types[source]), product.shape) == shape_of(index.types[result])


AFTER = {
    "decompose_batch_norm": "it writes a product with constants",
}
