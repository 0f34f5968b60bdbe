"""Count negative indices from the front.

Before (`indices` computed, and not known to be 0 or more)::

    GatherElements(x, indices)

After (n is the size of the axis)::

    GatherElements(x, Where(Less(indices, 0), Add(indices, n), indices))

The same for Gather, ScatterElements and OneHot, and for ScatterND, whose indices have a size for each place. An index
of OneHot below -n is outside of the axis, and nothing is added to it. HTP (2.51,
emulated) takes a computed index as it is: of a negative one GatherElements makes 0, scatters and OneHot write nothing,
and a Gather is right in float16 and makes the lowest number of its encoding in integers. Constants are right, and so is
GatherND.

Left alone: constants; what the operators make whose results are never negative, and what is made of that by moving and
adding; indices of a Gather that are an input of the model, or its elements moved: rows of a table, which nobody counts
from its end; manifest.json has the range of such ids, and the runtime refuses others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import integer, settings
from pipeline.graph.ir.index import GraphIndex, element_type, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import MOVES_FIRST, VIEWS
from pipeline.graph.ir.traverse import input_at

_PLACES = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1, "ScatterND": 1, "OneHot": 0}
"""Operator -> the position of its indices."""

_NEVER_NEGATIVE = ("Abs", "ArgMax", "ArgMin", "NonZero", "Relu", "Shape", "Size")
_OF_ALL = ("Add", "Concat", "Cast", "Div", "Max", "Min", "Mul", "ReduceSum", "CumSum", "Where")
"""Never negative if no input is."""


def apply(model: ModelProto, folder: Path) -> int:
    """Put this in front of every such operator; returns the number of operators."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    known: dict[str, bool] = {}
    counted: dict[tuple[str, bytes, bool], str] = {}
    found = [node for node in model.graph.node if _may_count_from_the_end(index, node, known)]
    for node in found:
        position = _PLACES[node.op_type]
        sizes = _sizes(index, node)
        name = node.input[position]
        key = (name, sizes.tobytes(), node.op_type == "OneHot")
        if key not in counted:
            counted[key] = _counted(index, added, name, sizes, may_be_outside=is_op(node, "OneHot"))
        inputs = [counted[key] if at == position else given for at, given in enumerate(node.input)]
        attributes = settings(node)
        added.replace(node.op_type, *inputs, out=node.output[0], **attributes)
    if found:
        added.join()
    return len(found)


def _counted(index: GraphIndex, added: Additions, name: str, sizes: NDArray[np.int64], *, may_be_outside: bool) -> str:
    dtype = helper.tensor_dtype_to_np_dtype(element_type(index, name))
    zero = added.number(f"{name}_zero", 0, dtype)
    size = added.constant(f"{name}_size", sizes.astype(dtype))
    if may_be_outside:  # what is below the axis stays there, where CPU and HTP write nothing
        outside = added.op("Less", name, added.constant(f"{name}_least", (-sizes).astype(dtype)), out=f"{name}_outside")
        size = added.op("Where", outside, zero, size, out=f"{name}_step")
    negative = added.op("Less", name, zero, out=f"{name}_negative")
    return added.op("Where", negative, added.op("Add", name, size, out=f"{name}_turned"), name, out=f"{name}_counted")


def _sizes(index: GraphIndex, node: NodeProto) -> NDArray[np.int64]:
    """What is added to a negative index, or to those of each place."""
    if is_op(node, "OneHot"):
        depth = index.constant(node.input[1])
        assert depth is not None
        return np.asarray(depth, np.int64).reshape(())
    dims = _dims(index, node.input[0])
    if is_op(node, "ScatterND"):
        return np.array(dims[: _dims(index, node.input[1])[-1]], np.int64)
    return np.array(dims[integer(node, "axis")], np.int64)


def _dims(index: GraphIndex, name: str) -> tuple[int, ...]:
    tensor = index.initializers.get(name)
    return tuple(tensor.dims) if tensor is not None else shape_of(index.types[name])


