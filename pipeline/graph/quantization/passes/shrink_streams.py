"""Streams that float16 does not hold are computed in a unit that is a power of two times as large.

Before, where a stream reaches beyond half of what float16 holds, and something of it computes in float::

    x1 = Add(x0, MatMul(a, W))                       x0: an embedding
    y = LayerNormalization(x1, epsilon=e)

After, with ``s`` a power of two that makes 8192 of its largest value at most::

    x1/s = Add(Mul(x0, 1/s), MatMul(Mul(a, 1/s), W))
    y = LayerNormalization(x1/s, epsilon=e/s**2)

What is given to a product is scaled, not its weights, which all buckets share; its bias is, and constants that are
added. What is read otherwise than through a norm, or is an output, is multiplied by ``s`` again. Nothing is rounded
otherwise by it, but what float16 has no bits for in the smaller unit: 1e-3 and less, next to 8192.

What rules say of a value or a constant, and what calibration measured of it, holds for what it becomes.

HTP (2.51, emulated), a stream of three blocks that reaches 196,000, all in float16: 19 dB without, 66 with it.

Left alone: a stream of which nothing computes in float; one that is read as it is, or comes from elsewhere than a
product with weights, where float16 does not hold it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from pipeline.contracts.scheme import FP16, Rule, Scheme
from pipeline.graph.ir.index import GraphIndex, element_type, sort_nodes
from pipeline.graph.ir.traverse import input_at
from pipeline.graph.quantization.calibration.ranges import Range, Ranges
from pipeline.graph.quantization.passes.residual_streams import LOUD, Stream, carried, is_product, size_of, streams
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment

_LARGEST = 8192.0
"""What the largest value that calibration saw becomes at most: an eighth of what float16 holds: others are larger."""
_EPSILON = 1e-5
"""Of norms that do not say theirs."""


@dataclass(frozen=True)
class Shrunk:
    """What holds for a model whose streams are in another unit."""

    ranges: Ranges
    scheme: Scheme
    """With rules about the nodes that were put in, and what it says of a value also of the one in its place."""
    made: dict[str, str]
    """Values and constants that are others in another unit, and which."""


def shrink_streams(index: GraphIndex, ranges: Mapping[str, Range], scheme: Scheme) -> Shrunk | None:
    """Do so in the float model of `index`, which is stale then. None where there is no such stream."""
    loud = [stream for stream in streams(index, ranges) if _may_shrink(index, stream, ranges)]
    if not loud:
        return None
    assignment = Assignment(index, scheme)
    found = [stream for stream in loud if _is_in_float(stream, assignment)]
    if not found:
        return None
    measured = dict(ranges)
    chosen = {bits: dict(each) for bits, each in ranges.chosen.items()} if isinstance(ranges, Ranges) else {}
    rules, made = list[Rule](), dict[str, str]()
    for stream in found:
        factor = 2.0 ** -math.ceil(math.log2(stream.largest(ranges) / _LARGEST))
        shrinking = _Shrinking(index, assignment, stream, factor)
        shrinking.run()
        for name, origin in shrinking.made.items():
            for spans in (measured, *chosen.values()):
                if origin in spans:
                    spans[name] = Range(spans[origin].low * factor, spans[origin].high * factor)
        rules += shrinking.rules
        made |= shrinking.made
    sort_nodes(index.model)
    overrides = tuple(_about_both(rule, made) for rule in scheme.overrides)
    return Shrunk(Ranges(measured, chosen), replace(scheme, overrides=overrides).with_rules(rules), made)


def _about_both(rule: Rule, made: Mapping[str, str]) -> Rule:
    """The rule, also about what is made of the values that it names."""
    new = (name for name, origin in made.items() if rule.matches_tensor(origin) and not rule.matches_tensor(name))
    return replace(rule, tensors=(*rule.tensors, *new)) if rule.tensors else rule


def _is_in_float(stream: Stream, assignment: Assignment) -> bool:
    return any(assignment.stored_in(name) == FLOAT for name in stream.values)


def _may_shrink(index: GraphIndex, stream: Stream, ranges: Mapping[str, Range]) -> bool:
    """Whether what crosses the stream's edge in its own unit is small enough for float16."""
    outside = [name for name in stream.entering if not is_product(index, index.makers.get(name))]
    return all(size_of(ranges, name) <= LOUD for name in (*outside, *stream.leaving))


