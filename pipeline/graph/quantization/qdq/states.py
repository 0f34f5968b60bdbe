"""What a run hands to the next one: one encoding for all that only moves it, and integers at the graph's edge.

A cache that comes in as `past_key_3_in` and goes out, grown, as `past_key_3_out` is fed back as it is stored. If the
two had different scales, every position would be read wrongly from the second run on; float inputs and outputs would
hide that, at the cost of a conversion on the CPU for each. So all values that hold elements of one state are tied::

    past_key_3_in --> Concat --> MatMul            tied: the input, what is joined to it, what comes of that,
    halves -> Concat -> past_key_3_out -^                the output, and what it is made of by moving alone

Their range is symmetric, so that zero is in the middle: of uint8 at 128, with which engines clear a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.contracts.language import Edge
from pipeline.contracts.scheme import Rule, Scheme, bits
from pipeline.errors import QuantizationError
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range, Ranges
from pipeline.graph.quantization.operand_rules import PRODUCTS, moves_data
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS, encoding_of

_IN, _OUT = "_in", "_out"
_FIXED: Mapping[str, Range] = {
    "attention_mask": Range(-50.0, 0.0),
    "position_ids_cos": Range(-1.0, 1.0),
    "position_ids_sin": Range(-1.0, 1.0),
}
"""Ranges by contract, whatever the samples show: 65535 of a mask is 0.0, as Genie writes it."""
_STORED = "uint8"
_FLOAT_OUTPUTS = ("logits",)
"""What applications read as floats."""


def groups(index: GraphIndex) -> list[tuple[str, ...]]:
    """The values that hold elements of one state, for each state of the graph, in the order of its inputs."""
    return [
        tuple(_group(index, value.name, f"{value.name.removesuffix(_IN)}{_OUT}"))
        for value in index.model.graph.input
        if value.name.endswith(_IN) and f"{value.name.removesuffix(_IN)}{_OUT}" in index.outputs
    ]


def tied(index: GraphIndex, ranges: Ranges, scheme: Scheme) -> tuple[Ranges, Scheme]:
    """Ranges and scheme in which the values of each state have one symmetric encoding.

    Raises:
        QuantizationError: the graph has no state.
    """
    assert scheme.states is not None
    found = groups(index)
    if not found:
        raise QuantizationError(
            "the graph has no state that could be tied",
            why="a state comes in as '<name>_in' and goes out as '<name>_out'",
            remedy="report it with the model",
        )
    width = bits(scheme.states)
    measured, half = dict(ranges), 2.0 ** (width - 1)
    chosen = {each: dict(narrower) for each, narrower in ranges.chosen.items()}
    for members in found:
        # What calibration chose for one of them holds for all, as they are the same numbers, moved and joined.
        narrower = [span for name in members if (span := chosen.get(width, {}).get(name))]
        spans = narrower or [ranges[name] for name in members]
        largest = max(max(-span.low, span.high, MIN_WIDTH) for span in spans)
        for name in members:
            # The largest magnitude gets the largest integer on the shorter side.
            measured[name] = Range(-largest * half / (half - 1), largest)
            for each in chosen.values():
                each.pop(name, None)
    fixed = {name: span for name, span in _fixed(index) if name in measured}
    chosen.setdefault(16, {}).update(fixed)
    measured.update(fixed)
    stored = [name for members in found for name in members if not _is_product(index, name)]
    rules = [Rule(tensors=(name,), activations=scheme.states) for name in stored]
    converting = [node.name for name in stored if (node := index.makers.get(name)) and _converts(index, node)]
    rules += [Rule(nodes=(name,), activations=scheme.states) for name in converting]
    return Ranges(measured, chosen), scheme.with_rules(rules)


def check_tied(index: GraphIndex, states: Sequence[Sequence[str]]) -> None:
    """Hold the encodings of a QDQ model against each other: those of a state are one.

    Raises:
        QuantizationError: with the two values that differ.
    """
    for members in states:
        read = [f"{name}_{_STORED}" if f"{name}_{_STORED}_scale" in index.initializers else name for name in members]
        known = [(name, found) for name in read if (found := _stored(index, name)) is not None]
        for name, found in known:
            if found != known[0][1]:
                raise QuantizationError(
                    f"the encodings of a state differ: {known[0][0]!r} has {known[0][1]}, {name!r} {found}",
                    why="what one run writes into the cache, the next would read as other numbers",
                    remedy="report it with the model",
                )


def integer_edges(model: ModelProto) -> dict[str, Edge]:
    """Let a QDQ model take and give integers at its edge, but for logits; how each is stored, by its name."""
    index = GraphIndex(model, Path())
    graph, found = model.graph, {}
    dropped: list[NodeProto] = []
    renamed: dict[str, str] = {}
    for value in graph.input:
        readers = index.readers.get(value.name, [])
        if len(readers) == 1 and readers[0].op_type == Q_OPS[0]:
            found[value.name] = _edge(index, readers[0])
            renamed[readers[0].output[0]] = value.name
            dropped.append(readers[0])
            value.type.tensor_type.elem_type = _element(found[value.name].dtype)
    for value in graph.output:
        maker = index.makers.get(value.name)
        if maker is None or maker.op_type != Q_OPS[1] or value.name in _FLOAT_OUTPUTS:
            continue
        found[value.name] = _edge(index, maker)
        stored, read = maker.input[0], f"{value.name}_DequantizeLinear_Output"
        for reader in index.readers.get(value.name, []):
            reader.input[:] = [read if name == value.name else name for name in reader.input]
        if value.name in index.readers:
            maker.output[0] = read
        else:
            dropped.append(maker)
        renamed[stored] = value.name
        value.type.tensor_type.elem_type = _element(found[value.name].dtype)
    kept = [node for node in graph.node if not any(node is each for each in dropped)]
    for node in kept:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    made = [NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(made)
    stale = {*renamed} | {*found}
    infos = [info for info in graph.value_info if info.name not in stale]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    return found


def _group(index: GraphIndex, given: str, made: str) -> Iterator[str]:
    pending, seen = [made, given], set()
    while pending:
        name = pending.pop()
        if name in seen or name in index.initializers:
            continue
        seen.add(name)
        yield name
        maker = index.makers.get(name)
        if maker is not None and _keeps(index, maker):
            pending += maker.input if is_op(maker, "Concat") else maker.input[:1]
        for reader in index.readers.get(name, []):
            if _keeps(index, reader) and (is_op(reader, "Concat") or reader.input[0] == name):
                pending += reader.output


def _is_product(index: GraphIndex, name: str) -> bool:
    """Whether a sum of products makes a value: HTP gives it the width of what is multiplied."""
    maker = index.makers.get(name)
    return maker is not None and is_op(maker, *PRODUCTS)


def _converts(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node moves what a product made, and has to read it in the type of the state."""
    return moves_data(index, node) and _is_product(index, node.input[0])


def _keeps(index: GraphIndex, node: NodeProto) -> bool:
    return is_op(node, "Concat") or moves_data(index, node)


def _fixed(index: GraphIndex) -> Iterator[tuple[str, Range]]:
    for value in index.model.graph.input:
        yield from ((value.name, span) for stem, span in _FIXED.items() if value.name.startswith(stem))


def _stored(index: GraphIndex, name: str) -> Edge | None:
    """The encoding of a value of the float model in a QDQ model, None where it has none of its own there."""
    for candidate in (name, f"{name}_DequantizeLinear_Output"):
        found = encoding_of(index, candidate)
        if found is not None:
            return Edge(found.dtype, float(found.scale), found.zero_point)
    return None


def _edge(index: GraphIndex, node: NodeProto) -> Edge:
    scale, zero_point = index.scalar(node.input[1]), index.constant(node.input[2])
    assert scale is not None
    assert zero_point is not None
    return Edge(zero_point.dtype.name, float(scale), int(zero_point.reshape(-1)[0]))


def _element(dtype: str) -> int:
    return {"uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16}[dtype]
