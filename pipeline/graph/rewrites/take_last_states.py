"""Take the last hidden state of a recurrent layer from the sequence of all of them.

Before::

    Y, Y_h = LSTM(x, ...)            or GRU, or RNN

After, forwards (a reverse layer ends at the first place; of two directions each is taken by itself)::

    Y = LSTM(x, ...)
    Y_h = Reshape(Slice(Y, the last place))

QNN EP 2.7 ends the process on a quantized GRU that gives Y_h and no Y, the form of any encoder of a whole sequence.
And calibration sees a state once a sample, too seldom to know its range: measured apart, Y_h clips on new samples (a
speaker encoder of two LSTM layers, w8a16: 17 dB of SQNR), while as a part of Y it has the range of all places.

Y_h keeps its name. Left alone: lengths given (``sequence_lens``), since a sequence then ends where they say; batch
first (``layout``); a Y_h that nothing reads.
"""

from __future__ import annotations

from onnx import NodeProto, TypeProto, ValueInfoProto, helper

from pipeline.graph.ir.attributes import integer, text
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at

_LENGTHS = 4
"""The input that holds ``sequence_lens``."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Rewrite a recurrent layer whose last hidden state is used."""
    index = added.index
    if not _matches(index, node):
        return False
    if not node.output[0]:
        node.output[0] = index.unused(f"{node.output[1]}_places")
        kind = _places_type(index, node)
        index.model.graph.value_info.append(ValueInfoProto(name=node.output[0], type=kind))
        added.know(node.output[0], kind)
    _take_last(added, node)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "LSTM", "GRU", "RNN") or len(node.output) < 2 or not node.output[1]:
        return False
    used = node.output[1] in index.outputs or node.output[1] in index.readers
    return used and not input_at(node, _LENGTHS) and not integer(node, "layout")


def _places_type(index: GraphIndex, node: NodeProto) -> TypeProto:
    """The type of Y: [places, directions, batch, hidden]."""
    state = index.types[node.output[1]]
    places = shape_of(index.types[node.input[0]])[0] if node.input[0] in index.types else 0
    assert places or node.input[0] in index.initializers
    places = places or index.initializers[node.input[0]].dims[0]
    return helper.make_tensor_type_proto(state.tensor_type.elem_type, (places, *shape_of(state)))


def _take_last(added: Additions, node: NodeProto) -> None:
    """Make the second output of a layer from its first."""
    whole, state = node.output[0], node.output[1]
    places, directions, batch, hidden = added.shape(whole)
    reverse = text(node, "direction") == "reverse"
    ends = [0 if reverse or direction else places - 1 for direction in range(directions)]
    parts = []
    for direction, place in enumerate(ends):
        start = added.integers(f"{state}_start", place, direction)
        end = added.integers(f"{state}_end", place + 1, direction + 1)
        axes = added.integers(f"{state}_axes", 0, 1)
        parts.append(added.op("Slice", whole, start, end, axes, out=f"{state}_of_{direction}"))
    last = parts[0] if directions == 1 else added.op("Concat", *parts, out=f"{state}_joined", axis=1)
    node.output[1] = ""
    if len(node.output) == 2:
        del node.output[1:]
    shape = added.integers(f"{state}_shape", directions, batch, hidden)
    added.replace("Reshape", last, shape, out=state)
