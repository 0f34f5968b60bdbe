"""Norms that exporters spell out."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.ir.index import opset
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op
from pipeline.graph.ir.spelled_norms import divided, kept_mean, squared

_RMS_OPSET = 23


@lower("ReduceMean", "ReduceSum")
def fuse_rms_norm(n: Node) -> bool:
    """``x * Reciprocal(Sqrt(ReduceMean(x ** 2, -1) + epsilon)) * gamma -> RMSNormalization(x, gamma)``.

    Also ``x * x`` for the power, ``x / root`` or ``x * sum ** -0.5`` for the reciprocal, a sum divided by the width, a
    mean whose axis was dropped and comes back, and factors in any order. Before opset 23 it is onnxruntime's
    SimplifiedLayerNormalization. Without a constant gamma, ones stand in its place.

    HTP (2.51, all architectures, emulated) has one operator for it. Spelled out, the squares have encodings of their
    own, overflow in float16, and some channels of a trained model are many times the others (SQNR, uint16 and
    float16)::

        largest channel   spelled out        fused
        1                 64.0    64.8 dB    81.7    68.6 dB
        20                43.7    64.4       69.9    69.0
        300               35.0    27.9       45.9    66.7
        3000              25.6    -1.4       25.6    67.9

    With a Reciprocal and activations of 0.05 it has 1 dB spelled out. Left alone: a mean over other axes; a value in
    between that something else reads; another term than a positive constant.
    """
    source = squared(n.index, n.proto.input[0])
    if source is None or source not in n.index.types:
        return False
    x = GraphValue(n.added, source)
    if reduced_axes(n.index, n.proto) != (len(x.shape) - 1,):
        return False
    mean = kept_mean(n.index, n.proto)
    shifted = GraphValue(n.added, mean).reader("Add") if mean else None
    if mean is None or shifted is None:
        return False
    epsilon, normed = shifted.other(GraphValue(n.added, mean)).scalar, divided(n.index, shifted.y.name)
    if epsilon is None or not 0 < epsilon < np.inf or normed is None:
        return False
    last = Node(n.added, normed)
    if not (last[0].name == source if last.kind == "Div" else last.reads(x)):
        return False
    scaled = last.y.reader("Mul")
    gamma = scaled.other(last.y) if scaled else None
    if scaled and gamma and _is_gamma(gamma, x.shape):
        last = scaled
    else:
        gamma = None
    fused = op.RMSNormalization if opset(n.index.model) >= _RMS_OPSET else op.SimplifiedLayerNormalization
    n.added.stem = last.y.name
    return last.become(fused(x, _factor(last, gamma, x), axis=-1, epsilon=epsilon, name=last.name))


def _is_gamma(gamma: GraphValue, dims: tuple[int, ...]) -> bool:
    if not gamma.is_constant:
        return False
    own = gamma.shape
    return (not own or own[-1] in (1, dims[-1])) and len(own) <= len(dims) and set(own[:-1]) <= {1}


def _factor(last: Node, gamma: GraphValue | None, x: GraphValue) -> GraphValue:
    """A constant of [width] that is the norm's factor."""
    width, values = x.shape[-1], gamma.array if gamma else None
    if gamma and values is not None and values.shape == (width,):
        return gamma
    factor = np.ones(width, x.dtype) if values is None else np.broadcast_to(values.reshape(-1), width)
    return last.constant(np.ascontiguousarray(factor), f"{last.y.name}_gamma")


@lower("BatchNormalization")
def decompose_batch_norm(n: Node) -> GraphValue | None:
    """``BatchNormalization(x, gamma, beta, mean, variance) -> x * factor + offset`` for fixed statistics.

    QNN EP 2.7 makes factor and offset itself, from constants that were quantized one by one, and quantizes them again.
    Now and then the largest offset wraps around: that channel is wrong on the chip (-2 dB against 79 for the others,
    with offsets from -1 to 1 in 16 even steps), while the QDQ model on the CPU is right. Left alone: training mode, and
    computed statistics.
    """
    given = [each.array for each in n.inputs[1:] if each is not None]
    known = [each.astype(np.float64) for each in given if each is not None]
    if len(known) < 4 or len(n.proto.output) > 1 or given[0] is None:
        return None
    gamma, beta, mean, variance = known
    factor = gamma / np.sqrt(variance + n.attr("epsilon", 1e-5))
    per_channel = (-1, *(1,) * (len(n[0].shape) - 2))
    scale, offset = (each.astype(given[0].dtype).reshape(per_channel) for each in (factor, beta - mean * factor))
    return op.Add(op.Mul(n[0], scale), offset, name=n.name)


