"""Local functions: nodes of a file put into functions, with attributes from calls and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper

from tests.fuzz.forms.graphs import Case

_NAMES = ("x", "y", "t", "a", "v", "node", "c")
"""Names in functions: those that files have around them, too."""


def with_functions(case: Case, random: Random) -> Case:
    """The file with most of its nodes in functions, which may call functions."""
    made = ModelProto()
    made.CopyFrom(case.model)
    wrapping = _Wrapping(made, random)
    nodes = [wrapping.wrapped(node) if _is_plain(node) else node for node in case.model.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    if random.random() < 0.3:
        wrapping.function(["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [], [])
    domains = {function.domain for function in made.functions}
    made.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(domains))
    return replace(case, model=made, forms=f"{case.forms} in functions")


def _is_plain(node: NodeProto) -> bool:
    return node.op_type != "Constant" and all(each.type != AttributeProto.GRAPH for each in node.attribute)


class _Wrapping:
    def __init__(self, model: ModelProto, random: Random) -> None:
        self._model = model
        self._random = random

    def wrapped(self, node: NodeProto) -> NodeProto:
        """A call of a new function around the node, one to three deep."""
        for _ in range(self._random.choice((1, 1, 2, 3))):
            node = self._call(node)
        return node

    def _call(self, node: NodeProto) -> NodeProto:
        random = self._random
        names = [f"{random.choice(_NAMES)}{n or ''}" for n in range(len(node.input) + len(node.output))]
        inputs, outputs = names[: len(node.input)], names[len(node.input) :]
        body = NodeProto()
        body.CopyFrom(node)
        body.input[:] = [formal if given else "" for formal, given in zip(inputs, node.input, strict=True)]
        body.output[:] = [formal if made else "" for formal, made in zip(outputs, node.output, strict=True)]
        outputs = [formal for formal in body.output if formal]
        del body.attribute[:]
        given: list[AttributeProto] = []
        defaults: list[AttributeProto] = []
        declared: list[str] = []
        for number, attribute in enumerate(node.attribute):
            way = random.choice(("literal", "given", "default", "overridden", "left out"))
            if way == "literal" or attribute.ref_attr_name:
                body.attribute.append(attribute)
                continue
            name = random.choice((attribute.name, f"{random.choice(_NAMES)}{number}"))
            body.attribute.append(_reference(attribute, name))
            if way in ("default", "overridden"):
                defaults.append(_named(attribute if way == "default" else _other(attribute), name))
            else:
                declared.append(name)
            if way in ("given", "overridden"):
                given.append(_named(attribute, name))
        nodes = [body] if random.random() < 0.6 else self._in_branches(body)
        if random.random() < 0.3:  # the last inputs of a function may be left out
            inputs.append("unused")
        function = self.function(inputs, outputs, nodes, declared, defaults)
        call = helper.make_node(
            function.name, list(node.input), [name for name in node.output if name], node.name, domain=function.domain
        )
        call.overload = function.overload
        call.attribute.extend(given)
        return call

    def function(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        nodes: Sequence[NodeProto],
        declared: Sequence[str],
        defaults: Sequence[AttributeProto],
    ) -> FunctionProto:
        """A new function of the model."""
        count, opset = len(self._model.functions), self._model.opset_import[0].version
        if self._random.random() < 0.1:
            opset += self._random.choice((-4, -1, 1, 3))
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        imports += [helper.make_opsetid(domain, 1) for domain in ("local", "other.domain")]
        shares = self._random.random() < 0.03  # onnxruntime 1.31 finds few of them
        function = helper.make_function(
            self._random.choice(("local", "other.domain")),
            "f" if shares else f"f{count}",
            inputs,
            outputs,
            nodes,
            imports,
            list(declared),
            list(defaults),
            overload=f"o{count}" if shares else "",
        )
        self._model.functions.append(function)
        return function

    def _in_branches(self, body: NodeProto) -> list[NodeProto]:
        """The node in both branches of an If."""
        chosen = helper.make_node(
            "Constant", [], ["chosen"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])
        )
        branches = {}
        for which in ("then_branch", "else_branch"):
            inner = NodeProto()
            inner.CopyFrom(body)
            inner.output[:] = [name and f"{name}_inner" for name in body.output]
            made = [helper.make_empty_tensor_value_info(name) for name in inner.output if name]
            branches[which] = helper.make_graph([inner], which, [], made)
        return [chosen, helper.make_node("If", ["chosen"], [name for name in body.output if name], **branches)]


def _reference(attribute: AttributeProto, name: str) -> AttributeProto:
    return AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=name)


def _named(attribute: AttributeProto, name: str) -> AttributeProto:
    made = AttributeProto()
    made.CopyFrom(attribute)
    made.name = name
    return made


def _other(attribute: AttributeProto) -> AttributeProto:
    """An attribute of the type with another value."""
    made = AttributeProto()
    made.CopyFrom(attribute)
    if made.type == AttributeProto.FLOAT:
        made.f += 1
    elif made.type == AttributeProto.INT:
        made.i += 1
    elif made.type == AttributeProto.INTS:
        made.ints[:] = [each + 1 for each in made.ints]
    return made
