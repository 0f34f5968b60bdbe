"""Computes both branches of an If whose condition is data, and chooses: HTP runs one fixed sequence of operators.

    y = If(c) {then: t = Relu(x) -> t, else: x -> x}

becomes::

    if0/then/t = Relu(x);  y = Where(Reshape(c, one element of y's rank), if0/then/t, x)

What a branch computes where it was not chosen is thrown away; what it can't compute there is kept from it
(`guarding`). Each branch stands there once, so a graph grows by no more than the Where nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from onnx import GraphProto, NodeProto, TypeProto, helper, numpy_helper

from pipeline.graph.files.inlining import take_branch
from pipeline.graph.ir.inference import is_static, shape_of
from pipeline.graph.shapes.guarding import Guards

_BRANCHES = {"then_branch": "then", "else_branch": "else"}


class UnlikeBranchesError(Exception):
    """The branches give values of different types or shapes, or none that are tensors."""


def compute_both(node: NodeProto, type_of: Callable[[str], TypeProto | None], guards: Guards) -> Iterator[GraphProto]:
    """Parts of a graph to stand where an If stood: one branch, the other, and the choice. Each is made when asked for.

    `type_of` gives the type of a value once its part has been gone through, None where it has none. `guards` is told
    which branch the parts are of.

    Raises:
        UnlikeBranchesError: their values don't fit each other, when the choice is asked for.
        ModelError: a branch has not as many outputs as the If.
    """
    prefix = f"{node.name or node.output[0]}/"
    made = {
        which: [f"{prefix}{short}_{output}" if output else "" for output in node.output]
        for which, short in _BRANCHES.items()
    }
    for which, short in _BRANCHES.items():
        yield guards.enter(f"{prefix}{short}_chosen", node.input[0], holds=short == "then")
        yield take_branch(node, which, f"{prefix}{short}/", made[which])
        guards.leave()
    choice = GraphProto()
    for output, one, other in zip(node.output, *made.values(), strict=True):
        if output:
            _choose(choice, node, output, (one, other), type_of)
    yield choice


def _choose(
    part: GraphProto,
    node: NodeProto,
    output: str,
    values: tuple[str, str],
    type_of: Callable[[str], TypeProto | None],
) -> None:
    kinds = [type_of(value) for value in values]
    if kinds[0] is None or not is_static(kinds[0]) or kinds[0] != kinds[1]:
        raise UnlikeBranchesError(output)
    rank = len(shape_of(kinds[0]))
    name = f"{node.name or node.output[0]}/{output}"
    part.initializer.append(numpy_helper.from_array(np.ones(rank, np.int64), f"{name}_shape"))
    condition = f"{name}_condition"
    part.node.append(helper.make_node("Reshape", [node.input[0], f"{name}_shape"], [condition], condition))
    part.node.append(helper.make_node("Where", [condition, *values], [output], name))
