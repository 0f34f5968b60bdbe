"""One form for every model: what exporters spell in many ways is spelt in one, so that later stages look for one.

In normal form a model has no functions, no Constant nodes outside of branches, no initializers that are also inputs, no
documentation, a unique name for each node, a name for each dynamic dim of its inputs, an opset of :data:`OPSET` or
later, nothing left to compute that depends on no input, no branch that a constant chooses, no assignment at places that
a mask shows, and no quantized values. A recurrent layer names its activations only where they are not the usual ones.

Resizing of opsets before 11, in the form that it has since.

    Upsample(x, scales), Resize(x, scales)      of opset 7 to 10

becomes::

    Resize(x, , scales)      asymmetric; the nearest pixel is the one before, or the one behind where it shrinks

which is what onnxruntime computes for them. ONNX's converter (1.23) takes the old scales for a region, and doesn't say.
PyTorch's, Darknet's and Keras' exporters wrote such files for years.

Assigning one value where a mask is set, written as a Where.

PyTorch's dynamo exporter spells ``x[mask] = value`` with the places the mask is set at. How many there are depends on
data, so that no bucket can fix their dims::

    ScatterND(x, Transpose(NonZero(mask)), Expand(value, how many there are))

which is

    Where(mask, value, x)          with axes appended to the mask where x has more

The mask has the leading dims of x, as PyTorch's indexing demands.

All encoders of speech that hide padded frames (wav2vec 2.0 and those made after it) do this.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    inliner,
    numpy_helper,
    version_converter,
)

from pipeline.errors import ModelError
from pipeline.graph.files.functions import bind_attributes, refused
from pipeline.graph.files.inlining import inline_branch
from pipeline.graph.files.model_file import is_external
from pipeline.graph.files.runtime_operators import bring_back, set_aside, set_runtime_operators_aside
from pipeline.graph.ir.attributes import integers, settings
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import REFUSALS, Opsets, ShapeError
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, all_graphs, all_nodes, label, live_nodes, reads
from pipeline.graph.shapes.axes import name_dims
from pipeline.graph.shapes.drop_rounding import drop_rounding
from pipeline.graph.shapes.folding import Constants

_SPREADS = (*VIEWS, "Expand", "Tile")
"""Operators that make of one number many times the same."""


def assign_by_mask(nodes: Sequence[NodeProto], constants: Constants) -> list[NodeProto]:
    """The nodes, with each such ScatterND replaced; what it read is left to be removed as dead.

    The constants that the new nodes read are added to `constants`.
    """
    makers = {name: node for node in nodes for name in node.output if name}
    taken = {*makers, *constants.types}
    result: list[NodeProto] = []
    for node in nodes:
        mask = _mask(node, makers)
        value = _uniform(node.input[2], makers, constants) if mask is not None else None
        if mask is None or value is None:
            result.append(node)
        else:
            result += _where(node, mask, value, constants, taken)
    return result


def _mask(node: NodeProto, makers: Mapping[str, NodeProto]) -> str | None:
    """The mask that tells where a ScatterND writes, and that it replaces what is there."""
    if not is_op(node, "ScatterND") or any(attribute.s not in (b"", b"none") for attribute in node.attribute):
        return None
    places = makers.get(node.input[1])
    if places is None or not is_op(places, "Transpose"):
        return None
    if integers(places, "perm", [1, 0]) != [1, 0]:
        return None
    found = makers.get(places.input[0])
    return str(found.input[0]) if found is not None and is_op(found, "NonZero") else None


def _uniform(name: str, makers: Mapping[str, NodeProto], constants: Constants) -> NDArray[Any] | None:
    """The one number that all elements of a value are, without dims; None if they may differ."""
    node = None
    while name not in constants:
        node = makers.get(name)
        if node is None or not is_op(node, *_SPREADS):
            break
        name = node.input[0]
    else:
        array = constants.value(name)
        return array.reshape(-1)[0] if array.size and (array == array.reshape(-1)[0]).all() else None
    if node is not None and is_op(node, "ConstantOfShape"):
        given = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        return np.array(0, np.float32) if given is None else numpy_helper.to_array(given).reshape(())
    return None


def _where(node: NodeProto, mask: str, value: NDArray[Any], constants: Constants, taken: set[str]) -> list[NodeProto]:
    """Nodes that bring the mask to the rank of what is written to, which isn't known yet, and select by it."""
    data, result = node.input[0], node.output[0]
    made: list[NodeProto] = []

    def name(part: str) -> str:
        unused, count = f"{result}_{part}", 1
        while unused in taken:
            count += 1
            unused = f"{result}_{part}_{count}"
        taken.add(unused)
        return unused

    def op(kind: str, *inputs: str, part: str, **attributes: Any) -> str:
        made.append(helper.make_node(kind, list(inputs), [name(part)], **attributes))
        return str(made[-1].output[0])

    filler = name("value")
    constants.add_array(filler, np.asarray(value))
    dims = op("Shape", mask, part="mask_dims")
    rank = op("Shape", dims, part="mask_rank")
    wanted = op("Shape", op("Shape", data, part="dims"), part="rank")
    one = numpy_helper.from_array(np.array([1]), "value")
    more = op("ConstantOfShape", op("Sub", wanted, rank, part="rank_more"), part="dims_more", value=one)
    target = op("Concat", dims, more, part="mask_target", axis=0)
    shaped = op("Reshape", op("Cast", mask, part="mask", to=TensorProto.BOOL), target, part="mask_shaped")
    return [*made, helper.make_node("Where", [shaped, filler, data], [result], node.name)]


