"""Add patches up to a picture by a transposed convolution.

Before (torch's `fold`; both shapes constant)::

    Col2Im(x, picture, patch) <strides, pads, dilations>           x [n, c * places of a patch, patches]

After, where the kernel of each of a patch's places is 1 there and else 0::

    ConvTranspose(Reshape(x), kernels) <group = c, strides, pads, dilations>

and of patches that fill the picture side by side::

    Reshape(Transpose(Reshape(x)))

The same elements are added, and zeros. QNN (EP 2.7) leaves Col2Im to the CPU. The result keeps its name. Left alone:
types other than float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import integers
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@dataclass(frozen=True)
class _Patches:
    """How they lie, each field with one number for each axis of the picture; pads for both ends of each."""

    picture: Sequence[int]
    patch: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]

    @property
    def reach(self) -> list[int]:
        """From the first to the last element of a patch."""
        return [(size - 1) * far + 1 for size, far in zip(self.patch, self.dilations, strict=True)]

    @property
    def counts(self) -> list[int]:
        """How many patches there are along each axis."""
        rank = len(self.picture)
        room = [size + self.pads[at] + self.pads[rank + at] for at, size in enumerate(self.picture)]
        return [
            (all_of_it - reach) // step + 1
            for all_of_it, reach, step in zip(room, self.reach, self.strides, strict=True)
        ]

    @property
    def left_over(self) -> list[int]:
        """What lies behind the last patch."""
        rank = len(self.picture)
        return [
            size + self.pads[at] + self.pads[rank + at] - (count - 1) * step - reach
            for at, (size, count, step, reach) in enumerate(
                zip(self.picture, self.counts, self.strides, self.reach, strict=True)
            )
        ]

    @property
    def fill(self) -> bool:
        """Whether they lie side by side, and leave nothing over."""
        return (
            not any(self.pads)
            and not any(self.left_over)
            and set(self.dilations) == {1}
            and list(self.strides) == list(self.patch)
        )


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Col2Im."""
    if not is_op(node, "Col2Im") or not is_float32(added.index, node.output[0]):
        return False
    picture, patch = (added.index.constant(name) for name in node.input[1:])
    if picture is None or patch is None:
        return False
    ones = [1] * patch.size
    patches = _Patches(
        picture.tolist(), patch.tolist(), integers(node, "strides", ones), integers(node, "dilations", ones),
        integers(node, "pads", [0, 0] * patch.size),
    )  # fmt: skip
    if patches.fill:
        _put_side_by_side(added, node, patches)
    else:
        _add_up(added, node, patches)
    return True


def _put_side_by_side(added: Additions, node: NodeProto, patches: _Patches) -> None:
    result, rank = node.output[0], len(patches.patch)
    shape = added.integers(f"{result}_apart", -1, *patches.patch, *patches.counts)
    apart = added.op("Reshape", node.input[0], shape, out=f"{result}_patches")
    perm = [0, *(axis for at in range(rank) for axis in (1 + rank + at, 1 + at))]
    turned = added.op("Transpose", apart, out=f"{result}_turned", perm=perm)
    added.replace("Reshape", turned, added.integers(f"{result}_dims", *added.shape(result)), out=result)


def _add_up(added: Additions, node: NodeProto, patches: _Patches) -> None:
    result, places = node.output[0], math.prod(patches.patch)
    batch, rows = added.shape(node.input[0])[:2]
    apart = added.integers(f"{result}_apart", batch, rows, *patches.counts)
    source = added.op("Reshape", node.input[0], apart, out=f"{result}_patches")
    kernels = np.tile(np.eye(places, dtype=np.float32), (rows // places, 1)).reshape(rows, 1, *patches.patch)
    added.replace(
        "ConvTranspose", source, added.constant(f"{result}_kernels", kernels), out=result, group=rows // places,
        kernel_shape=list(patches.patch), strides=list(patches.strides), dilations=list(patches.dilations),
        pads=list(patches.pads), output_padding=patches.left_over,
    )  # fmt: skip
