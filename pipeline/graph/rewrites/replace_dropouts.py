"""Let a Dropout hand on what it is given, as it does outside of training.

Before, and after::

    y, mask = Dropout(x)        y = Identity(x), mask = Identity(true everywhere)

The shape step leaves out a Dropout that stands between nodes and whose mask nobody reads. QNN EP 2.7 leaves one that
is left to the CPU, and compiles nothing of a model that is a Dropout alone.

Results keep their names. Left alone: a Dropout in training mode, which draws random numbers, or whose mode is computed.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at

_TRAINING = 2
"""The input that says whether the model is being trained."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Dropout outside of training."""
    if not is_op(node, "Dropout") or _may_drop(added.index, node):
        return False
    added.replace("Identity", node.input[0], out=node.output[0])
    for mask in filter(None, node.output[1:]):
        kept = added.constant(f"{mask}_kept", np.ones(added.shape(mask), np.bool_))
        added.replace("Identity", kept, out=mask)
    return True


def _may_drop(index: GraphIndex, node: NodeProto) -> bool:
    given = input_at(node, _TRAINING)
    training = index.constant(given) if given else np.zeros(1, np.bool_)
    return training is None or bool(training.any())