def _may_count_from_the_end(index: GraphIndex, node: NodeProto, known: dict[str, bool]) -> bool:
    if not is_op(node, *_PLACES):
        return False
    name = node.input[_PLACES[node.op_type]]
    if element_type(index, name) not in (TensorProto.INT32, TensorProto.INT64) or name in index.initializers:
        return False
    if is_op(node, "OneHot") and node.input[1] not in index.initializers:
        return False
    if is_op(node, "Gather") and _is_given(index, name):
        return False
    return not _is_never_negative(index, name, known)


def _is_given(index: GraphIndex, name: str) -> bool:
    """Whether a value is an input of the model, or its elements moved."""
    maker = index.makers.get(name)
    while maker is not None and is_op(maker, "Cast", *MOVES_FIRST):
        if maker.input[0] in index.initializers:
            return False
        name = maker.input[0]
        maker = index.makers.get(name)
    return maker is None


def _is_never_negative(index: GraphIndex, name: str, known: dict[str, bool]) -> bool:
    """Whether every element is 0 or more, whatever the model is given; what `known` has was found before."""
    waiting = [name]
    while waiting:
        value = waiting[-1]
        needed = [each for each in _rest_on(index, value) or () if each not in known]
        if value not in known and needed:
            waiting += needed
            continue
        known.setdefault(value, _follows(index, value, known))
        waiting.pop()
    return known[name]


def _rest_on(index: GraphIndex, name: str) -> list[str] | None:
    """The values of which a value is never negative if none, or one, of them is; None if nothing can be said."""
    node = index.makers.get(name)
    if node is None:
        return None
    if is_op(node, *MOVES_FIRST) or (is_op(node, "Mod") and _is_plain_mod(node)):
        return [node.input[1 if node.op_type == "Mod" else 0]]
    if is_op(node, "Clip"):
        return [node.input[1]] if input_at(node, 1) else None
    if is_op(node, "ReduceSum", "CumSum"):
        return [node.input[0]]
    if is_op(node, *_OF_ALL):
        return [each for each in node.input[1 if node.op_type == "Where" else 0 :] if each]
    return None


def _is_counted(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node does what this rewrite writes, perhaps over fewer dims."""
    if not is_op(node, "Where"):
        return False
    negative = index.maker(_behind_views(index, node.input[0]), "Less")
    turned = index.maker(_behind_views(index, node.input[1]), "Add")
    kept = _behind_views(index, node.input[2])
    return (
        negative is not None
        and turned is not None
        and _behind_views(index, negative.input[0]) == kept
        and index.scalar(negative.input[1]) == 0
        and kept in (_behind_views(index, name) for name in turned.input)
    )


def _behind_views(index: GraphIndex, name: str) -> str:
    """What has the same elements in the same order, before anything reshaped it."""
    while (maker := index.maker(name, *VIEWS)) is not None:
        name = maker.input[0]
    return name


def _is_plain_mod(node: NodeProto) -> bool:
    """Whether a Mod has the sign of its divisor."""
    return not integer(node, "fmod")


def _follows(index: GraphIndex, name: str, known: dict[str, bool]) -> bool:
    constant = index.constant(name)
    if constant is not None:
        return bool((constant >= 0).all()) if constant.dtype.kind in "fiu" else True
    if element_type(index, name) in (TensorProto.BOOL, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32):
        return True
    node = index.makers.get(name)
    if node is None:
        return False
    if is_op(node, *_NEVER_NEGATIVE) or _is_counted(index, node) or (is_op(node, "TopK") and name == node.output[1]):
        return True
    needed = _rest_on(index, name)
    if needed is None:
        return False
    return (any if is_op(node, "Max") else all)(known[each] for each in needed)


AFTER = {
    "decompose_mod": "it writes what a Mod is, whose sign is known",
    "flatten_gather_nd": "it writes a Gather",
    "flatten_gathers": "it reshapes indices, which are counted as a row",
    "reverse_sequences": "it writes lookups by computed places",
}
