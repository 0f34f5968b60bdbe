"""Fuse the LayerNorm that exporters spell out, for opsets before 17 and for channels that aren't last.

Before (Mul(centred, centred) for Pow; Mul by a Reciprocal, Div(1, root) or Pow(sum, -0.5) for Div; a variance whose
axis was dropped and comes back, as torch's dynamo exporter writes `var`; gamma, beta or both may be missing)::

    centred = Sub(x, ReduceMean(x, axis))
    root = Sqrt(Add(ReduceMean(Pow(centred, 2), axis), epsilon))
    Add(Mul(Div(centred, root), gamma), beta)

After, with a Transpose on each side if the axis isn't the last::

    LayerNormalization(x, gamma, beta)

Spelled out, squares and variances get encodings of their own. That is exact enough while all rows are equally loud, but
a row 40 dB below the loudest, a quiet frame among speech, keeps a few steps of its variance (16 bits, SQNR, loudness of
the rows from e^-s to e^s times a common one)::

    s                              0      2      3
    spelled out, as QDQ model     79     60     15 dB
    the same over channels first  80     52      0 dB
    LayerNormalization            56     56     53 dB

The 56 are those of gamma, which QNN takes in 8 bits. The result keeps its name. Left alone: a variance that something
else reads; one that is scaled, as of n - 1 samples; an epsilon that is added to the root; several axes, over which QNN
has no LayerNormalization.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from pipeline.graph.ir.index import GraphIndex, is_op, prune
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes
from pipeline.graph.ir.spelled_norms import divided, kept_mean, squared
from pipeline.graph.ir.traverse import other_input


@dataclass(frozen=True)
class _Norm:
    source: str
    axis: int
    epsilon: float
    last: NodeProto
    """The node whose place and result the fused one takes."""
    gamma: NDArray[np.floating] | None = None
    beta: NDArray[np.floating] | None = None
    """One number for each element along the axis."""


def apply(model: ModelProto, folder: Path) -> int:
    """Fuse every LayerNorm that is spelled out; returns their number."""
    fused = _apply(model, folder)
    if fused:
        prune(model)  # or fuse_rms_norm finds one in what is left over
    return fused


@each_node
def _apply(added: Additions, node: NodeProto) -> bool:
    norm = _match(added.index, node) if is_op(node, "ReduceMean", "ReduceSum") else None
    if norm is None:
        return False
    _fuse(added.index, added, norm)
    added.nodes[-1].name = norm.last.name
    return True


def _match(index: GraphIndex, variance: NodeProto) -> _Norm | None:
    """The LayerNorm that this mean of squares is part of."""
    axes = reduced_axes(index, variance)
    centred = squared(index, variance.input[0])
    alone = index.sole_reader(variance.input[0], variance.op_type) is not None
    source = _centred(index, centred, axes) if alone and centred is not None and axes else None
    mean = kept_mean(index, variance) if source is not None else None
    shifted = index.sole_reader(mean, "Add") if mean is not None else None
    if source is None or mean is None or axes is None or len(axes) != 1 or shifted is None:
        return None
    epsilon = index.scalar(other_input(shifted, mean))
    if epsilon is None or not 0 < epsilon < math.inf:
        return None
    normed = divided(index, shifted.output[0])
    if normed is None or not any(_centred(index, name, axes) == source for name in normed.input):
        return None
    return _with_beta(index, _with_gamma(index, _Norm(source, axes[0], epsilon, normed)))


def _centred(index: GraphIndex, name: str, axes: tuple[int, ...] | None) -> str | None:
    """The x of x - mean(x)."""
    node = index.maker(name, "Sub")
    mean = index.maker(node.input[1], "ReduceMean") if node is not None else None
    if node is None or mean is None or mean.input[0] != node.input[0] or not keeps_axes(mean):
        return None
    if reduced_axes(index, mean) != axes:
        return None
    return str(node.input[0])


def _with_gamma(index: GraphIndex, norm: _Norm) -> _Norm:
    scaled = index.sole_reader(norm.last.output[0], "Mul")
    if scaled is None:
        return norm
    gamma = _per_element(index, other_input(scaled, norm.last.output[0]), norm)
    return norm if gamma is None else replace(norm, last=scaled, gamma=gamma)


def _with_beta(index: GraphIndex, norm: _Norm) -> _Norm:
    moved = index.sole_reader(norm.last.output[0], "Add")
    if moved is None:
        return norm
    beta = _per_element(index, other_input(moved, norm.last.output[0]), norm)
    return norm if beta is None else replace(norm, last=moved, beta=beta)


def _per_element(index: GraphIndex, name: str, norm: _Norm) -> NDArray[np.floating] | None:
    """A constant as one number for each element along the axis; None if it differs along others, or isn't one."""
    array = index.constant(name)
    dims = shape_of(index.types[norm.source])
    if array is None or array.ndim > len(dims):
        return None
    aligned = (1,) * (len(dims) - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(aligned) if axis != norm.axis):
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), dims[norm.axis]))


def _fuse(index: GraphIndex, added: Additions, norm: _Norm) -> None:
    kind, result = index.types[norm.source], norm.last.output[0]
    dims, dtype = shape_of(kind), helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    gamma = np.ones(dims[norm.axis]) if norm.gamma is None else norm.gamma
    parameters = [added.constant(f"{result}_gamma", gamma.astype(dtype))]
    if norm.beta is not None:
        parameters.append(added.constant(f"{result}_beta", norm.beta.astype(dtype)))
    if norm.axis == len(dims) - 1:
        added.replace("LayerNormalization", norm.source, *parameters, out=result, axis=-1, epsilon=norm.epsilon)
        return
    order = [axis for axis in range(len(dims)) if axis != norm.axis] + [norm.axis]
    turned = added.op("Transpose", norm.source, out=f"{result}_channels_last", perm=order)
    normed = added.op("LayerNormalization", turned, *parameters, out=f"{result}_normed", axis=-1, epsilon=norm.epsilon)
    added.replace("Transpose", normed, out=result, perm=[order.index(axis) for axis in range(len(dims))])
