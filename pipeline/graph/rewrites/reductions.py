"""Reductions and running sums that QNN does not have, or that HTP computes wrongly.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import numpy as np

from pipeline.graph.ir.index import opset
from pipeline.graph.ir.reductions import axes_are_an_input, keeps_axes, reduced_axes
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op
from pipeline.graph.rewrites.make_masks_finite import HUGE

_SMALLEST = 2.0**-126
"""The smallest normal float32: an input of zeros stays zeros, as in ONNX Runtime."""
_OPPOSITE = {"ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}


@lower("ReduceSumSquare", "ReduceL1", "ReduceLogSum", "LpNormalization", of=F32)
def decompose_reductions(n: Node) -> GraphValue | None:
    """Write these with ReduceSum; QNN leaves each to the CPU, a partition more each time. Left alone: computed axes.

    ``ReduceSumSquare(x) -> sum(x * x)``, ``ReduceL1(x) -> sum(|x|)``, ``ReduceLogSum(x) -> Log(sum(x))`` and
    ``LpNormalization(x, p=1) -> x / Max(sum(|x|), 2**-126)``.
    """
    x = n[0]
    if n.kind == "LpNormalization":
        axis = n.attr("axis", -1) % len(x.shape)
        return x / op.Max(op.ReduceSum(op.Abs(x), [axis], keepdims=1), _SMALLEST) if n.attr("p", 2) == 1 else None
    axes = reduced_axes(n.index, n.proto)
    if axes is None:
        return None
    terms = {"ReduceL1": op.Abs, "ReduceSumSquare": lambda x: x * x}.get(n.kind, lambda x: x)(x)
    total = op.ReduceSum(terms, axes, keepdims=int(keeps_axes(n.proto)))
    return op.Log(total) if n.kind == "ReduceLogSum" else total


@lower("ArgMax", "ArgMin")
def find_last_extremes(n: Node) -> GraphValue | None:
    """``ArgMax(x, select_last_index=1) -> n - 1 - ArgMax(x from behind)``; QNN leaves that attribute to the CPU."""
    how = n.attributes
    if not how.pop("select_last_index", 0):
        return None
    axis = how.get("axis", 0) % len(n[0].shape)
    return op.Sub(np.array(n[0].shape[axis] - 1), getattr(op, n.kind)(n[0].from_behind(axis), **how))


@lower("CumSum", of=F32)
def sum_along_last_axis(n: Node) -> GraphValue | None:
    """``CumSum(x, axis) -> Transpose(CumSum(Transpose(x), last))`` for a constant axis that is not the last.

    In 8 bits HTP adds the zero points up as well, along every axis but the last: -4.40 for 0.25. 16 bits are right.
    """
    given, rank = n[1].scalar, len(n.y.shape)
    if given is None or int(given) % rank == rank - 1:
        return None
    axis = int(given) % rank
    order = [each for each in range(rank) if each != axis] + [axis]
    summed = op.CumSum(n[0].transpose(*order), np.array(rank - 1), **n.attributes)
    return summed.transpose(*(order.index(each) for each in range(rank)))


@lower("CumSum")
def sum_forwards(n: Node) -> GraphValue | None:
    """Sums from the back turn the axis around; exclusive ones put a zero before the sums of all but the last.

    QNN leaves a CumSum with either attribute to the CPU. Left alone: computed axes, exclusive sums of one place.
    """
    how = {name for name, value in n.attributes.items() if value}
    given, dims = n[1].scalar, n.y.shape
    if given is None or not how or ("exclusive" in how and dims[int(given)] == 1):
        return None
    axis, made = int(given) % len(dims), n[0]
    if "reverse" in how:
        made = made.from_behind(axis)
    if "exclusive" in how:
        made = made.slice([0], [dims[axis] - 1], [axis])
    made = op.CumSum(made, n[1])
    if "exclusive" in how:
        made = op.Concat(np.zeros((*dims[:axis], 1, *dims[axis + 1 :]), n.y.dtype), made, axis=axis)
    return made.from_behind(axis) if "reverse" in how else made


@lower("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
def drop_unit_axes(n: Node) -> GraphValue | None:
    """``ReduceSum(x, [1, 2]) -> Reshape(ReduceSum(x, [1]))`` where axis 2 has one element.

    HTP gives 0 for a ReduceMax over a last axis of one element and others, and for a ReduceSum of a value that was
    converted from 8 to 16 bits: 0 dB where this gives 94 (v73 to v79), as for the duration of a TTS text encoder.
    Left alone: computed axes, and reductions over axes of one element only.
    """
    if n[0].name not in n.index.types or not n[0].is_float:
        return None
    dims, axes = n[0].shape, reduced_axes(n.index, n.proto) or ()
    real = [axis for axis in axes if dims[axis] != 1]
    if not real or len(real) == len(axes):
        return None
    keeps, reduce = n.attr("keepdims", 1), getattr(op, n.kind)
    name = "" if keeps else n.name
    made: GraphValue = (
        reduce(n[0], real, keepdims=keeps, name=name)
        if axes_are_an_input(n.index.model, n.proto)
        else reduce(n[0], keepdims=keeps, axes=real, name=name)
    )
    return made if keeps else made.reshape(*n.y.shape)


@lower(*_OPPOSITE)
def bound_masked_max(n: Node) -> bool:
    """``ReduceMax(Where(mask, x, -1e9)) -> ReduceMax(Where(mask, x, ReduceMin(x)))`` over the same axes, or opposite.

    No value is less than the least. With the filler, the encoding before the ReduceMax has no step left for x: 0 dB in
    16 bits, and -inf has no encoding. Left alone: a computed filler, or one below 10000; a Where that something else
    reads, or that broadcasts x.
    """
    where = n[0].maker("Where")
    if where is None or where.y.reader(n.kind) is None:
        return False
    for filler, at in ((1, 2), (2, 1)):
        array, x = where[filler].array, where[at]
        if array is None or array.dtype.kind != "f" or not array.size:
            continue
        beyond = (array <= -HUGE).all() if n.kind == "ReduceMax" else (array >= HUGE).all()
        if beyond and x.name in n.index.types and n.index.types[x.name] == n.index.types.get(where.y.name):
            more = {name: value for name, value in n.attributes.items() if name in ("axes", "noop_with_empty_axes")}
            return where.read(filler, getattr(op, _OPPOSITE[n.kind])(x, *n.inputs[1:], keepdims=1, **more))
    return False


@lower("LogSoftmax", "ReduceLogSumExp")
def decompose_log_sums(n: Node) -> GraphValue | None:
    """``LogSoftmax(x) -> d - Log(ReduceSum(Exp(d)))`` with ``d = x - ReduceMax(x)``, and so ReduceLogSumExp.

    HTP computes both wrongly in float16 where the values of a row are far apart, and leaves ReduceLogSumExp to the CPU
    in 16 bits (before and after; rows over as much as the first column says)::

        apart   LogSoftmax fp16      uint8          uint16        ReduceLogSumExp fp16
        80      65.9    69.6 dB      45.7  exact    87.5  93.5    72.5  72.5 dB
        120     67.0    70.2         46.7  57.9     93.1  92.5     3.2  76.7
        400      9.1    71.7         56.5  60.5     91.4  92.7    16.9  79.3

    Left alone: computed axes; LogSoftmax before opset 13; five dims, in which bound_exp can't bound the Exp.
    """
    x, version = n[0], opset(n.index.model)
    rank = len(x.shape)
    if version < 13 or not x.is_f32 or not 0 < rank <= 4:
        return None
    axes = reduced_axes(n.index, n.proto) if n.kind == "ReduceLogSumExp" else (n.attr("axis", -1) % rank,)
    if axes is None:
        return None
    largest = op.ReduceMax(x, axes, keepdims=1) if version >= 18 else op.ReduceMax(x, axes=axes, keepdims=1)
    distance = x - largest
    logarithm = op.Log(op.ReduceSum(op.Exp(distance), axes, keepdims=1))
    if n.kind == "LogSoftmax":
        return distance - logarithm
    return largest + logarithm if keeps_axes(n.proto) else op.Squeeze(largest + logarithm, axes)
