"""Put a constant that is added to a transposed convolution into its bias.

Before, for a constant `b` of one number for each channel, or for all::

    Add(ConvTranspose(x, W, B), b)

After::

    ConvTranspose(x, W, B + b)

as PaddlePaddle exports the bias of such a layer; what is added to that sum goes the same way. In integers HTP (2.51,
emulated) adds something else: one layer has 7 dB in 8 and in 16 bits, and 47 and 76 with a bias. PP-OCR's detectors
ended in float16 for that.

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
    """Fold what is added to a convolution, one sum behind the other."""
    if not is_op(node, "ConvTranspose") or not is_float32(added.index, node.output[0]):
        return False
    given = input_at(node, _BIAS)
    dims = added.shape(node.output[0])
    bias = added.index.constant(given) if given else np.zeros(dims[1], np.float32)
    result = node.output[0]
    while bias is not None:
        reader = added.index.sole_reader(result, "Add")
        term = None if reader is None else _term(added, reader, dims)
        if reader is None or term is None:
            break
        bias, result = np.asarray(bias + term, np.float32), reader.output[0]
    is_read = result in added.index.readers or result in added.index.outputs
    if bias is None or result == node.output[0] or not is_read:
        return False
    name = added.constant(f"{result}_bias", bias)
    added.replace("ConvTranspose", *node.input[:_BIAS], name, out=result, **settings(node))
    return True


def _term(added: Additions, node: NodeProto, dims: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The constant of a sum with a value of these dims, as a number for each channel; None if it is none such."""
    term = next((each for each in map(added.index.constant, node.input) if each is not None), None)
    if term is None or term.ndim > len(dims) or term.size not in (1, dims[1]):
        return None
    spread = (1,) * (len(dims) - term.ndim) + term.shape
    return np.broadcast_to(term.reshape(-1), (dims[1],)) if term.size == spread[1] else None


AFTER = {"narrow_doubles": "it looks for constants of float32"}
