"""Resize one axis after the other, as the last but one or the last of four.

Before (x float32 [n, c, h, w], cubic, by 2 and 4; with align_corners by 2 or 4 on both axes)::

    Resize(x, [n, c, 2 h, 4 w])

After::

    Resize(Resize(x, [n, c, 2 h, w]), [n, c, 2 h, 4 w])

and of axes that are not the last two of 3 or 4 (x of 5 dims, of 2, or with channels last), where the mode is linear or
the dims are 2::

    Reshape(Resize(Reshape(x, [1, a, b, c]), [1, a, 2 b, c]), [...])

HTP (2.51, emulated) gives the lowest number of the encoding for all of such a cubic Resize in 16 bits; by 1.5, 3, 5 and
8, and with half_pixel or asymmetric by 2 and 2 or 4 and 4, it is right. It takes other places along 5 dims in float16,
and leaves other axes to the CPU. One axis at a time it is right, in every format, and as exact as at once.

A cubic Resize with align_corners by scales that the sizes do not come to is left to the CPU; it gets sizes here, by
which alone it goes.

The result keeps its name. Left alone: what HTP resizes rightly; nearest neighbours; coordinates and options that it
does not know, of which `resize_by_products` takes care.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from onnx import NodeProto

from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.resizes import PLAIN_COORDINATES, AlongAxis, Resize, read_resize

_RANK = 4
_FACTORS = {2.0, 4.0}


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Take a linear or cubic Resize apart."""
    resize = read_resize(added.index, node)
    if resize is None or not is_plain(resize):
        return False
    groups = _groups(resize, len(added.shape(node.input[0])))
    if groups is not None:
        _replace(added, node, resize, groups)
    return groups is not None


def is_plain(resize: Resize) -> bool:
    """Whether a linear or cubic Resize has coordinates and options that HTP knows, and scales as sizes say."""
    known = resize.coordinates in PLAIN_COORDINATES and not resize.takes_scale()
    if resize.coordinates == "pytorch_half_pixel" and any(each.result == 1 < each.size for each in resize.axes):
        known = False  # the first element in place of the middle, which HTP takes
    excludes = resize.excludes and resize.mode == "cubic"
    return resize.mode != "nearest" and known and not (resize.antialias or excludes)


def _groups(resize: Resize, rank: int) -> list[list[AlongAxis]] | None:
    """The axes that are resized at once, those that shrink most first; None where one Resize is right as it is."""
    changed = [each for each in resize.axes if each.size != each.result]
    planes = [each for each in changed if each.axis >= max(rank - 2, 2)] if rank > 2 else []
    together = len(planes) < 2 or not _is_lost(resize, planes)
    by_sizes = resize.mode == "linear" or all(each.by_sizes for each in resize.axes)
    if together and by_sizes and len(planes) == len(changed) and rank in (3, _RANK):
        return None
    groups = [[each] for each in changed if each not in planes]
    groups += [planes] if together and planes else [[each] for each in planes]
    return sorted(groups, key=lambda group: prod(each.result / each.size for each in group))


def _is_lost(resize: Resize, planes: Sequence[AlongAxis]) -> bool:
    """Whether HTP gives one number for all of a cubic Resize of 16 bits along two axes."""
    factors = {each.result / each.size for each in planes}
    alike = len(factors) == 1 and resize.coordinates != "align_corners"
    return resize.mode == "cubic" and factors <= _FACTORS and not alike


def _replace(added: Additions, node: NodeProto, resize: Resize, groups: Sequence[Sequence[AlongAxis]]) -> None:
    value, result = node.input[0], node.output[0]
    how: dict[str, Any] = {"mode": resize.mode, "coordinate_transformation_mode": resize.coordinates}
    how |= {"cubic_coeff_a": resize.cubic} if resize.mode == "cubic" else {}
    dims = [*added.shape(value)]
    plain = len(dims) == _RANK and all(each.axis >= _RANK - 2 for group in groups for each in group)
    for number, group in enumerate(groups):
        stem = f"{result}_along_{'_'.join(str(each.axis) for each in group)}"
        small = _flat(dims, group)
        for each in group:
            dims[each.axis] = each.result
        sizes = added.integers(f"{stem}_sizes", *_flat(dims, group))
        is_last = number + 1 == len(groups)
        if plain:
            if is_last:
                added.replace("Resize", value, "", "", sizes, out=result, **how)
            else:
                value = added.op("Resize", value, "", "", sizes, out=stem, **how)
            continue
        value = added.op("Reshape", value, added.integers(f"{stem}_flat", *small), out=f"{stem}_in")
        value = added.op("Resize", value, "", "", sizes, out=stem, **how)
        shape = added.integers(f"{stem}_dims", *dims)
        if is_last:
            added.replace("Reshape", value, shape, out=result)
        else:
            value = added.op("Reshape", value, shape, out=f"{stem}_out")


def _flat(dims: Sequence[int], group: Sequence[AlongAxis]) -> list[int]:
    """Four dims in which the axes of a group are the last but one, or the last, or both; others are joined."""
    first, last = group[0].axis, group[-1].axis
    if len(dims) == _RANK and first >= _RANK - 2:
        return [*dims]
    if last == len(dims) - 1:
        lead = dims[: min(first, last - 1)] if len(dims) > 1 else []
        middle = dims[last - 1] if len(dims) > 1 else 1
        return [1, prod(lead), middle, dims[last]]
    return [1, prod(dims[:first]), dims[first], prod(dims[first + 1 :])]
