"""The functions of a model (https://onnx.ai/onnx/repo-docs/IR.html#functions), ready to be written out.

ONNX's inliner (1.23) drops attributes that a call leaves to their default, and onnxruntime reads the operators of a
function at the model's opset, whatever the function imports. :func:`bind_attributes` gives each call a function without
attributes, at the opset of the model::

    y = act(x)      act<slope = 0.3>(a): LeakyRelu<alpha = @slope>(a)
    becomes
    y = act(x)      act(a): LeakyRelu<alpha = 0.3>(a)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, defs
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from pipeline.errors import ModelError
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, all_nodes, attribute_graphs, captured, label

Identity = tuple[str, str, str]
"""A function's domain, name and overload."""

Values = Mapping[str, AttributeProto]


def identity_of(call: NodeProto | FunctionProto) -> Identity:
    """The function that this is, or that a node calls if there is one."""
    name = call.op_type if isinstance(call, NodeProto) else call.name
    return "" if call.domain in DEFAULT_DOMAINS else call.domain, name, call.overload


def bind_attributes(model: ModelProto) -> ModelProto:
    """A copy whose functions have no attributes: one for each set of values that calls give. Others are left out.

    Calls must have an end (:func:`pipeline.graph.files.admission.check_functions`).

    Raises:
        ModelError: a function is there twice, is an operator of onnxruntime as well, takes a graph that reads values
            around the call, or has an operator that is another one at the model's opset.
    """
    bound = ModelProto()
    bound.CopyFrom(model)
    del bound.functions[:]
    functions: dict[Identity, FunctionProto] = {}
    for function in model.functions:
        if identity_of(function) in functions:
            raise refused(f"function {function.name!r} is there twice")
        functions[identity_of(function)] = function
    _Binding(functions, bound).bind(all_nodes(bound.graph))
    return bound


def refused(why: str) -> ModelError:
    """The error for functions that can't be written out."""
    return ModelError(
        "the functions of the model can't be written out where they are called",
        why=why,
        remedy="export the model again; in PyTorch, with optimize=True",
    )


class _Binding:
    def __init__(self, functions: Mapping[Identity, FunctionProto], model: ModelProto) -> None:
        self._functions = functions
        self._model = model
        self._overloads: dict[tuple[Identity, bytes], str] = {}

    def bind(self, nodes: Iterable[NodeProto]) -> None:
        """Let calls among `nodes` call functions without attributes, which are added to the model."""
        for node in nodes:
            function = self._functions.get(identity_of(node))
            if function is None:
                continue
            if identity_of(node)[:2] in _operators():
                raise refused(
                    f"function {node.op_type!r} has the name of an operator of onnxruntime, which computes that"
                )
            values = {each.name: each for each in (*function.attribute_proto, *node.attribute)}
            for each in values.values():
                if outside := [name for graph in _graphs(each) for name in captured(graph)]:
                    raise refused(f"attribute {each.name!r} of {label(node)} is a graph that reads {outside[0]!r}")
            del node.attribute[:]
            node.overload = self._overload(function, values)

    def _overload(self, function: FunctionProto, values: Values) -> str:
        """The overload of a function under which it stands with these values."""
        content = b"".join(values[name].SerializeToString(deterministic=True) for name in sorted(values))
        key = identity_of(function), content
        if key not in self._overloads:
            self._overloads[key] = f"{function.overload}bound{len(self._overloads)}"
            made = FunctionProto()
            made.CopyFrom(function)
            for field in ("attribute", "attribute_proto", "doc_string", "value_info", "opset_import"):
                made.ClearField(field)
            made.overload = self._overloads[key]
            _resolve(made.node, values)
            self._take_opset(made, function)
            self.bind(node for each in made.node for node in (each, *_inside(each)))
            self._model.functions.append(made)
        return self._overloads[key]

    def _take_opset(self, made: FunctionProto, function: FunctionProto) -> None:
        """Let a function import what the model does, which imports what only a function did.

        Raises:
            ModelError: that would change an operator.
        """
        own, model = (_imports(each) for each in (function, self._model))
        for domain in own.keys() - model.keys():
            self._model.opset_import.add(domain=domain, version=own[domain])
        made.opset_import.extend(self._model.opset_import)
        for node in (inner for each in made.node for inner in (each, *_inside(each))):
            domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
            version, wanted = own.get(domain), model.get(domain)
            if version is None or wanted is None or identity_of(node) in self._functions:
                continue
            if not _means_the_same(node.op_type, domain, version, wanted):
                raise refused(
                    f"function {function.name!r} is of opset {version}, the model of {wanted},"
                    f" and {node.op_type} is another operator there"
                )


def _resolve(nodes: Iterable[NodeProto], values: Values) -> None:
    """Put values in place of references to attributes of the function; one that has none is left out."""
    for node in nodes:
        for graph in attribute_graphs(node):
            _resolve(graph.node, values)
        kept = []
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                kept.append(attribute)
            elif attribute.ref_attr_name in values:
                kept.append(AttributeProto())
                kept[-1].CopyFrom(values[attribute.ref_attr_name])
                kept[-1].name = attribute.name
        kept = [AttributeProto.FromString(each.SerializeToString()) for each in kept]
        del node.attribute[:]
        node.attribute.extend(kept)


def _imports(of: ModelProto | FunctionProto) -> dict[str, int]:
    return {"" if each.domain in DEFAULT_DOMAINS else each.domain: each.version for each in of.opset_import}


def _inside(node: NodeProto) -> Iterator[NodeProto]:
    for graph in attribute_graphs(node):
        yield from all_nodes(graph)


def _graphs(attribute: AttributeProto) -> tuple[GraphProto, ...]:
    return (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ()))


@functools.cache
def _operators() -> frozenset[tuple[str, str]]:
    """Domains and names that onnxruntime takes for operators of its own, whatever functions a model has."""
    return frozenset((each.domain, each.name) for each in get_all_operator_schema())


def _means_the_same(kind: str, domain: str, version: int, wanted: int) -> bool:
    """Whether an operator of one opset computes the same at another: inputs, outputs, attributes and defaults agree.

    At a later one, attributes and inputs may have come to it.
    """
    try:
        old, new = (defs.get_schema(kind, each, domain) for each in (version, wanted))
    except defs.SchemaError:
        return version == wanted
    if old.since_version == new.since_version:
        return True
    ours, others = _form(old), _form(new)
    return ours == others or (version < wanted and all(mine <= more for mine, more in zip(ours, others, strict=True)))


def _form(schema: defs.OpSchema) -> tuple[set[object], set[object], set[object]]:
    attributes: set[object] = {
        (name, str(each.type), each.default_value.SerializeToString()) for name, each in schema.attributes.items()
    }
    inputs: set[object] = {(place, each.name, str(each.option)) for place, each in enumerate(schema.inputs)}
    outputs: set[object] = {(place, each.name, str(each.option)) for place, each in enumerate(schema.outputs)}
    return attributes, inputs, outputs
