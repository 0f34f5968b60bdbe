"""A random graph that grows form by form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Arrays = Mapping[str, NDArray[Any]]
Form = Callable[["Graph"], None]
"""Adds nodes to a graph, with outputs that are the graph's."""


@dataclass(frozen=True)
class Case:
    """A file with feeds, and by how much each output may differ: the rounding that the file does by itself."""

    model: ModelProto
    feeds: Arrays
    steps: tuple[float, ...]
    forms: str


class Graph:
    """Nodes of one opset, their constants and feeds. Names are chosen to meet those that readers make."""

    def __init__(self, random: Random, opset: int) -> None:
        self.random = random
        self.opset = opset
        self.rng = np.random.default_rng(random.getrandbits(32))
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._feeds: dict[str, NDArray[Any]] = {}
        self._outputs: list[tuple[str, float]] = []
        self._forms: list[str] = []
        self._names: set[str] = set()

    def grow(self, forms: Mapping[str, tuple[int, int, Form]]) -> None:
        """Add a form that the graph's opset has: each has its first and its last opset."""
        names = [name for name, (first, last, _) in forms.items() if first <= self.opset <= last]
        name = self.random.choice(names)
        self._forms.append(name)
        forms[name][2](self)

    def maybe(self, chance: float = 0.5) -> bool:
        """True by chance."""
        return self.random.random() < chance

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Some of these attributes."""
        return {name: value for name, value in attributes.items() if self.maybe()}

    def shape(self, least: int = 1, most: int = 4) -> tuple[int, ...]:
        """Dims of a small tensor."""
        return tuple(self.random.randint(2, 5) for _ in range(self.random.randint(least, most)))

    def axis(self, rank: int) -> int:
        """An axis; negative ones where operators know them (from opset 11 on)."""
        return self.random.randrange(-rank if self.opset >= 11 else 0, rank)

    def axes(self, rank: int) -> list[int]:
        """Different axes, in any order."""
        chosen = self.random.sample(range(rank), self.random.randint(1, rank))
        return [axis - rank if self.opset >= 11 and self.maybe(0.3) else axis for axis in chosen]

    def numbers(self, *shape: int) -> NDArray[np.float32]:
        """Normal numbers."""
        return self.rng.standard_normal(shape).astype(np.float32)

    def feed(self, array: ArrayLike) -> str:
        """An input of the model."""
        name = self._name("x")
        self._feeds[name] = np.asarray(array)
        return name

    def constant(self, array: ArrayLike | TensorProto) -> str:
        """A constant: an initializer, or a node."""
        name = self._name("c")
        tensor = TensorProto()
        tensor.CopyFrom(array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array)))
        tensor.name = name
        if self.maybe(0.8):
            self._constants.append(tensor)
        else:
            self._nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def integers(self, *values: int) -> str:
        """A constant of int64."""
        return self.constant(np.array(values, np.int64))

    def either(self, array: ArrayLike) -> str:
        """A constant or an input."""
        return self.constant(array) if self.maybe(0.7) else self.feed(array)

    def op(self, kind: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output, or of its outputs. Attributes that are None are left out."""
        given = list(inputs)
        while given and not given[-1] and self.maybe(0.8):
            given.pop()
        made = [self._name("v") for _ in range(outputs)]
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(kind, given, made, self._node_name(made[0]), domain=domain, **kept)
        self._nodes.append(node)
        return made[0] if outputs == 1 else made

    def drop(self, output: str) -> None:
        """Leave an output of the last node away."""
        node = self._nodes[-1]
        node.output[list(node.output).index(output)] = ""
        while not node.output[-1]:
            del node.output[-1]

    def give(self, *names: str, step: float = 0.0) -> None:
        """Let values be outputs of the model, which may differ by `step`."""
        self._outputs += [(name, step) for name in names]

    def case(self) -> Case:
        """The file."""
        graph = helper.make_graph(
            self._nodes,
            "g",
            [self._declared(name, array) for name, array in self._feeds.items()],
            [helper.make_empty_tensor_value_info(name) for name, _ in self._outputs],  # typed below
            self._constants,
        )
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid("com.microsoft", 1)] * any(node.domain for node in self._nodes)
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        _declare_outputs(model)
        return Case(model, self._feeds, tuple(step for _, step in self._outputs), ", ".join(self._forms))

    def _declared(self, name: str, array: NDArray[Any]) -> Any:
        dims: list[int | str] = [
            f"{name.replace('/', '')}_{axis}" if self.maybe(0.2) else size for axis, size in enumerate(array.shape)
        ]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)

    def _name(self, stem: str) -> str:
        name = self.random.choice((stem, "y", "node", "t"))
        if self._names and self.maybe(0.3):
            name = self.random.choice(sorted(self._names))
            name += self.random.choice(("/1", "/2", "/number", "_scale", "/scale", "_1", "//1"))
        while name in self._names:
            name += str(len(self._names))
        self._names.add(name)
        return name

    def _node_name(self, output: str) -> str:
        return self.random.choice(("", "", output, "node", f"{output}/1"))


def _declare_outputs(model: ModelProto) -> None:
    """Give the outputs the types that onnxruntime finds; float where it refuses the file."""
    found: dict[str, str] = {}
    with contextlib.suppress(Exception):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = {each.name: each.type for each in session.get_outputs()}
    for value in model.graph.output:
        spelt = found.get(value.name, "tensor(float)").removeprefix("tensor(").removesuffix(")")
        names = {"float": "FLOAT", "double": "DOUBLE"}
        kind = TensorProto.DataType.Value(names.get(spelt, spelt.upper()))
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, None))
