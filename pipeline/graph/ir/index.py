"""Who makes and who reads each value of a graph, and what is left over when nobody does any more."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper

from pipeline.graph.files.model_file import tensor_array, tensor_pieces
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, live_nodes, reads

CONTRIB_DOMAIN = "com.microsoft"
"""Where onnxruntime keeps operators of its own."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""The element types that are quantized."""
WHOLE = (
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8,
    TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
"""The element types of whole numbers."""


class GraphIndex:
    """A snapshot of a model's top-level graph; build a new one after changing it."""

    def __init__(self, model: ModelProto, folder: Path) -> None:
        """`folder` holds the blobs that external initializers refer to."""
        graph = model.graph
        self.model = model
        self._folder = folder
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = frozenset(value.name for value in graph.output)
        self.types: dict[str, TypeProto] = {
            value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self.makers: dict[str, NodeProto] = {}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.output[:]:
                if name:
                    self.makers[name] = node
            for name in dict.fromkeys(reads(node)):
                if name in self.readers:
                    self.readers[name].append(node)
                else:
                    self.readers[name] = [node]

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of an initializer, None for any other value. Raises ModelError if its data is damaged."""
        tensor = self.initializers.get(name)
        return None if tensor is None else tensor_array(tensor, self._folder)

    def pieces(self, name: str) -> Pieces:
        """The value of an initializer a piece at a time. Raises ModelError if its data is damaged."""
        return tensor_pieces(self.initializers[name], self._folder)

    def scalar(self, name: str) -> float | None:
        """The value of an initializer of one number, or of one number many times; None for any other value."""
        array = self.constant(name)
        if array is None or array.size == 0 or array.dtype.kind not in "fiu":
            return None
        number = float(array.flat[0])
        return number if (array == array.flat[0]).all() else None

    def maker(self, name: str, *op_types: str) -> NodeProto | None:
        """The node that makes a value, if it is one of ONNX's own operators of these types."""
        node = self.makers.get(name)
        return node if node is not None and is_op(node, *op_types) else None

    def sole_reader(self, name: str, *op_types: str) -> NodeProto | None:
        """The only node that reads a value no one else sees, if it is one of ONNX's own operators of these types."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs and is_op(readers[0], *op_types) else None

    def has(self, name: str) -> bool:
        """Whether a value or constant has this name."""
        return name in self.initializers or name in self.makers or name in self.types

    def unused(self, stem: str) -> str:
        """A name that no value has: `stem`, or `stem` with a number."""
        name, count = stem, 1
        while self.has(name):
            count += 1
            name = f"{stem}_{count}"
        return name


class LazyIndex(GraphIndex):
    """An index that is made when something in it is asked for: most rewrites find nothing by a node's kind."""

    FIELDS = frozenset(("initializers", "outputs", "types", "makers", "readers"))
    """What is made then."""

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.model, self._folder = model, folder

    def __getattr__(self, name: str) -> Any:
        if name not in self.FIELDS:
            raise AttributeError(name=name, obj=self)
        super().__init__(self.model, self._folder)
        return object.__getattribute__(self, name)


def is_op(node: NodeProto, *op_types: str) -> bool:
    """Whether a node is one of ONNX's own operators of these types."""
    return node.op_type in op_types and node.domain in DEFAULT_DOMAINS


def opset(model: ModelProto, domain: str = "") -> int:
    """The version of an operator set that a model imports; 0 if it doesn't."""
    domains = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
    return next((entry.version for entry in model.opset_import if entry.domain in domains), 0)


def import_contrib(model: ModelProto) -> None:
    """Make the model import onnxruntime's own operators, if it doesn't yet."""
    if not opset(model, CONTRIB_DOMAIN):
        model.opset_import.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))


def prune(model: ModelProto) -> None:
    """Remove what no output depends on: nodes, initializers, value types. Inputs and outputs stay."""
    graph = model.graph
    outputs = [value.name for value in graph.output]
    nodes = live_nodes(graph.node, outputs)
    used = {name for node in nodes for name in reads(node)}.union(outputs)
    values = used.union(*(node.output[:] for node in nodes)) - {value.name for value in (*graph.input, *graph.output)}
    _drop(graph.node, lambda node: used.isdisjoint(node.output[:]))
    _drop(graph.initializer, lambda tensor: tensor.name not in used)
    _drop(graph.value_info, lambda value: value.name not in values)


def substitute(model: ModelProto, removed: Iterable[NodeProto], added: Iterable[NodeProto]) -> None:
    """Remove nodes, and put those that make their results in their place; the order stays topological."""
    gone = {name for node in removed for name in node.output if name}
    kept = [node for node in model.graph.node if gone.isdisjoint(node.output)]
    set_nodes(model, _sorted([*kept, *added]))


def set_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    """Make these the nodes of a model, of which some may be its own; all are copied."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _drop(field: Any, is_dead: Callable[[Any], bool]) -> None:
    for place in reversed([place for place, item in enumerate(field) if is_dead(item)]):
        del field[place]


def sort_nodes(model: ModelProto) -> None:
    """Put the nodes in topological order; of those that could come next, the earliest in the present order does."""
    nodes = list(model.graph.node)
    order = _sorted(nodes)
    if order is not nodes:
        set_nodes(model, order)


def _sorted(nodes: list[NodeProto]) -> list[NodeProto]:
    order = in_order(nodes)
    assert order is not None, "the graph has a cycle"
    return order


def in_order(nodes: list[NodeProto]) -> list[NodeProto] | None:
    """The nodes in topological order, the list itself if they are; None if there is none, as the graph has a cycle."""
    makers = {name: number for number, node in enumerate(nodes) for name in node.output[:] if name}
    needs = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    if all(max(need, default=-1) < number for number, need in enumerate(needs)):
        return nodes
    waiting = [len(need) for need in needs]
    needed_by: list[list[int]] = [[] for _ in nodes]
    for number, need in enumerate(needs):
        for maker in need:
            needed_by[maker].append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    order: list[NodeProto] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(nodes[number])
        for reader in needed_by[number]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    return order if len(order) == len(nodes) else None


def element_type(index: GraphIndex, name: str) -> int:
    """The element type of a value or constant, 0 if unknown."""
    if name in index.initializers:
        return int(index.initializers[name].data_type)
    kind = index.types.get(name)
    return int(kind.tensor_type.elem_type) if kind is not None else 0


def is_float(index: GraphIndex, name: str) -> bool:
    """Whether a value or constant is of a type that is quantized."""
    return element_type(index, name) in FLOATS


def is_float32(index: GraphIndex, name: str) -> bool:
    """Whether a value or constant is of float32."""
    return element_type(index, name) == TensorProto.FLOAT