@lower("GroupNormalization", "MeanVarianceNormalization", of=F32)
def convert_group_norms(n: Node) -> GraphValue | None:
    """Write norms of groups of channels with InstanceNormalization, where a group is one channel, as PyTorch does.

    ``GroupNormalization(x, s, b) -> Reshape(InstanceNormalization(Reshape(x))) * s + b``, and
    ``MeanVarianceNormalization(x) -> InstanceNormalization(x)`` of one sample over all axes but the channels. The first
    ends the compiler's process (QNN EP 2.7), the second is left to the CPU; so they have 77 and 84 dB in 16 bits. Left
    alone: scales that are computed for each group (before opset 21).
    """
    dims = n.y.shape
    if len(dims) < 3:
        return None
    if n.kind == "MeanVarianceNormalization":
        others = {axis for axis in range(len(dims)) if axis != 1}
        axes = {axis % len(dims) for axis in n.attr("axes", [0, 2, 3])}
        if dims[0] != 1 or not others - {0} <= axes <= others:
            return None
        return op.InstanceNormalization(n[0], *_ones_and_zeros(dims[1]), epsilon=1e-9)
    if not all(each.is_constant or each.shape == dims[1:2] for each in (n[1], n[2])):
        return None
    groups = n.attr("num_groups", 0)
    grouped = n[0].reshape(dims[0], groups, -1)
    normed = op.InstanceNormalization(grouped, *_ones_and_zeros(groups), epsilon=n.attr("epsilon", 1e-5))
    scale, bias = (_per_channel(n, each, dims) for each in (n[1], n[2]))
    return normed.reshape(*dims) * scale + bias


