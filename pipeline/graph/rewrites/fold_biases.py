"""Put a constant that is added to a transposed convolution into its bias.

Before, for a constant `b` of one number for each channel, or for all::

    Add(ConvTranspose(x, W, B), b)

After::

    ConvTranspose(x, W, B + b)

as PaddlePaddle exports the bias of such a layer. In integers HTP (2.51, emulated) adds something else: one layer has
7 dB in 8 and in 16 bits, and 47 and 76 with a bias. PP-OCR's detectors ended in float16 for that.

The result keeps its name. Left alone: a convolution that others read too (put_constants_last turns the sum around,
which HTP computes right), a bias that is computed, types other than float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at

_BIAS = 2


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Fold such a sum."""
    if not is_op(node, "Add") or not is_float32(added.index, node.output[0]):
        return False
    for value, constant in (node.input, reversed(node.input)):
        maker = added.index.maker(value, "ConvTranspose")
        term = added.index.constant(constant)
        if maker is None or term is None or added.index.sole_reader(value, "Add") is None:
            continue
        bias = _bias(added, maker, term)
        if bias is not None:
            name = added.constant(f"{node.output[0]}_bias", bias)
            added.replace("ConvTranspose", *maker.input[:_BIAS], name, out=node.output[0], **settings(maker))
            return True
    return False


def _bias(added: Additions, maker: NodeProto, term: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The bias of a convolution with what is added to it; None if that is not one number for each channel."""
    dims = added.shape(maker.output[0])
    spread = (1,) * (len(dims) - term.ndim) + term.shape
    if len(spread) != len(dims) or any(size != 1 for axis, size in enumerate(spread) if axis != 1):
        return None
    given = input_at(maker, _BIAS)
    known = added.index.constant(given) if given else np.zeros(dims[1], np.float32)
    if known is None or spread[1] not in (1, dims[1]):
        return None
    return np.asarray(known + np.broadcast_to(term.reshape(-1), (dims[1],)), np.float32)


AFTER = {"narrow_doubles": "it looks for constants of float32"}
