"""Walking graphs: subgraphs, the tensors a graph holds, the values a node reads, what is dead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The two spellings of ONNX's own operator domain."""
_GRAPH, _GRAPHS = AttributeProto.GRAPH, AttributeProto.GRAPHS


def attribute_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs of a control-flow node (If, Loop, Scan, ...)."""
    for attribute in node.attribute[:]:
        if attribute.type == _GRAPH:
            yield attribute.g
        elif attribute.type == _GRAPHS:
            yield from attribute.graphs


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, those of subgraphs included, outer before inner."""
    for node in graph.node:
        yield node
        for inner in attribute_graphs(node):
            yield from all_nodes(inner)


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for inner in attribute_graphs(node):
            yield from all_graphs(inner)


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every dense tensor of a graph: initializers and tensor attributes, those of subgraphs included."""
    for inner in all_graphs(graph):
        yield from inner.initializer
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t
                elif attribute.type == AttributeProto.TENSORS:
                    yield from attribute.tensors


def all_names(graph: GraphProto) -> set[str]:
    """The names of all values and nodes, those of subgraphs included."""
    names = {each.name for inner in all_graphs(graph) for each in (*inner.input, *inner.initializer)}
    for node in all_nodes(graph):
        names |= {node.name, *node.output}
    return names


def unused(name: str, taken: Collection[str]) -> str:
    """The name, with underscores behind it as long as it is among `taken`."""
    while name in taken:
        name += "_"
    return name


def input_at(node: NodeProto, position: int) -> str:
    """The name of an input; empty if the node has none there."""
    return str(node.input[position]) if position < len(node.input) else ""


def other_input(node: NodeProto, name: str) -> str:
    """The input of a node of two inputs that isn't `name`, or `name` if both are."""
    return str(node.input[1] if node.input[0] == name else node.input[0])


def reads(node: NodeProto) -> list[str]:
    """Names of all values a node needs: its inputs, and what its subgraphs take from outside."""
    # Every index calls this. Slices are lists, which are walked in half the time; a generator takes half as long again.
    names: list[str] = list(filter(None, node.input[:]))
    for attribute in node.attribute[:]:
        kind = attribute.type
        if kind == _GRAPH:
            names += captured(attribute.g)
        elif kind == _GRAPHS:
            for inner in attribute.graphs:
                names += captured(inner)
    return names


def captured(graph: GraphProto) -> list[str]:
    """Names that a subgraph uses and does not define, in order of first use."""
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        found |= {name: None for name in reads(node) if name not in defined}
        defined.update(node.output)
    found |= {value.name: None for value in graph.output if value.name not in defined}
    return list(found)


def live_nodes(nodes: Iterable[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes that `outputs` depend on, in their order; `nodes` must be in topological order."""
    needed = set(outputs)
    live = []
    for node in reversed(list(nodes)):
        if not needed.isdisjoint(node.output[:]):
            live.append(node)
            needed.update(reads(node))
    return live[::-1]


def label(node: NodeProto) -> str:
    """How a message names a node: ``'encoder/mask' (Where)``; ``Where`` alone where nothing of it has a name."""
    domain = "" if node.domain in DEFAULT_DOMAINS else f"{node.domain}::"
    name = node.name or next(filter(None, node.output), "")
    return f"{name!r} ({domain}{node.op_type})" if name else f"{domain}{node.op_type}"
