"""Cut the edges off a transposed convolution over volumes behind it, where it is to cut unequal ones.

Before, with y of [n, c, depth, height, width]::

    ConvTranspose(x, w, b) <pads = [0, 1, 1, 0, 1, 1]>

After::

    Slice(ConvTranspose(x, w, b) <pads = [0, 0, 0, 0, 0, 0]>, starts = [0, 1, 1], ends, axes = [2, 3, 4])

The pads of a transposed convolution are what is cut off its result, so nothing else changes. HTP (2.51, emulated)
computes other numbers, -3 dB in float16 and in integers, where depth has other pads than height, as decoders of videos
have; no tool says so. The result keeps its name. Left alone: pads that are all alike, `auto_pad` and `output_shape`.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import integers, settings
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_AXES = (2, 3, 4)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Move unequal pads of a ConvTranspose over volumes into a Slice."""
    if not is_op(node, "ConvTranspose") or len(added.shape(node.input[0])) != len(_AXES) + 2:
        return False
    given, pads = settings(node), integers(node, "pads")
    if given.get("auto_pad", b"NOTSET") != b"NOTSET" or "output_shape" in given or len(set(pads)) < 2:
        return False
    result = node.output[0]
    starts = pads[: len(_AXES)]
    sizes = [added.shape(result)[axis] for axis in _AXES]
    made = added.op(
        "ConvTranspose", *node.input, out=f"{result}_whole", name=node.name, **given | {"pads": [0] * len(pads)}
    )
    bounds = [
        added.integers(f"{result}_starts", *starts),
        added.integers(f"{result}_ends", *(start + size for start, size in zip(starts, sizes, strict=True))),
        added.integers(f"{result}_axes", *_AXES),
    ]
    added.replace("Slice", made, *bounds, out=result)
    return True
