"""Values without elements, such as a cache that nothing is in yet: what is left of a model without them.

All values of one empty shape are the same, so a node that makes one is a constant, and a Concat does without it. What
reads one in any other way is refused: QNN has no empty tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper, numpy_helper

from pipeline.contracts.ingest import GivenConstant
from pipeline.errors import ModelError
from pipeline.graph.files.model_file import value_signature
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import Types, is_static, shape_of, spell
from pipeline.graph.ir.traverse import label, reads

_NO_EMPTY = "QNN has no empty tensors"


def fix_empty_inputs(model: ModelProto) -> dict[str, GivenConstant]:
    """Make each input that is declared without elements a constant: it has one value only. Returns those by name.

    A dim of it that is not fixed counts as one, which is of no account where a Concat reads it.

    Raises:
        ModelError: such an input has other dims that are not fixed, and more than a Concat reads it; or all are such.
    """
    graph, found = model.graph, dict[str, GivenConstant]()
    initialized = {tensor.name for tensor in graph.initializer}
    for declared in graph.input:
        dims = declared.type.tensor_type.shape.dim
        zeros = [axis for axis, dim in enumerate(dims) if dim.HasField("dim_value") and dim.dim_value == 0]
        if not zeros or declared.name in initialized:
            continue
        for node in graph.node if any(dim.dim_value < 1 and not dim.HasField("dim_value") for dim in dims) else ():
            if declared.name in reads(node) and not _joins(node, zeros, len(dims)):
                raise _read(node, declared.name, declared.type)
        shape = tuple(max(dim.dim_value, 0) if dim.HasField("dim_value") else 1 for dim in dims)
        kind = value_signature(declared).dtype
        graph.initializer.append(numpy_helper.from_array(np.empty(shape, kind), declared.name))
        found[declared.name] = GivenConstant(kind, shape, 0)
    if found and all(declared.name in found or declared.name in initialized for declared in graph.input):
        raise ModelError(
            "no input of the model has elements",
            where=", ".join(f"{value.name!r} {spell(value.type)}" for value in graph.input if value.name in found),
            why=f"{_NO_EMPTY}: an input with a dim of 0 is left out, and nothing is left to compute from",
            remedy="write that dim in the model as a name, which the config gives lengths, or as 1",
        )
    return found


def leave_out_empties(node: NodeProto, types: Types) -> None:
    """Take operands without elements out of a Concat. One of nothing else stays, as long as all of them."""
    if is_op(node, "Concat"):
        kept = [name for name in node.input if not _is_empty(types.get(name))] or node.input[:]
        alone = len(kept) == 1 < len(node.input)
        node.input[:] = kept
        if alone:
            node.op_type = "Identity"
            del node.attribute[:]


def empty_results(
    node: NodeProto, types: Mapping[str, TypeProto] | None, *, every: bool = True
) -> dict[str, NDArray[Any]]:
    """The values without elements that a node makes; with `every`, only if it makes nothing else."""
    made = {name: types.get(name) for name in node.output if name} if types else {}
    if every and not all(map(_is_empty, made.values())):
        return {}
    return {
        name: np.empty(shape_of(kind), helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))
        for name, kind in made.items()
        if kind is not None and _is_empty(kind)
    }


def leave_out_empty_parts(
    node: NodeProto, types: Mapping[str, TypeProto] | None, add: Callable[[str, NDArray[Any]], None]
) -> None:
    """Take results without elements out of a Split; `add` makes constants of them, and of the sizes of the others.

    Left as it is: a Split of nothing else, as all that it makes is known; and one that has a result without a name, and
    so without a type that tells its size.
    """
    if types is None or not is_op(node, "Split"):
        return
    empties = [_is_empty(types.get(name)) for name in node.output if name]
    if all(empties) or not any(empties) or "" in node.output:
        return
    axis = integer(node, "axis")
    for name, values in empty_results(node, types, every=False).items():
        add(name, values)
    kept = [name for name in node.output if not _is_empty(types[name])]
    node.output[:] = kept
    if len(kept) == 1:
        node.op_type = "Identity"
        node.input[:] = node.input[:1]
        del node.attribute[:]
        return
    sizes = f"{kept[0]}_sizes"
    add(sizes, np.array([shape_of(types[name])[axis] for name in kept], np.int64))
    node.input[:] = [node.input[0], sizes]
    for attribute in [each for each in node.attribute if each.name == "num_outputs"]:
        node.attribute.remove(attribute)


def check_no_empties(node: NodeProto, types: Types, made: Mapping[str, TypeProto]) -> None:
    """Refuse a node that stays and reads or makes a value without elements.

    Empty lists of numbers that only say how, as the bounds of a Resize that has others, are none.

    Raises:
        ModelError: with the node and the value.
    """
    for position, name in enumerate((*node.input, *node.output)):
        kind = made.get(name) or types.get(name)
        if name and kind is not None and _is_empty(kind):
            says_how = 0 < position < len(node.input) and len(shape_of(kind)) == 1
            if not says_how:
                raise _read(node, name, kind)


def check_output(declared: ValueInfoProto, kind: TypeProto, *, alone: bool) -> None:
    """Refuse an output without elements; `alone` says that the model has no other.

    Raises:
        ModelError: with its name.
    """
    if _is_empty(kind):
        leave_out = "leave it out: with cut, and the names of the other outputs, in the component's config; or "
        raise ModelError(
            f"output {declared.name!r} has no elements: {spell(kind)}",
            why=_NO_EMPTY,
            remedy=f"{'' if alone else leave_out}export the model with lengths of 1 and more",
        )


def _is_empty(kind: TypeProto | None) -> bool:
    return kind is not None and 0 in shape_of(kind) and is_static(kind)  # a dim that is no number reads as 0, too


def _joins(node: NodeProto, axes: list[int], rank: int) -> bool:
    return is_op(node, "Concat") and integer(node, "axis") % rank in axes


def _read(node: NodeProto, name: str, kind: TypeProto | None) -> ModelError:
    return ModelError(
        f"node {label(node)} has an empty tensor",
        where=f"its {'output' if name in node.output else 'input'} {name!r} {spell(kind)}",
        why=f"{_NO_EMPTY}: a dim of 0 is left out where a Concat reads it, and here something else does",
        remedy="export the model with a length of 1 or more there, or without this input; a cache that is empty at"
        " first may be a model of its own without it",
    )