def _per_channel(n: Node, value: GraphValue, dims: tuple[int, ...]) -> GraphValue:
    """A scale or bias as [channels, 1, ...]; a constant of before opset 21 has one for each group."""
    array, column = value.array, (-1, *(1,) * (len(dims) - 2))
    if array is None:
        return value.reshape(*column)
    return n.constant(np.repeat(array, dims[1] // array.size).reshape(column))


def _ones_and_zeros(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.ones(count, np.float32), np.zeros(count, np.float32)


@lower("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def normalize_along_last_axis(n: Node) -> GraphValue | None:
    """Give a norm one axis, and a scale and bias of one number for each place along it.

    A norm over several axes is of a Reshape; constants are spread over the normalized axes, flat; a computed scale (of
    LayerNormalization), or one of more dims, follows ones as a Mul, and the bias as an Add.

    QNN EP 2.7 leaves a norm over several axes to the CPU, and a LayerNormalization whose scale has more dims than one,
    or is computed in integers. RMSNormalization with a scale of one number compiles, and is wrong: -90 dB in float16, 0
    dB in integers; with a scale of [4, 6] it is left to the CPU. A LayerNormalization with that is taken, at 44 to 50
    dB in 16 bits, as its scale has 8. Left alone: mean and deviation that are read; an RMSNormalization whose scale of
    one dim is computed, which QNN takes.
    """
    given, x = n.attributes, n[0]
    factors = [each for each in n.inputs[1:] if each is not None]
    dims = x.shape
    axis = given.get("axis", -1) % len(dims)
    flat, is_last, takes_computed = prod(dims[axis:]), axis == len(dims) - 1, n.kind != "LayerNormalization"
    fits = [each.shape == (flat,) and (takes_computed or each.is_constant) for each in factors]
    if any(name in n.index.readers or name in n.index.outputs for name in n.proto.output[1:]) or (
        is_last and all(fits)
    ):
        return None
    inside: list[NDArray[Any]] = []
    for factor in factors:
        values = _spread(factor.array, dims[axis:])
        if values is None:
            break  # the bias of a scale that is apart is apart, too
        inside.append(values)
    apart, start = factors[len(inside) :], len(inside)
    rows = x if is_last else x.reshape(*dims[:axis], flat)
    constants = inside or [np.ones(flat, x.dtype)]
    made: GraphValue = getattr(op, n.kind)(rows, *constants, name=n.name, **given | {"axis": -1})
    if not is_last:
        made = made.reshape(*dims)
    for kind, factor in zip(("Mul", "Add")[start : len(factors)], apart, strict=True):
        made = getattr(op, kind)(made, factor)
    return made


def _spread(values: NDArray[Any] | None, over: tuple[int, ...]) -> NDArray[Any] | None:
    """A scale or bias as one number for each place of the normalized axes `over`, flat; None if it has others."""
    before = max(values.ndim - len(over), 0) if values is not None else 0
    if values is None or any(size != 1 for size in values.shape[:before]):
        return None
    return np.ascontiguousarray(np.broadcast_to(values.reshape(values.shape[before:]), over)).reshape(-1)


@lower("ReduceMean", "ReduceSum")
def fuse_layer_norm(n: Node) -> bool:
    """``(x - mean) / Sqrt(mean of squares + epsilon) * gamma + beta -> LayerNormalization(x, gamma, beta)``.

    For opsets before 17 and for channels that are not last, with a Transpose on each side. Also a product for the
    power; a Reciprocal, ``1 / root`` or a power of -0.5 for the quotient; a variance whose axis was dropped and comes
    back, as torch's dynamo exporter writes `var`; gamma, beta or both may be missing.

    Spelled out, squares and variances have encodings of their own. That is exact enough while all rows are equally
    loud, but a row 40 dB below the loudest, a quiet frame among speech, keeps a few steps of its variance (16 bits,
    SQNR, loudness of the rows from e^-s to e^s times a common one)::

        s                              0      2      3
        spelled out, as QDQ model     79     60     15 dB
        the same over channels first  80     52      0 dB
        LayerNormalization            56     56     53 dB

    The 56 are those of gamma, which QNN takes in 8 bits. Left alone: a variance that something else reads; one that is
    scaled, as of n - 1 samples; an epsilon that is added to the root; several axes, over which QNN has no
    LayerNormalization.
    """
    axes, centred = reduced_axes(n.index, n.proto), squared(n.index, n[0].name)
    if axes is None or len(axes) != 1 or centred is None or n[0].reader(n.kind) is None:
        return False
    x, mean = _centred(GraphValue(n.added, centred), axes), kept_mean(n.index, n.proto)
    shifted = GraphValue(n.added, mean).reader("Add") if x is not None and mean is not None else None
    if x is None or mean is None or shifted is None:
        return False
    epsilon, normed = shifted.other(GraphValue(n.added, mean)).scalar, divided(n.index, shifted.y.name)
    if epsilon is None or not 0 < epsilon < np.inf or normed is None:
        return False
    last, axis, dims = Node(n.added, normed), axes[0], x.shape
    if all((found := _centred(each, axes)) is None or found.name != x.name for each in (last[0], last[1])):
        return False
    gamma, last = _parameter(last, "Mul", dims, axis)
    beta, last = _parameter(last, "Add", dims, axis)
    n.added.stem = last.y.name
    parameters = [
        last.constant((np.ones(dims[axis]) if gamma is None else gamma).astype(x.dtype), f"{last.y.name}_gamma")
    ]
    if beta is not None:
        parameters.append(last.constant(beta.astype(x.dtype), f"{last.y.name}_beta"))
    how: dict[str, Any] = {"axis": -1, "epsilon": epsilon}
    if axis == len(dims) - 1:
        return last.become(op.LayerNormalization(x, *parameters, name=last.name, **how))
    order = [each for each in range(len(dims)) if each != axis] + [axis]
    turned = op.LayerNormalization(x.transpose(*order), *parameters, **how)
    return last.become(op.Transpose(turned, perm=[order.index(each) for each in range(len(dims))], name=last.name))


def _centred(value: GraphValue, axes: tuple[int, ...]) -> GraphValue | None:
    """The x of x - mean(x)."""
    node = value.maker("Sub")
    mean = node[1].maker("ReduceMean") if node else None
    if node is None or mean is None or mean[0].name != node[0].name or not keeps_axes(mean.proto):
        return None
    return node[0] if reduced_axes(node.index, mean.proto) == axes else None


def _parameter(last: Node, kind: str, dims: tuple[int, ...], axis: int) -> tuple[NDArray[Any] | None, Node]:
    """The constant of the only reader as one number for each element along the axis, and that reader, if it has one."""
    reader = last.y.reader(kind)
    array = reader.other(last.y).array if reader else None
    if reader is None or array is None or array.ndim > len(dims):
        return None, last
    aligned = (1,) * (len(dims) - array.ndim) + array.shape
    if any(size != 1 for at, size in enumerate(aligned) if at != axis):
        return None, last
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), dims[axis])), reader
