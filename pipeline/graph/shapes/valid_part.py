"""Which part of an axis is valid: the mask that a model itself blanks the padding of a bucket with.

A bucket pads an axis at its end, and nothing in a fixed shape says how much of it. Models that are made for padding
take a mask, or a length that they make a mask from, and multiply by it, or select by it, whatever must not see the
padding. A value is taken for the mask of an axis if the model uses it in that way, more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.ops import KEEPING

Follows = Mapping[str, Mapping[int, str]]
"""For each value, the dims that are as long as an axis of the bucket whatever the axis' length, and that axis."""

_NUMBERS = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8,
)  # fmt: skip
_LEAST_USES = 2
"""A number that scales one value may be anything; one that blanks several is a mask."""


@dataclass(frozen=True)
class Mask:
    """A value with one entry for each place of an axis (and for each sample of a batch), and what the entries mean.

    `valid_is_zero` tells masks that are 1 where there is padding.
    """

    value: str
    valid_is_zero: bool


def find_masks(index: GraphIndex, follows: Follows) -> dict[str, Mask]:
    """The mask of each axis that has one: of several the one that is used most, of equals the first in the graph."""
    uses: dict[str, Counter[Mask]] = {}
    for node in index.model.graph.node:
        for axis, mask in _blanks(index, follows, node):
            uses.setdefault(axis, Counter())[mask] += 1
    most = {axis: counted.most_common(1)[0] for axis, counted in uses.items()}
    return {axis: mask for axis, (mask, count) in most.items() if count >= _LEAST_USES}


def _blanks(index: GraphIndex, follows: Follows, node: NodeProto) -> Iterable[tuple[str, Mask]]:
    """The masks, each with its axis, that a node blanks a value by."""
    if is_op(node, "Mul"):
        factors, flipped = [0, 1], False
    elif is_op(node, "Where") and 0.0 in (_number(index, name) for name in node.input[1:]):
        factors, flipped = [0], _number(index, node.input[1]) == 0.0
    else:
        return
    for position in factors:
        name = node.input[position]
        others = [other for place, other in enumerate(node.input) if place != position]
        axis = _only_axis(index, follows, name)
        if axis is None or not any(_is_larger(index, follows, other, name, axis) for other in others):
            continue
        mask = _origin(index, name, flipped)
        if mask is not None and _only_axis(index, follows, mask.value) == axis:
            yield axis, mask


def _number(index: GraphIndex, name: str) -> float | None:
    """The value of a constant of one element; larger ones may lie in a blob that is still being written."""
    tensor = index.initializers.get(name)
    return index.scalar(name) if tensor is not None and np.prod(tensor.dims) == 1 else None


def _only_axis(index: GraphIndex, follows: Follows, name: str) -> str | None:
    """The axis of a value that has one entry for each of its places, and maybe a batch in front."""
    kind = index.types.get(name)
    if kind is None or name in index.initializers:
        return None
    long = [place for place, size in enumerate(shape_of(kind)) if size > 1]
    axes = [follows.get(name, {}).get(place) for place in long]
    if len(long) == 1 or (len(long) == 2 and long[0] == 0 and axes[0] is None):
        return axes[-1]
    return None


def _is_larger(index: GraphIndex, follows: Follows, name: str, mask: str, axis: str) -> bool:
    """Whether a value runs along the axis and has more than the mask has: features, say."""
    kind = index.types.get(name)
    if kind is None or axis not in follows.get(name, {}).values():
        return False
    return sum(size > 1 for size in shape_of(kind)) > sum(size > 1 for size in shape_of(index.types[mask]))


def _origin(index: GraphIndex, name: str, flipped: bool) -> Mask | None:
    """What a mask was made from by moving, converting and negating it: an input, or the result of a comparison."""
    while True:
        maker = index.makers.get(name)
        if maker is None:
            return Mask(name, flipped)
        kind = index.types[name].tensor_type.elem_type
        if is_op(maker, "Not"):
            name, flipped = maker.input[0], not flipped
        elif is_op(maker, "Sub") and _number(index, maker.input[0]) == 1.0:
            name, flipped = maker.input[1], not flipped
        elif is_op(maker, "Equal") and 0.0 in (_number(index, given) for given in maker.input):
            name = next(given for given in maker.input if _number(index, given) != 0.0)
            flipped = not flipped
        elif is_op(maker, *KEEPING):
            name = maker.input[0]
        else:
            return Mask(name, flipped) if kind == TensorProto.BOOL else None
        if index.types[name].tensor_type.elem_type not in (*_NUMBERS, TensorProto.BOOL):
            return None