class _Shrinking:
    """Puts one stream into another unit."""

    def __init__(self, index: GraphIndex, assignment: Assignment, stream: Stream, factor: float) -> None:
        self._index = index
        self._assignment = assignment
        self._stream = stream
        self._factor = factor
        self._names = {name: index.unused(f"{name}_shrunk") for name in stream.values}
        self._constants: dict[str, str] = {}
        self._added: list[NodeProto] = []
        self.made = {shrunk: name for name, shrunk in self._names.items()}
        """Values and constants that are ``factor`` times another, and which."""
        self.rules: list[Rule] = []

    def run(self) -> None:
        """Change the graph; its nodes are in no order then."""
        graph = self._index.model.graph
        for name, shrunk in self._names.items():
            graph.value_info.append(ValueInfoProto(name=shrunk, type=self._index.types[name]))
        for norm in self._stream.norms:
            self._read_shrunk(norm)
        outside = {name for name in self._stream.entering if not is_product(self._index, self._index.makers.get(name))}
        for node in list(graph.node):
            if any(name in self._names and name not in outside for name in node.output):
                self._make_shrunk(node)
        for name in outside:
            self._put(name, self._factor, self._names[name], name, self._assignment.stored_in(name))
        for name in self._stream.leaving:
            if name not in outside:
                self._put(self._names[name], 1 / self._factor, name, name, self._assignment.stored_in(name))
        graph.node.extend(self._added)

    def _read_shrunk(self, norm: NodeProto) -> None:
        norm.input[0] = self._names[norm.input[0]]
        given = next((each for each in norm.attribute if each.name == "epsilon"), None)
        if given is None:
            given = helper.make_attribute("epsilon", _EPSILON)
            norm.attribute.append(given)
            given = norm.attribute[-1]
        given.f *= self._factor**2

    def _make_shrunk(self, node: NodeProto) -> None:
        """Let a node make its values of the stream in the smaller unit."""
        if is_product(self._index, node):
            self._scale_product(node)
        for place in carried(self._index, node) or ():
            name = node.input[place]
            node.input[place] = self._names.get(name) or self._scaled(name)
        for place, name in enumerate(node.output):
            node.output[place] = self._names.get(name, name)

    def _scale_product(self, node: NodeProto) -> None:
        given = str(node.input[0])
        shrunk = self._index.unused(f"{given}_shrunk_for_{node.output[0]}")
        self._index.model.graph.value_info.append(ValueInfoProto(name=shrunk, type=self._index.types[given]))
        self.made[shrunk] = given
        self._put(given, self._factor, shrunk, node.output[0], self._assignment.computes_in(node))
        node.input[0] = shrunk
        if input_at(node, 2):
            node.input[2] = self._scaled(node.input[2])

    def _put(self, given: str, factor: float, made: str, alike: str, kind: str) -> None:
        """A node that scales a value, computes in `kind`, and makes floats of the type of `alike`."""
        half = element_type(self._index, alike)
        number = self._index.unused(f"{made}_unit")
        values = np.array([factor], helper.tensor_dtype_to_np_dtype(half))
        self._index.model.graph.initializer.append(numpy_helper.from_array(values, number))
        node = helper.make_node("Mul", [given, number], [made], f"{made}_in_unit")
        self._added.append(node)
        precise = Rule(nodes=(node.name,), precision=FP16)
        self.rules.append(precise if kind == FLOAT else Rule(nodes=(node.name,), activations=kind))

    def _scaled(self, name: str) -> str:
        """The name of a constant in the smaller unit."""
        if name not in self._constants:
            values = self._index.constant(name)
            assert values is not None
            made = self._constants[name] = self._index.unused(f"{name}_shrunk")
            self.made[made] = name
            scaled = (values * values.dtype.type(self._factor)).astype(values.dtype)
            self._index.model.graph.initializer.append(numpy_helper.from_array(scaled, made))
        return self._constants[name]
