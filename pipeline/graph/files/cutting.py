"""Takes a part of a model: from values in its middle that the config names, or up to such values.

What an application does better by itself, or HTP can't do, stands at the end of many models: non-maximum suppression,
lists of variable length, texts of labels. Others have a length in their middle that depends on data, as of speech, or
draw random numbers there: they are two parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, shape_inference

from pipeline.errors import ConfigError
from pipeline.graph.ir.inference import REFUSALS
from pipeline.graph.ir.traverse import live_nodes, reads
from pipeline.plain_text import did_you_mean


def take_part(model: ModelProto, begins: Sequence[str], ends: Sequence[str]) -> tuple[str, ...]:
    """Make `begins` inputs of `model`, and `ends` its outputs, in their order, in place; what needs neither goes.

    Without `ends` it ends at those of its own outputs that are computed from `begins`. Returns the names of the inputs
    that went.

    Raises:
        ConfigError: no node outside of branches and loops makes a value of that name, or nothing is computed from it;
            or nothing says what type and how many dims a value to begin at has; or a name is there twice.
    """
    graph = model.graph
    made = {name for node in graph.node for name in node.output if name}
    given = {value.name for value in graph.input}
    _check_made("begin", begins, made, given)
    _check_made("cut", ends, made, given)
    types = _types(model, {*begins, *ends})
    for name in begins:
        _check_known(name, types[name])
    read_before = {name for node in graph.node for name in reads(node)}
    nodes = [_without(node, begins) for node in graph.node]
    behind = _behind(nodes, begins)
    outputs = [types[name] for name in ends] or [value for value in graph.output if value.name in behind]
    if not outputs:
        raise ConfigError(
            f"none of the model's outputs is computed from {', '.join(map(repr, begins))}",
            where="begin",
            remedy="begin at values that its outputs need, or say with 'cut' what the component ends at",
        )
    kept = live_nodes(nodes, [value.name for value in outputs])
    read = {name for node in kept for name in reads(node)}
    for name in begins:
        if name not in read:
            raise ConfigError(
                f"nothing that the component ends at is computed from {name!r}",
                where="begin",
                remedy="leave it out, or end at values behind it",
            )
    inputs = [value for value in graph.input if value.name in read or value.name not in read_before]
    gone = tuple(value.name for value in graph.input if value.name not in {value.name for value in inputs})
    for field, values in (("node", kept), ("input", [*inputs, *(types[name] for name in begins)]), ("output", outputs)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    return gone


def _check_made(where: str, names: Sequence[str], made: Collection[str], given: Collection[str]) -> None:
    does = {"begin": "begins", "cut": "ends"}[where]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f"{name!r} is there twice", where=where, remedy="leave one of them out")
        if name in given and name not in made:
            raise ConfigError(
                f"the model makes no value {name!r}: it is one of its inputs",
                where=where,
                why=f"a component {does} at values that nodes make, and has those inputs of the file that it needs",
                remedy="leave it out",
            )
        if name not in made:
            raise ConfigError(
                f"the model makes no value {name!r}{did_you_mean(name, made)}",
                where=where,
                why=f"a component {does} at values that its nodes make, and not inside of branches or loops",
                remedy="name values as the ONNX file does; a viewer as https://netron.app shows them",
            )


def _check_known(name: str, declared: ValueInfoProto) -> None:
    if not declared.type.tensor_type.elem_type or not declared.type.tensor_type.HasField("shape"):
        raise ConfigError(
            f"nothing says what type and how many dims the value {name!r} has",
            where="begin",
            why="the file doesn't, and they don't follow from the operators in front of it",
            remedy="begin at a value behind it, or in front of it",
        )


def _without(node: NodeProto, names: Collection[str]) -> NodeProto:
    """A copy of a node that makes none of these."""
    copy = NodeProto()
    copy.CopyFrom(node)
    for place, name in enumerate(node.output):
        if name in names:
            copy.output[place] = ""
    return copy


def _behind(nodes: Sequence[NodeProto], begins: Collection[str]) -> set[str]:
    """The values that are computed from `begins`; `nodes` are in topological order."""
    found = {*begins}
    for node in nodes:
        if not found.isdisjoint(reads(node)):
            found.update(node.output)
    return found - {*begins, ""}


def _types(model: ModelProto, names: Collection[str]) -> dict[str, ValueInfoProto]:
    """Declarations of these values: the file's own, what ONNX infers, or float32 of any shape."""
    graph = model.graph
    declared = [value for value in (*graph.value_info, *graph.output) if value.name in names]
    found = {value.name: value for value in declared if value.type.tensor_type.HasField("shape")}
    if any(name not in found for name in names):
        try:
            inferred = shape_inference.infer_shapes(model, data_prop=True).graph
        except REFUSALS:
            inferred = graph
        found = {value.name: _named(value, graph) for value in inferred.value_info if value.name in names} | found
    unknown = helper.make_tensor_value_info
    return {name: found.get(name) or unknown(name, TensorProto.FLOAT, None) for name in names}


def _named(inferred: ValueInfoProto, graph: GraphProto) -> ValueInfoProto:
    """A declaration without the names that inference made up for dims: those of the model's inputs stay."""
    dims = (dim for value in graph.input for dim in value.type.tensor_type.shape.dim)
    known = {dim.dim_param for dim in dims}
    for dim in inferred.type.tensor_type.shape.dim:
        if dim.dim_param not in known:
            dim.ClearField("dim_param")
    return inferred
