"""Write the output padding of a transposed convolution as padding that is not taken off, and zeros behind the kernel.

Before (w float32, constant)::

    ConvTranspose(x, w, b) <pads = [1, 1, 1, 1], output_padding = [1, 1]>

After, where the ends are cut less, and a kernel grows by zeros if that does not do::

    ConvTranspose(x, w, b) <pads = [1, 1, 0, 0]>

Nothing is rounded otherwise: the same products are added. HTP (2.51, emulated) computes other numbers where a
depthwise one has output padding, as decoders with kernels of 3 and strides of 2 have: -3 dB in float16 and in integers.
Others are right, or not compiled (2 behind a stride of 3).

The result keeps its name. Left alone: weights that are computed, or have dilations; `auto_pad` and `output_shape`.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Move the output padding of a ConvTranspose into its pads and its kernel."""
    given = settings(node) if is_op(node, "ConvTranspose") else {}
    more = given.pop("output_padding", [])
    weights = node.input[1] if any(more) else ""
    if not weights or not is_float32(added.index, weights) or not _is_plain(given):
        return False
    kernel = added.index.constant(weights)
    if kernel is None:
        return False
    rank = len(more)
    pads = given.get("pads", [0] * 2 * rank)
    rest = [after - extra for after, extra in zip(pads[rank:], more, strict=True)]
    given["pads"] = [*pads[:rank], *(max(size, 0) for size in rest)]
    if min(rest) < 0:
        zeros = [(0, 0), (0, 0), *((0, max(-size, 0)) for size in rest)]
        weights = added.constant(f"{weights}_grown", np.pad(kernel, zeros))
        given["kernel_shape"] = list(added.shape(weights)[2:])
    added.replace("ConvTranspose", node.input[0], weights, *node.input[2:], out=node.output[0], **given)
    return True


def _is_plain(given: dict[str, object]) -> bool:
    dilations = given.get("dilations", [])
    assert isinstance(dilations, list)
    return (
        all(step == 1 for step in dilations)
        and given.get("auto_pad", b"NOTSET") == b"NOTSET"
        and "output_shape" not in given
    )
