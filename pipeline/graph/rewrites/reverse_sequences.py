"""Take the steps of a sequence from behind by their places.

Before, and after for one of n steps that all are reversed, for one of a known length, and for one of a length that is
computed, `lens` (`t` has the places 0 to n - 1)::

    ReverseSequence(x, lens)        Slice(x, from n - 1 down)
                                    Gather(x, [lens - 1, ..., 0, lens, ..., n - 1])
                                    Gather(x, Where(Less(t, lens), Sub(lens - 1, t), t))

Of a batch, each sample is taken apart, and joined behind. QNN EP 2.7 leaves the operator to the CPU. It stands in
recurrent layers of both directions that TensorFlow wrote out.

The result keeps its name.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.from_behind import from_behind
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_TIME, _BATCH = 0, 1
"""What ONNX has for the axes where a node doesn't say."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a ReverseSequence."""
    if not is_op(node, "ReverseSequence"):
        return False
    given, lengths = node.input
    result = node.output[0]
    time, batch = integer(node, "time_axis", _TIME), integer(node, "batch_axis", _BATCH)
    steps, samples = added.shape(given)[time], added.shape(given)[batch]
    known = added.index.constant(lengths)
    if known is not None and (known == steps).all():
        added.replace("Slice", *from_behind(added, given, time, result), out=result)
        return True
    if samples == 1:
        added.replace("Gather", given, _places(added, lengths, known, steps, result), out=result, axis=time)
        return True
    rows = []
    for sample in range(samples):
        stem, at = f"{result}_{sample}", added.integers(f"{result}_{sample}_at", sample)
        row = added.op("Gather", given, at, out=f"{stem}_given", axis=batch)
        length = added.op("Gather", lengths, at, out=f"{stem}_length") if known is None else ""
        places = _places(added, length, None if known is None else known[sample : sample + 1], steps, stem)
        rows.append(added.op("Gather", row, places, out=stem, axis=time))
    added.replace("Concat", *rows, out=result, axis=batch)
    return True


def _places(added: Additions, length: str, known: NDArray[np.int64] | None, steps: int, stem: str) -> str:
    """Where each step of one sample comes from, a vector; of the name or the value of its length, [1]."""
    each = np.arange(steps)
    if known is not None:
        return added.constant(f"{stem}_places", np.where(each < known, known - 1 - each, each).astype(np.int64))
    steps_of = added.integers(f"{stem}_steps", *each)
    last = added.op("Sub", length, added.number(f"{stem}_one", 1, np.int64), out=f"{stem}_last")
    turned = added.op("Sub", last, steps_of, out=f"{stem}_turned")
    inside = added.op("Less", steps_of, length, out=f"{stem}_inside")
    return added.op("Where", inside, turned, steps_of, out=f"{stem}_places")
