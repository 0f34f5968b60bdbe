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

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from pipeline.graph.ir.index import GraphIndex, is_op

NAME = "divide_one"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Reciprocal; returns their number."""
    index = GraphIndex(model, folder)
    ones: dict[int, str] = {}
    replaced = 0
    for node in model.graph.node:
        if is_op(node, "Reciprocal") and node.input[0] in index.types:
            kind = index.types[node.input[0]].tensor_type.elem_type
            if kind not in ones:
                ones[kind] = index.unused("one_divided")
                dtype = helper.tensor_dtype_to_np_dtype(kind)
                model.graph.initializer.append(numpy_helper.from_array(np.ones((), dtype), ones[kind]))
                index.initializers[ones[kind]] = model.graph.initializer[-1]
            _replace(node, ones[kind])
            replaced += 1
    return replaced


def _replace(node: NodeProto, one: str) -> None:
    node.CopyFrom(helper.make_node("Div", [one, node.input[0]], list(node.output), node.name))
