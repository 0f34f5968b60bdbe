"""Takes the chosen branch of an If out into the graph around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper

from pipeline.errors import ModelError
from pipeline.graph.ir.traverse import attribute_graphs, label


def inline_branch(node: NodeProto, condition: NDArray[Any]) -> GraphProto:
    """The branch of an If that runs under `condition`, ready to stand where the If stood.

    Names that the branch defines get the If's name in front, for the other branch or another If may use them too; an
    Identity gives each of the branch's outputs the name that the If gave it::

        y = If(true) {then: t = Relu(x) -> t}      becomes      if0/t = Relu(x);  y = Identity(if0/t)

    Raises:
        ModelError: the condition is not one value, or the branch has not as many outputs as the If.
    """
    if condition.size != 1:
        raise ModelError(
            f"the condition of node {label(node)} is not one value",
            where=f"its input {node.input[0]!r} is {condition.dtype} {list(condition.shape)}",
            remedy="export the model again",
        )
    prefix = f"{node.name or node.output[0]}/"
    return take_branch(node, "then_branch" if condition.item() else "else_branch", prefix, node.output)


def take_branch(node: NodeProto, which: str, prefix: str, outputs: Sequence[str]) -> GraphProto:
    """One branch of an If, `then_branch` or `else_branch`, to stand in the graph around it.

    Names that the branch defines get `prefix` in front; an Identity gives each of its outputs a name of `outputs`.

    Raises:
        ModelError: the branch has not as many outputs as the If.
    """
    branch = GraphProto()
    branch.CopyFrom(next(attribute.g for attribute in node.attribute if attribute.name == which))
    names: dict[str, str] = {}
    for tensor in branch.initializer:
        tensor.name = names.setdefault(tensor.name, prefix + tensor.name)
    for inner in branch.node:
        names |= {name: prefix + name for name in inner.output if name}
        if inner.name:
            inner.name = prefix + inner.name
    rename(branch, names)
    if len(branch.output) != len(node.output):
        raise ModelError(
            f"node {label(node)} has {len(node.output)} outputs, its branch gives {len(branch.output)}",
            remedy="export the model again",
        )
    for made, given in zip(outputs, branch.output, strict=True):
        if made:
            source = names.get(given.name, given.name)
            branch.node.append(helper.make_node("Identity", [source], [made], name=f"{prefix}{made}"))
    return branch


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values throughout a graph, but in the subgraphs that define the name anew."""
    for node in graph.node:
        for field in (node.input, node.output):
            for position, name in enumerate(field):
                if name in names:
                    field[position] = names[name]
        for inner in attribute_graphs(node):
            own = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
            own |= {name for each in inner.node for name in each.output}
            rename(inner, {name: new for name, new in names.items() if name not in own})
            for value in inner.output:
                value.name = names.get(value.name, value.name) if value.name not in own else value.name