OPSET = 17
"""Earlier opsets are converted to this one: per-channel quantization came with 13, LayerNormalization, which HTP
computes natively, with 17."""

# Before these opsets, ONNX's converter (1.23) takes the operator for one that computes something else, and doesn't say.
_CONVERTED_WRONGLY = {"Scan": 9, "Hardmax": 13}

_MASKS_OF_DROPOUT = 12
"""The opset from which on onnxruntime's mask of a Dropout is true where nothing is dropped."""

_USUAL_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
"""Of each direction, as ONNX takes them if none are named. https://onnx.ai/onnx/operators/onnx__LSTM.html"""


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with its functions written out where they are called.

    Raises:
        ModelError: a function and its calls don't fit, or it is of an opset that gives it another meaning.
    """
    if not model.functions:
        return model
    try:
        inlined: ModelProto = inliner.inline_local_functions(bind_attributes(model))
    except REFUSALS as error:
        raise refused(" ".join(str(error).split())[:300]) from None
    return inlined


def lift_opset(model: ModelProto) -> ModelProto:
    """The model at :data:`OPSET`, or as it is if it is at a later one.

    A model of operators of other domains alone imports none: it gets this one, as rewrites put in ONNX's own.

    Raises:
        ModelError: an operator of an earlier opset can't be converted, or would be converted to something else.
    """
    opset = Opsets.of(model).versions.get("")
    if opset is None:
        model.opset_import.append(helper.make_opsetid("", OPSET))
        return model
    if opset >= OPSET:
        return model
    for node in all_nodes(model.graph):
        drops = node.op_type == "Dropout" and len(node.output) > 1 and node.output[1] and opset < _MASKS_OF_DROPOUT
        if opset < _CONVERTED_WRONGLY.get(node.op_type, 0) or drops:
            raise _not_lifted(opset, f"ONNX's converter gives node {label(node)} another meaning")
    set_aside(model, [*set_runtime_operators_aside(model), *lift_resizes(model)])
    try:
        lifted: ModelProto = version_converter.convert_version(model, OPSET)
    except REFUSALS as error:
        raise _not_lifted(opset, " ".join(str(error).split())[:300]) from None
    bring_back(lifted)
    return lifted


def normalize(model: ModelProto, folder: Path) -> tuple[ModelProto, Constants]:
    """The model in normal form but for its initializers, and the constants its nodes read; `folder` holds their data.

    Functions must be inlined and the opset lifted. `model` is used up.

    Raises:
        ModelError: a constant can't be read or computed.
    """
    graph, opsets = model.graph, Opsets.of(model)
    constants = Constants(graph.initializer, folder, opsets)
    name_nodes(graph)  # the values of a branch are named after its If
    nodes = []
    waiting = deque(graph.node)
    while waiting:
        node = waiting.popleft()
        if node.op_type == "If" and node.domain in DEFAULT_DOMAINS and node.input[0] in constants:
            branch = inline_branch(node, constants.value(node.input[0]))
            for tensor in branch.initializer:
                constants.add_tensor(tensor)
            waiting.extendleft(reversed(branch.node))
            continue
        try:
            folded = constants.fold(node)
        except ShapeError as error:
            raise ModelError(
                f"the constants that node {label(node)} reads don't go together",
                where=", ".join(map(repr, reads(node))),
                why=str(error),
                remedy="export the model again",
            ) from None
        if not folded:
            nodes.append(node)
    inputs = [value for value in graph.input if value.name not in constants]
    outputs = [value.name for value in graph.output]
    nodes = drop_rounding(assign_by_mask(nodes, constants), constants, outputs)
    nodes = live_nodes(nodes, outputs)
    domains = {node.domain for node in all_nodes(graph)}
    normal = ModelProto(
        opset_import=[entry for entry in opsets.protos if not entry.domain or entry.domain in domains],
        graph=GraphProto(
            name="graph",
            node=nodes,
            input=[ValueInfoProto(name=value.name, type=value.type) for value in inputs],
            output=[ValueInfoProto(name=value.name, type=value.type) for value in graph.output],
        ),
    )
    normal.ir_version = max(model.ir_version, helper.find_min_ir_version_for(normal.opset_import, ignore_unknown=True))
    name_nodes(normal.graph)
    name_dims(normal)
    _clean(normal.graph)
    return normal, constants


def name_nodes(graph: GraphProto) -> None:
    """Name each unnamed node after its first output, and number names that occur again; subgraphs included."""
    taken: set[str] = set()
    seen: Counter[str] = Counter()
    for node in all_nodes(graph):
        base = name = node.name or next(filter(None, node.output), node.op_type)
        while name in taken:
            seen[base] += 1
            name = f"{base}_{seen[base]}"
        taken.add(name)
        node.name = name


def _clean(graph: GraphProto) -> None:
    """Remove documentation, and types that inference will tell anew; spell ONNX's own domain in one way."""
    for inner in all_graphs(graph):
        for field in ("doc_string", "metadata_props", "value_info", "quantization_annotation"):
            inner.ClearField(field)
        for node in inner.node:
            for field in ("doc_string", "metadata_props", "device_configurations"):
                node.ClearField(field)
            if node.domain in DEFAULT_DOMAINS:
                node.ClearField("domain")
            for attribute in node.attribute:
                attribute.ClearField("doc_string")
            if _names_usual_activations(node):
                kept = [attribute for attribute in node.attribute if not attribute.name.startswith("activation")]
                del node.attribute[:]
                node.attribute.extend(kept)


