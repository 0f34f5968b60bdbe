"""Writes out loops whose number of iterations is known once shapes are, one iteration after another.

    y, s = Loop(3, true, x) {i, c, v: u = Add(v, w) -> c, u, u}

becomes::

    loop/0/u = Add(x, w)   loop/1/u = Add(loop/0/u, w)   loop/2/u = Add(loop/1/u, w)
    y = Identity(loop/2/u)   s = Concat(of the three, each with an axis in front)

An iteration is made when the one before has been folded, so that a condition which follows from the number of the
iteration, or from shapes, is known by then. What is the same in every iteration stands in front of them, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files.inlining import rename
from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.traverse import attribute_graphs, label, reads
from pipeline.graph.shapes.folding import is_random

UNROLL_LIMIT = 10_000
"""The most nodes that the loops of a model may become: 500 steps of a recurrence that is written with 20 nodes."""


class DataDependentError(Exception):
    """How often a loop runs follows from `value`, which is not known before the model runs."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


class Unroller:
    """Writes out the loops of one model.

    `known` gives the value of a constant, None for any other value; `dims` the shape of any value.
    """

    def __init__(self, known: Callable[[str], NDArray[Any] | None], dims: Callable[[str], Sequence[int]]) -> None:
        self._known = known
        self._dims = dims
        self._written = 0

    def unroll(self, node: NodeProto) -> Iterator[GraphProto]:
        """Parts of a graph to stand where a Loop or Scan stood, in their order; each is made when it is asked for.

        Raises:
            DataDependentError: the number of iterations is not known.
            ModelError: there are too many, or none and an output has therefore no elements.
        """
        return self._loop(node) if node.op_type == "Loop" else self._scan(node)

    def _loop(self, node: NodeProto) -> Iterator[GraphProto]:
        body = _Body(node)
        most, going = (*node.input, "", "")[:2]
        trips = self._decided(most) if most else None
        state = list(node.input[2:])
        stacked: list[list[str]] = [[] for _ in body.graph.output[1 + len(state) :]]
        yield body.beginning()
        number = 0
        while (trips is None or number < trips) and (not going or self._decided(going)):
            self._count(node, body)
            part = GraphProto()
            counter = body.constant(part, number, 0, np.int64(number))
            goes_on = going or body.constant(part, number, 1, np.bool_(True))
            going, *made = body.iteration(part, number, (counter, goes_on, *state))
            yield part
            state = made[: len(state)]
            for values, value in zip(stacked, made[len(state) :], strict=True):
                values.append(value)
            number += 1
        end = GraphProto()
        _name(end, node, state)
        for output, values in zip(node.output[len(state) :], stacked, strict=False):
            _stack(end, node, output, values, axis=0)
        yield end

    def _scan(self, node: NodeProto) -> Iterator[GraphProto]:
        body = _Body(node)
        given = settings(node)
        count = given["num_scan_inputs"]
        state, scanned = list(node.input[:-count]), list(node.input[-count:])
        results = len(body.graph.output) - len(state)
        axes = given.get("scan_input_axes", [0] * count)
        backward = given.get("scan_input_directions", [0] * count)
        stacked: list[list[str]] = [[] for _ in range(results)]
        yield body.beginning()
        trips = self._dims(scanned[0])[axes[0]]
        for number in range(trips):
            self._count(node, body)
            part = GraphProto()
            slices = []
            for position, name in enumerate(scanned):
                place = trips - 1 - number if backward[position] else number
                index = body.constant(part, number, len(state) + position, np.int64(place), "index")
                slices.append(f"{body.prefix}{number}/{body.graph.input[len(state) + position].name}")
                axis = axes[position]
                part.node.append(helper.make_node("Gather", [name, index], slices[-1:], slices[-1], axis=axis))
            made = body.iteration(part, number, (*state, *slices))
            yield part
            state = made[: len(state)]
            for values, value in zip(stacked, made[len(state) :], strict=True):
                values.append(value)
        end = GraphProto()
        _name(end, node, state)
        axes, backward = (
            given.get("scan_output_axes", [0] * results),
            given.get("scan_output_directions", [0] * results),
        )
        for position, (output, values) in enumerate(zip(node.output[len(state) :], stacked, strict=False)):
            _stack(end, node, output, values[::-1] if backward[position] else values, axis=axes[position])
        yield end

    def _decided(self, name: str) -> int:
        value = self._known(name)
        if value is None:
            raise DataDependentError(name)
        return int(value.item())

    def _count(self, node: NodeProto, body: _Body) -> None:
        self._written += len(body.repeated)
        if self._written > UNROLL_LIMIT:
            raise ModelError(
                f"node {label(node)} runs too often to be written out",
                why=f"an iteration of it has {len(body.repeated)} nodes, and the loops of a model may become"
                f" {UNROLL_LIMIT} nodes; HTP runs one fixed sequence of operators, without loops",
                remedy="choose smaller values for the axes that it runs over, export the model without the loop (an RNN"
                " as LSTM or GRU), or let the application run it, with its body as a model of its own",
            )


