"""Residual streams: what adds up from block to block, and is read through norms that do not see how large it is.

    x0 = Gather(table, ids)
    x1 = Add(x0, MatMul(attention, W1))          with LayerNormalization(x0), RMSNormalization(x1), ... in each block
    x2 = Add(x1, MatMul(gated, W2))

All values of a stream can be computed in another unit, and what reads it gets the same: a norm divides by the size of
what it is given. Trained models let a few tokens grow to hundreds of times the others
(https://arxiv.org/abs/2402.17762), beyond what float16 holds (a T5 of 512 channels: 101,000), and to where steps of 16
bits leave nothing of the other tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from onnx import NodeProto

from pipeline.contracts.forecast import FP16, Forecast
from pipeline.contracts.scheme import Scheme
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.moves import MOVES_FIRST
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.chip_limits import FP16_LARGEST
from pipeline.graph.quantization.operand_rules import PRODUCTS
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment

LOUD = FP16_LARGEST / 2
"""A stream that calibration saw beyond this is loud: other samples go further, and float16 ends at twice as much. Steps
of 16 bits are 1 wide there, next to numbers that a norm makes of it, which are around 1."""

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_SUMS = ("Add", "Sub", "Sum")
_MOVES = (*MOVES_FIRST, "Concat", "Dropout")
_MASSIVE = 8.0
"""How many times the median of what is added to a stream is massive: as SmolLM2's, see
:mod:`pipeline.graph.quantization.bounds.activation_outliers`.
"""


@dataclass(frozen=True)
class Stream:
    """The values of one stream, who adds to it from outside, and who reads it otherwise than through a norm."""

    values: dict[str, None] = field(default_factory=dict[str, None])
    entering: list[str] = field(default_factory=list[str])
    """Values of the stream that another node than a sum makes, or an input of the model is."""
    norms: list[NodeProto] = field(default_factory=list[NodeProto])
    leaving: dict[str, list[NodeProto]] = field(default_factory=dict[str, list[NodeProto]])
    """Values of the stream that are read as they are, by these nodes; by none where they are outputs."""

    def largest(self, ranges: Mapping[str, Range]) -> float:
        """The largest magnitude that calibration saw in it."""
        return max((size_of(ranges, name) for name in self.values), default=0.0)


def streams(index: GraphIndex, ranges: Mapping[str, Range]) -> list[Stream]:
    """Every loud stream of a float model, in the graph's order."""
    found: list[Stream] = []
    seen: set[str] = set()
    for node in index.model.graph.node:
        name = str(node.input[0]) if is_norm(node) else ""
        if name and name not in seen and name not in index.initializers:
            stream = _stream(index, name)
            seen |= set(stream.values)
            if stream.largest(ranges) > LOUD:
                found.append(stream)
    return found


def is_norm(node: NodeProto) -> bool:
    """Whether a node divides what it is given by its size, and gives nothing else."""
    return node.op_type in _NORMS and not any(node.output[1:])


def size_of(ranges: Mapping[str, Range], name: str) -> float:
    """The largest magnitude of a value, 0 where nothing is known of it."""
    span = ranges.get(name)
    return max(-span.low, span.high) if span is not None else 0.0


def carried(index: GraphIndex, node: NodeProto) -> tuple[int, ...] | None:
    """The inputs that a node's results scale with, all others given; None for nodes that do more than that."""
    given = [place for place, name in enumerate(node.input) if name and is_float(index, str(name))]
    if is_op(node, *_SUMS):
        return tuple(given)
    if is_op(node, *_MOVES):
        moved = given if is_op(node, "Concat") else given[:1]
        return tuple(moved) if moved and not any(node.input[place] in index.initializers for place in moved) else None
    if is_op(node, "Mul", "Div") and len(given) == 2:
        computed = [place for place in given if node.input[place] not in index.initializers]
        if len(computed) == 1 and (is_op(node, "Mul") or computed == [0]):
            return tuple(computed)
    return None


def is_product(index: GraphIndex, node: NodeProto | None) -> bool:
    """Whether a node multiplies a computed value with constant weights, and adds a constant at most."""
    if node is None or not is_op(node, *PRODUCTS) or node.input[0] in index.initializers:
        return False
    return all(name in index.initializers for name in node.input[1:] if name)


def loud_streams(index: GraphIndex, ranges: Mapping[str, Range], scheme: Scheme) -> Iterator[Forecast]:
    """What integers make of loud streams: a row for each of which something is still computed in them.

    Its nodes are the sums, the norms, and what is massive among the products that are added.
    """
    found = streams(index, ranges)
    if not found:
        return
    assignment = Assignment(index, scheme)
    for stream in found:
        nodes = {id(node): node for node in _concerned(index, stream, ranges)}
        if all(assignment.computes_in(node) == FLOAT for node in nodes.values()):
            continue
        worst = max(stream.values, key=lambda name: size_of(ranges, name))
        maker = index.makers.get(worst)
        names = tuple(dict.fromkeys(node.name for node in nodes.values() if node.name))
        where = label(maker) if maker is not None else "an input of the model"
        yield Forecast("loud_stream", worst, where, size_of(ranges, worst), LOUD, nodes=names, instead=FP16)


def _concerned(index: GraphIndex, stream: Stream, ranges: Mapping[str, Range]) -> Iterator[NodeProto]:
    yield from (node for name in stream.values if (node := index.makers.get(name)) and carried(index, node) is not None)
    yield from stream.norms
    added = {name: size_of(ranges, name) for name in stream.entering}
    limit = _MASSIVE * median(added.values()) if added else 0.0
    for name, size in added.items():
        maker = index.makers.get(name)
        if maker is not None and size > limit:
            yield maker
            before = index.makers.get(maker.input[0])
            if before is not None and is_product(index, maker):
                yield before


def _stream(index: GraphIndex, name: str) -> Stream:
    stream, waiting = Stream(), [name]
    norms: dict[str, NodeProto] = {}
    while waiting:
        name = waiting.pop()
        if name in stream.values or name in index.initializers:
            continue
        stream.values[name] = None
        maker = index.makers.get(name)
        places = carried(index, maker) if maker is not None else None
        if maker is None or places is None:
            stream.entering.append(name)
        else:
            waiting += [str(maker.input[place]) for place in places]
            waiting += [str(made) for made in maker.output if made and is_float(index, str(made))]
        leaving = list[NodeProto]()
        for reader in index.readers.get(name, []):
            places = carried(index, reader) or ()
            if is_norm(reader) and name == reader.input[0] and name not in reader.input[1:]:
                norms[str(reader.output[0])] = reader
            elif any(reader.input[place] == name for place in places):
                waiting += [str(made) for made in reader.output if made and is_float(index, str(made))]
            else:
                leaving.append(reader)
        if leaving or name in index.outputs:
            stream.leaving[name] = leaving
    stream.norms.extend(norms.values())
    return stream
