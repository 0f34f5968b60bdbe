"""Make padding that copies the end of a value copy the end of its valid part, not what a bucket padded it with.

``Pad`` in mode edge or reflect continues a value beyond its end, most often for a convolution. In a bucket that end is
padding itself, mostly zeros, so the last valid places see zeros where they saw copies of themselves when the model ran
on its own length (the stand-in of a text-to-speech model, 40 of 64 tokens: 33.8 dB).

After, with ``valid`` and ``last`` made once for each axis from the model's own mask of it::

    Pad <edge> (x)        Pad <edge> (Where (valid, x, ReduceSum (x * last)))
    Pad <reflect> (x)     Where (valid, y, the places of y before `last`, mirrored behind it)     y = Pad <reflect> (x)

``valid`` says for each place whether it is, or one behind it is, in the mask; ``last`` is 1 at the last such place and
0 elsewhere. On an input as long as the bucket nothing changes; on a shorter one the valid part is what it is without
padding. Places masked in between stay as they are.

This belongs to the shape step rather than to the rewrites: it changes what a model makes of the padded part of its
input, as it should.

Left alone, so that the padding rung tells what they cost: axes without a mask,
dims whose length is not the axis' own (behind a stride), mode wrap, and
padding in front, which copies what is valid.

Which part of an axis is valid: the mask that a model itself blanks the padding of a bucket with.

A bucket pads an axis at its end, and nothing in a fixed shape says how much of it. Models that are made for padding
take a mask, or a length that they make a mask from, and multiply by it, or select by it, whatever must not see the
padding. A value is taken for the mask of an axis if the model uses it in that way, more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import KEEPING
from pipeline.graph.ir.pads import pad_mode, pad_widths

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
    """The source of a mask that was moved, converted or negated: an input, or the result of a comparison."""
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


_LARGEST = 1 << 22
"""Elements of the largest constant that is made."""


def has_copying_pads(model: ModelProto) -> bool:
    """Whether there is anything to do, without looking at axes."""
    return any(_copying_mode(node) for node in model.graph.node)


def neutralize(model: ModelProto, folder: Path, follows: Follows) -> int:
    """Change `model` in place; returns the number of places changed (a Pad of two axes may be two).

    `model` is static, in topological order, with a type for every value; `folder` has its blobs.
    """
    index = GraphIndex(model, folder)
    masks = find_masks(index, follows)
    added = Additions(index)
    made: dict[tuple[str, int, int], _Places] = {}
    changed = 0
    for node in model.graph.node:
        mode = _copying_mode(node)
        source = node.input[0] if mode else ""
        for dim, before, after in _end_pads(index, node) if mode else ():
            mask = masks.get(follows.get(source, {}).get(dim, ""))
            dims = shape_of(index.types[source])
            length, rank = dims[dim], len(dims)
            if mask is None or length == 1 or length * (before + length + after) * after > _LARGEST:
                continue
            if dim == 0 and shape_of(index.types[mask.value]) != (length,):
                continue
            if mode == "edge":
                places = _places(index, added, made, mask, length, 0, 0)
                node.input[0] = _fill_edge(added, places, node.input[0], dim)
            elif dim >= rank - 2 and rank >= 3:
                places = _places(index, added, made, mask, length, before, after)
                _mirror(added, places, node, dim, length, before, after)
            else:
                continue
            changed += 1
            if mode == "reflect":
                break  # the node is a Where now
    added.join()
    return changed


@dataclass(frozen=True)
class _Places:
    """bool ``valid`` [batch, places] and float ``last`` [batch, length] of one axis."""

    valid: str
    last: str
    batch: int
    fitted: dict[tuple[str, int, int], str] = field(default_factory=dict)


def _copying_mode(node: NodeProto) -> str:
    mode = pad_mode(node)
    return mode if mode in ("edge", "reflect") else ""


def _end_pads(index: GraphIndex, node: NodeProto) -> list[tuple[int, int, int]]:
    """Dim, padding in front and at the end of each dim of a float value that a Pad pads at its end."""
    widths = pad_widths(index, node) if is_float32(index, node.input[0]) else None
    return [(axis, front, end) for axis, (front, end) in (widths or {}).items() if front >= 0 and end > 0]


def _places(
    index: GraphIndex,
    added: Additions,
    made: dict[tuple[str, int, int], _Places],
    mask: Mask,
    length: int,
    before: int,
    after: int,
) -> _Places:
    """The places of an axis with `before` and `after` more; those in front count as valid."""
    if (mask.value, before, after) in made:
        return made[mask.value, before, after]
    stem = f"{mask.value}_valid" + (f"_{before}_{after}" if before or after else "")
    batch = int(np.prod(added.shape(mask.value))) // length
    flags = _flags(index, added, mask, length, batch, stem)
    # Counts of twice the valid places from each place on: far enough from 0.5 for any encoding.
    place, counted = np.arange(before + length + after), np.arange(length)[:, None]
    reached = added.constant(f"{stem}_reached", np.where(counted >= place - before, 2, 0).astype(np.float32))
    behind = np.where(counted > counted.T, 2, 0).astype(np.float32)
    passed = added.constant(f"{stem}_passed", behind)
    half, zero = (
        added.constant(f"{stem}_{name}", np.array(value, np.float32)) for name, value in (("half", 0.5), ("zero", 0))
    )
    valid = added.op("Greater", added.op("MatMul", flags, reached, out=f"{stem}_left"), half, out=stem)
    more = added.op("Greater", added.op("MatMul", flags, passed, out=f"{stem}_behind"), half, out=f"{stem}_more")
    last = added.op("Where", more, zero, flags, out=f"{stem}_last")
    made[mask.value, before, after] = _Places(valid, last, batch)
    return made[mask.value, before, after]


def _flags(index: GraphIndex, added: Additions, mask: Mask, length: int, batch: int, stem: str) -> str:
    """The mask as float [batch, length], 1 where valid."""
    name = mask.value
    kind = index.types[name].tensor_type.elem_type
    if mask.valid_is_zero and kind == TensorProto.BOOL:
        name = added.op("Not", name, out=f"{stem}_not")
    if kind != TensorProto.FLOAT:
        name = added.op("Cast", name, out=f"{stem}_float", to=TensorProto.FLOAT)
    if mask.valid_is_zero and kind != TensorProto.BOOL:
        name = added.op("Sub", added.constant(f"{stem}_one", np.ones((), np.float32)), name, out=f"{stem}_not")
    return added.op("Reshape", name, added.integers(f"{stem}_shape", batch, length), out=f"{stem}_flags")


def _fitted(added: Additions, places: _Places, name: str, rank: int, dim: int) -> str:
    """`name` [batch, places] as [batch, 1.., places, 1..], the form in which it meets a value of this rank."""
    if (name, rank, dim) not in places.fitted:
        dims = [1] * rank
        dims[0], dims[dim] = places.batch, added.shape(name)[1]
        shape = added.integers(f"{name}_{rank}_{dim}_shape", *dims)
        places.fitted[name, rank, dim] = added.op("Reshape", name, shape, out=f"{name}_{rank}_{dim}")
    return places.fitted[name, rank, dim]


def _fill_edge(added: Additions, places: _Places, source: str, dim: int) -> str:
    """`source` with its last valid place in each place behind that."""
    rank = len(added.shape(source))
    valid, last = (_fitted(added, places, name, rank, dim) for name in (places.valid, places.last))
    kept = added.op("Mul", source, last, out=f"{source}_at_end")
    end = added.op("ReduceSum", kept, added.integers(f"{source}_dim", dim), out=f"{source}_end", keepdims=1)
    return added.op("Where", valid, source, end, out=f"{source}_filled")


def _mirror(added: Additions, places: _Places, pad: NodeProto, dim: int, length: int, before: int, after: int) -> None:
    """Make the Pad's result what it is, but for the places behind the valid part: those in front of its end, mirrored.

    Which place goes where depends on the mask, so they are picked and put down by matrices of zeros and ones.
    """
    whole, rank = before + length + after, len(added.shape(pad.input[0]))
    stem = pad.output[0]
    padded = added.op("Pad", *pad.input, out=f"{stem}_padded", mode="reflect")
    place, end, step = np.arange(whole), np.arange(length)[:, None, None] + before, np.arange(after)[:, None]
    picks, puts = (
        _shifts(added, places, (place == at).astype(np.float32), rank, f"{stem}_{role}")
        for role, at in (("pick", end - 1 - step), ("put", end + 1 + step))
    )
    swap = [*range(rank - 2), rank - 1, rank - 2]
    picks = added.op("Transpose", picks, out=f"{stem}_picks", perm=swap)
    # HTP takes the right-hand matrix of two computed ones in 8 bits: zeros and ones are exact in them.
    rows = padded if dim == rank - 1 else added.op("Transpose", padded, out=f"{stem}_rows", perm=swap)
    mirrored = added.op("MatMul", added.op("MatMul", rows, picks, out=f"{stem}_picked"), puts, out=f"{stem}_mirrored")
    if dim != rank - 1:
        mirrored = added.op("Transpose", mirrored, out=f"{stem}_turned", perm=swap)
    valid = _fitted(added, places, places.valid, rank, dim)
    pad.CopyFrom(helper.make_node("Where", [valid, padded, mirrored], [stem], pad.name))


def _shifts(added: Additions, places: _Places, shifts: NDArray[np.float32], rank: int, stem: str) -> str:
    """Rows of zeros with a one each, float [batch, 1.., rows, whole], from `shifts` [length, rows, whole]."""
    length, rows, whole = shifts.shape
    flat = added.constant(f"{stem}_shifts", shifts.reshape(length, rows * whole))
    chosen = added.op("MatMul", places.last, flat, out=f"{stem}_flat")
    dims = added.integers(f"{stem}_dims", places.batch, *[1] * (rank - 3), rows, whole)
    return added.op("Reshape", chosen, dims, out=stem)