class _Body:
    """What a loop runs, its nodes apart into those that are the same in every iteration and the others."""

    def __init__(self, node: NodeProto) -> None:
        self.prefix = f"{node.name or node.output[0]}/"
        self.graph = GraphProto()
        self.graph.CopyFrom(next(attribute_graphs(node)))
        varying = {value.name for value in self.graph.input}
        self.repeated: list[NodeProto] = []
        self._once: list[NodeProto] = []
        for inner in self.graph.node:
            if varying.isdisjoint(reads(inner)) and not is_random(inner):
                self._once.append(inner)
            else:
                self.repeated.append(inner)
                varying.update(inner.output)
        shared = [tensor.name for tensor in self.graph.initializer]
        shared += [name for inner in self._once for name in inner.output if name]
        self._shared = {name: self.prefix + name for name in shared}

    def beginning(self) -> GraphProto:
        """The initializers and nodes that are there once."""
        part = GraphProto(initializer=self.graph.initializer)
        for tensor in part.initializer:
            tensor.name = self._shared[tensor.name]
        _extend(part, self._once, self._shared, self.prefix)
        return part

    def constant(self, part: GraphProto, number: int, position: int, value: Any, suffix: str = "value") -> str:
        """Add a value for an input of this iteration: a scalar, or of one element where the body declares a rank."""
        declared = self.graph.input[position]
        rank = 0 if suffix == "index" else len(declared.type.tensor_type.shape.dim)
        name = f"{self.prefix}{number}/{declared.name}_{suffix}"
        part.initializer.append(numpy_helper.from_array(np.asarray(value).reshape([1] * rank), name))
        return name

    def iteration(self, part: GraphProto, number: int, inputs: Sequence[str]) -> list[str]:
        """Add the nodes of an iteration with these inputs; the names of what it gives."""
        prefix = f"{self.prefix}{number}/"
        names = self._shared | {name: prefix + name for node in self.repeated for name in node.output if name}
        names |= {value.name: given for value, given in zip(self.graph.input, inputs, strict=True)}
        _extend(part, self.repeated, names, prefix)
        return [names.get(value.name, value.name) for value in self.graph.output]


def _extend(part: GraphProto, nodes: Sequence[NodeProto], names: Mapping[str, str], prefix: str) -> None:
    copies = GraphProto(node=nodes)
    rename(copies, names)
    for node in copies.node:
        node.name = prefix + (node.name or next(filter(None, node.output), node.op_type))
    part.node.extend(copies.node)


def _name(part: GraphProto, node: NodeProto, values: Sequence[str]) -> None:
    """Give values the names of a loop's first outputs."""
    for output, value in zip(node.output, values, strict=False):
        if output:
            part.node.append(helper.make_node("Identity", [value], [output], f"{node.name}/{output}"))


def _stack(part: GraphProto, node: NodeProto, output: str, values: Sequence[str], *, axis: int) -> None:
    """Make one output of what all iterations gave for it."""
    if not output:
        return
    if not values:
        raise ModelError(
            f"node {label(node)} runs no iteration, so that its output {output!r} has no elements",
            why="QNN takes no empty tensors",
            remedy="choose values of the axes for which it runs, or export the model without the loop",
        )
    name = f"{node.name}/{output}"
    part.initializer.append(numpy_helper.from_array(np.array([axis]), f"{name}_axis"))
    for number, value in enumerate(values):
        part.node.append(
            helper.make_node("Unsqueeze", [value, f"{name}_axis"], [f"{name}_{number}"], f"{name}_{number}")
        )
    slices = [f"{name}_{number}" for number in range(len(values))]
    part.node.append(helper.make_node("Concat", slices, [output], name, axis=axis))
