"""Fuse the RMSNorm that exporters spell out, as they have no operator for it before opset 23.

Before (Mul(x, x) for Pow; Div(x, root) or Mul(x, Pow(sum, -0.5)) for the reciprocal; a sum divided by the width, or a
mean whose axis was dropped and comes back, for the mean; factors in any order)::

    root = Sqrt(Add(ReduceMean(Pow(x, 2), axis -1), epsilon))
    Mul(Mul(x, Reciprocal(root)), gamma)

After::

    RMSNormalization(x, gamma)          of ONNX from opset 23, before that SimplifiedLayerNormalization of onnxruntime

HTP (2.51, all architectures, emulated) has one operator for it. Spelled out, the squares get encodings of their own, in
float16 they overflow, and some channels of a trained model are many times the others (SQNR, uint16 and float16)::

    largest channel   spelled out        fused
    1                 64.0    64.8 dB    81.7    68.6 dB
    20                43.7    64.4       69.9    69.0
    300               35.0    27.9       45.9    66.7
    3000              25.6    -1.4       25.6    67.9

With a Reciprocal and activations of 0.05, it is 1 dB spelled out.

The result keeps its name. Without a constant gamma behind it, ones stand in its place. Left alone: a mean over other
axes than the last; a value in between that something else reads; anything but an Add of a positive constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from pipeline.graph.ir.index import GraphIndex, element_type, is_op, opset
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import reduced_axes
from pipeline.graph.ir.spelled_norms import divided, kept_mean, squared
from pipeline.graph.ir.traverse import other_input

_OPSET = 23


@dataclass(frozen=True)
class _Norm:
    source: str
    epsilon: float
    last: NodeProto
    """The node whose place, name and result the fused one takes."""
    gamma: str = ""
    """The factor, a constant; empty if there is none."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Fuse an RMSNorm that this reduction is part of."""
    norm = _match(added.index, node) if is_op(node, "ReduceMean", "ReduceSum") else None
    if norm is None:
        return False
    kind = "RMSNormalization" if opset(added.index.model) >= _OPSET else "SimplifiedLayerNormalization"
    inputs = [norm.source, _gamma(added, norm)]
    made = helper.make_node(kind, inputs, list(norm.last.output), norm.last.name, axis=-1, epsilon=norm.epsilon)
    # In place of the last node, so that the order stays topological; the others are now unused.
    norm.last.CopyFrom(made)
    return True


def _match(index: GraphIndex, reduction: NodeProto) -> _Norm | None:
    source = squared(index, reduction.input[0])
    if source is None or not _is_over_last_axis(index, reduction, source):
        return None
    mean = kept_mean(index, reduction)
    shifted = index.sole_reader(mean, "Add") if mean is not None else None
    if mean is None or shifted is None:
        return None
    epsilon = index.scalar(other_input(shifted, mean))
    normed = divided(index, shifted.output[0])
    if epsilon is None or not 0 < epsilon < np.inf or normed is None:
        return None
    if source not in (normed.input[:1] if normed.op_type == "Div" else normed.input):
        return None
    scaled = index.sole_reader(normed.output[0], "Mul")
    gamma = other_input(scaled, normed.output[0]) if scaled is not None else ""
    if scaled is not None and _is_gamma(index, gamma, source):
        return _Norm(source, epsilon, scaled, gamma)
    return _Norm(source, epsilon, normed)


def _is_over_last_axis(index: GraphIndex, reduction: NodeProto, source: str) -> bool:
    if source not in index.types:
        return False
    return reduced_axes(index, reduction) == (len(shape_of(index.types[source])) - 1,)


def _is_gamma(index: GraphIndex, name: str, source: str) -> bool:
    tensor = index.initializers.get(name)
    if tensor is None:
        return False
    width, dims = shape_of(index.types[source])[-1], tuple(tensor.dims)
    return (
        (not dims or dims[-1] in (1, width))
        and len(dims) <= len(shape_of(index.types[source]))
        and set(dims[:-1]) <= {1}
    )


def _gamma(added: Additions, norm: _Norm) -> str:
    """The name of a constant of [width] that is the norm's factor."""
    width = added.shape(norm.source)[-1]
    values = added.index.constant(norm.gamma) if norm.gamma else None
    if values is not None and values.shape == (width,):
        return norm.gamma
    dtype = helper.tensor_dtype_to_np_dtype(element_type(added.index, norm.source))
    factor = np.ones(width, dtype) if values is None else np.broadcast_to(values.reshape(-1), width)
    return added.constant(f"{norm.last.output[0]}_gamma", np.ascontiguousarray(factor))