def _names_usual_activations(node: NodeProto) -> bool:
    """Whether a recurrent layer names the activations that it has anyway: QNN EP takes no layer that names some."""
    usual = _USUAL_ACTIVATIONS.get(node.op_type, ()) if node.domain in DEFAULT_DOMAINS else ()
    named = [name.decode().lower() for each in node.attribute if each.name == "activations" for name in each.strings]
    return bool(usual and named) and named == [*usual] * (len(named) // len(usual))


def _not_lifted(opset: int, why: str) -> ModelError:
    return ModelError(
        f"the model is of opset {opset} and can't be converted to {OPSET}",
        why=why,
        remedy=f"export the model with opset {OPSET} or later",
    )


RESIZE = "Resize"
_OPSET = 11


def lift_resizes(model: ModelProto) -> list[NodeProto]:
    """Write resizing nodes in the form of opset 11, in place; returns them. None at that opset or later."""
    opset = Opsets.of(model).versions.get("", _OPSET)
    if opset >= _OPSET:
        return []
    lifted: list[NodeProto] = []
    for graph in all_graphs(model.graph):
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        tensors |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
        for node in graph.node:
            if node.op_type not in ("Upsample", RESIZE) or node.domain not in DEFAULT_DOMAINS:
                continue
            attributes = settings(node)
            mode = attributes.get("mode", b"nearest")
            if len(node.input) < 2:  # opset 7 and 8: the scales are an attribute
                scales = f"{node.output[0]}/scales"
                values = np.array(attributes.get("scales", ()), np.float32)
                tensors[scales] = numpy_helper.from_array(values, scales)
                graph.initializer.append(tensors[scales])
            else:
                scales = node.input[1]
            if (
                mode == b"nearest"
                and _shrinks(tensors.get(scales))
                and (numpy_helper.to_array(tensors[scales]) > 1).any()
            ):
                raise _mixed(node)
            given = [node.input[0], "", scales]
            node.CopyFrom(
                helper.make_node(
                    RESIZE,
                    given,
                    list(node.output),
                    node.name,
                    mode=mode,
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="ceil" if _shrinks(tensors.get(scales)) else "floor",
                )
            )
            lifted.append(node)
    return lifted


def _mixed(node: NodeProto) -> ModelError:
    return ModelError(
        f"node {label(node)} grows one axis and shrinks another",
        why="in opsets before 11 the nearest pixel is then another one on each axis, which later ones can't say",
        remedy="export the model with opset 11 or later",
    )


def _shrinks(scales: TensorProto | None) -> bool:
    """Whether a tensor holds a scale below 1; a value that is no constant is taken to hold none."""
    if scales is None or scales.data_type != TensorProto.FLOAT or is_external(scales):
        return False
    return bool((numpy_helper.to_array(scales) < 1).any())
