"""Divide one by a value rather than take its reciprocal.

Before::

    Reciprocal(x)

After::

    Div(1, x)

HTP (2.51, all architectures, emulated) computes a Reciprocal wrongly where its result is large, in 8 and 16 bits alike,
and a quotient rightly (uint16, SQNR):

============  ===========  =========
x             Reciprocal   Div(1, x)
============  ===========  =========
0.02 to 0.1   0.9 dB       75.8 dB
0.1 to 0.5    6.0 dB       73.1 dB
0.5 to 3      70.2 dB      70.4 dB
10 to 100     63.5 dB      70.6 dB
============  ===========  =========

The result keeps its name. Left alone: nothing; every Reciprocal is of floats.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, helper

from pipeline.graph.ir.index import LazyIndex, element_type, is_op
from pipeline.graph.ir.node_builder import Additions


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Reciprocal; returns their number."""
    added = Additions(LazyIndex(model, folder))
    ones: dict[int, str] = {}
    found = [node for node in model.graph.node if is_op(node, "Reciprocal") and node.input[0] in added.index.types]
    for node in found:
        kind = element_type(added.index, node.input[0])
        if kind not in ones:
            ones[kind] = added.number("one_divided", 1, helper.tensor_dtype_to_np_dtype(kind))
        node.CopyFrom(helper.make_node("Div", [ones[kind], node.input[0]], list(node.output), node.name))
    added.join()
    return len(found)
