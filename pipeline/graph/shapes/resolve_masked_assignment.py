"""Assigning one value where a mask is set, written as a Where.

PyTorch's dynamo exporter spells ``x[mask] = value`` with the places the mask is set at. How many there are depends on
data, so that no bucket can fix their dims::

    ScatterND(x, Transpose(NonZero(mask)), Expand(value, how many there are))

which is

    Where(mask, value, x)          with axes appended to the mask where x has more

The mask has the leading dims of x, as PyTorch's indexing demands.

All encoders of speech that hide padded frames (wav2vec 2.0 and those made after it) do this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.ir.attributes import integers
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.shapes.folding import Constants

_SPREADS = (*VIEWS, "Expand", "Tile")
"""Operators that make of one number many times the same."""


def assign_by_mask(nodes: Sequence[NodeProto], constants: Constants) -> list[NodeProto]:
    """The nodes, with each such ScatterND replaced; what it read is left to be removed as dead.

    The constants that the new nodes read are added to `constants`.
    """
    makers = {name: node for node in nodes for name in node.output if name}
    taken = {*makers, *constants.types}
    result: list[NodeProto] = []
    for node in nodes:
        mask = _mask(node, makers)
        value = _uniform(node.input[2], makers, constants) if mask is not None else None
        if mask is None or value is None:
            result.append(node)
        else:
            result += _where(node, mask, value, constants, taken)
    return result


def _mask(node: NodeProto, makers: Mapping[str, NodeProto]) -> str | None:
    """The mask that tells where a ScatterND writes, and that it replaces what is there."""
    if not is_op(node, "ScatterND") or any(attribute.s not in (b"", b"none") for attribute in node.attribute):
        return None
    places = makers.get(node.input[1])
    if places is None or not is_op(places, "Transpose"):
        return None
    if integers(places, "perm", [1, 0]) != [1, 0]:
        return None
    found = makers.get(places.input[0])
    return str(found.input[0]) if found is not None and is_op(found, "NonZero") else None


def _uniform(name: str, makers: Mapping[str, NodeProto], constants: Constants) -> NDArray[Any] | None:
    """The one number that all elements of a value are, without dims; None if they may differ."""
    node = None
    while name not in constants:
        node = makers.get(name)
        if node is None or not is_op(node, *_SPREADS):
            break
        name = node.input[0]
    else:
        array = constants.value(name)
        return array.reshape(-1)[0] if array.size and (array == array.reshape(-1)[0]).all() else None
    if node is not None and is_op(node, "ConstantOfShape"):
        given = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        return np.array(0, np.float32) if given is None else numpy_helper.to_array(given).reshape(())
    return None


def _where(node: NodeProto, mask: str, value: NDArray[Any], constants: Constants, taken: set[str]) -> list[NodeProto]:
    """Nodes that bring the mask to the rank of what is written to, which isn't known yet, and select by it."""
    data, result = node.input[0], node.output[0]
    made: list[NodeProto] = []

    def name(part: str) -> str:
        unused, count = f"{result}_{part}", 1
        while unused in taken:
            count += 1
            unused = f"{result}_{part}_{count}"
        taken.add(unused)
        return unused

    def op(kind: str, *inputs: str, part: str, **attributes: Any) -> str:
        made.append(helper.make_node(kind, list(inputs), [name(part)], **attributes))
        return str(made[-1].output[0])

    filler = name("value")
    constants.add_array(filler, np.asarray(value))
    dims = op("Shape", mask, part="mask_dims")
    rank = op("Shape", dims, part="mask_rank")
    wanted = op("Shape", op("Shape", data, part="dims"), part="rank")
    one = numpy_helper.from_array(np.array([1]), "value")
    more = op("ConstantOfShape", op("Sub", wanted, rank, part="rank_more"), part="dims_more", value=one)
    target = op("Concat", dims, more, part="mask_target", axis=0)
    shaped = op("Reshape", op("Cast", mask, part="mask", to=TensorProto.BOOL), target, part="mask_shaped")
    return [*made, helper.make_node("Where", [shaped, filler, data], [result], node.name)]
