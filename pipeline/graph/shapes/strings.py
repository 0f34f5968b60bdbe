"""Refuses models that have strings in them, and says how to leave these out."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, shape_inference

from pipeline.errors import ModelError
from pipeline.graph.ir.inference import REFUSALS
from pipeline.graph.ir.traverse import label, reads
from pipeline.graph.shapes.cut_points import ends_before
from pipeline.plain_text import cutting

_STRINGS = TensorProto.STRING


def check_strings(model: ModelProto) -> None:
    """Refuse a model with a value of strings in its outer graph. Functions must be inlined already.

    Raises:
        ModelError: it has one; the first node that reads or makes it is named.
    """
    graph = model.graph
    strings = {tensor.name for tensor in graph.initializer if tensor.data_type == _STRINGS}
    strings.update(_declared(model))
    made_of_none = {name for node in graph.node if _makes_strings(node) for name in node.output}
    if not strings and not made_of_none:
        return
    try:
        strings.update(_declared(shape_inference.infer_shapes(model)))
    except REFUSALS:  # what is declared has to do
        strings |= made_of_none
    found = [node for node in graph.node if strings.intersection((*reads(node), *node.output))]
    if found:
        raise _refused(model, found, strings)
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if value.name in strings:
                raise ModelError(
                    f"{kind} {value.name!r} is of strings",
                    why="QNN has none: HTP computes with numbers only",
                    remedy=f"export the model without this {kind}",
                )


def _refused(model: ModelProto, found: list[NodeProto], strings: set[str]) -> ModelError:
    graph, node = model.graph, found[0]
    name = next(name for name in (*reads(node), *node.output) if name in strings)
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {output for each in graph.node if each.op_type == "Constant" for output in each.output}
    ends = ends_before(graph, found, constants)
    place = "input" if name in {value.name for value in graph.input} else "value"
    return ModelError(
        f"node {label(node)} is of strings",
        where=f"it {'reads' if name in reads(node) else 'makes'} the {place} {name!r}, which holds strings",
        why="QNN has none: HTP computes with numbers only",
        remedy=f"{cutting(ends)}export the model without the part that handles text"
        if ends
        else "this model can't be had as it is: let the application make numbers of the text, such as token ids, and"
        " export the model from there on",
    )


def _declared(model: ModelProto) -> Iterator[str]:
    graph = model.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.elem_type == _STRINGS:
            yield value.name


def _makes_strings(node: NodeProto) -> bool:
    """Whether a node may make strings of what is none: a Cast, a constant, a classifier with names for classes."""
    for attribute in node.attribute:
        if (node.op_type, attribute.name, attribute.i) == ("Cast", "to", _STRINGS):
            return True
        if node.op_type == "Constant" and (
            attribute.type in (AttributeProto.STRING, AttributeProto.STRINGS) or attribute.t.data_type == _STRINGS
        ):
            return True
        if attribute.type == AttributeProto.STRINGS and attribute.name in ("classlabels_strings", "values_strings"):
            return bool(attribute.strings)
    return False
