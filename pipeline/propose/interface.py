"""What a model's graph says of how it is used: what its inputs are, and what its axes count.

These are guesses for a first configuration. Each says what it was taken from.

What a graph that normalizes pictures itself takes for pixels: numbers up to 255, or up to 1.

Nodes that are as ONNX defines their operators: what guesses may look at without asking how many inputs there are.

`doit init` looks into files before a build checks them. A node that lacks an input says nothing then; what is wrong
with it is for the steps of the build to say, which meet it next.

The small constants of a graph, whichever way it has them.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, shape_inference

from pipeline.contracts.values import TensorSpec
from pipeline.errors import ModelError, PipelineError
from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.files.model_file import is_external, signature, tensor_array
from pipeline.graph.ir.inference import REFUSALS, Opsets
from pipeline.graph.ir.traverse import all_graphs, all_nodes, attribute_graphs, input_at
from pipeline.graph.shapes.axes import name_dims
from pipeline.inputs.samples.audio import is_wave
from pipeline.inputs.samples.images import is_picture
from pipeline.propose.absent import absent
from pipeline.propose.axis_uses import AxisUse, Uses, find_uses


def small_constants(graph: GraphProto, most: int) -> dict[str, NDArray[Any]]:
    """Initializers and the values of Constant nodes that have `most` numbers at most, and one at least.

    A damaged one is left out: it is for the steps of the build to name.
    """
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    tensors += [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    found: dict[str, NDArray[Any]] = {}
    for name, tensor in tensors:
        if not is_external(tensor) and 1 <= math.prod(tensor.dims) <= most:
            with contextlib.suppress(ModelError):
                found[name] = tensor_array(tensor, Path())
    return found


Kind = Literal["ids", "mask", "image", "audio", "features", "length", "state", "selector", "empty", "other"]
NEVER_VARIED: tuple[Kind, ...] = ("selector", "empty")
"""Inputs that samples need not have."""

_TEXT = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_STATE = re.compile(r"(^|[_.])(h|c|h0|c0|hn|cn|hidden|cell|states?|cache|mems?|past)([_.\d]|$)|past|cache|state|hidden")
_WAVE = re.compile(r"wave|audio|speech|signal|sound|input_values|samples|pcm|\bx\b", re.IGNORECASE)
_FOLLOWED = frozenset(
    {"Cast", "Unsqueeze", "Squeeze", "Reshape", "Pad", "Identity", "Transpose", "Concat", "Mul", "Div"}
)
_COMPUTED = frozenset({"Add", "Sub", "Where", "Clip", "Max", "Min"})  # indices from the end on are counted anew
_SURELY_SOUND = 4000  # numbers in a row, a quarter of a second at 16 kHz
_HEARS = frozenset({"Conv", "STFT", "DFT"})


@dataclass(frozen=True)
class GuessedInput:
    """An input and what it is taken for; `why` says by what. `feeds` is the output that becomes it the next time.

    `values` are numbers that the graph compares a selector with; `rows` is how many ids a table has that is looked up.
    """

    spec: TensorSpec
    kind: Kind
    why: str
    feeds: str = ""
    values: tuple[int | float, ...] = ()
    rows: int | None = None


@dataclass(frozen=True)
class GuessedComponent:
    """One ONNX file: its inputs and outputs, or why it can't be read.

    `uses` is what recurrences say of axes, by input and place; `unranked` are inputs and outputs of which no one knows
    how many dims they have; `limits` are numbers far below 0, at which an input's elements are taken for absent;
    `pixels` has the largest that pictures have, where the graph normalizes them itself.
    """

    file: str
    inputs: Sequence[GuessedInput] = ()
    outputs: Sequence[TensorSpec] = ()
    nodes: int = 0
    refused: PipelineError | None = None
    uses: Mapping[tuple[str, int], AxisUse] = field(default_factory=dict)
    unranked: frozenset[str] = frozenset()
    limits: Mapping[str, float] = field(default_factory=dict)
    pixels: Mapping[str, int] = field(default_factory=dict)

    def of_kind(self, *kinds: Kind) -> list[GuessedInput]:
        """The inputs that are taken for one of these."""
        return [each for each in self.inputs if each.kind in kinds]


def look_at(file: str, path: Path) -> GuessedComponent:
    """What an ONNX file says; `file` is its name in the source. An interface that is none of ours is `refused`.

    Raises ModelError for a file that is no model, or damaged.
    """
    try:
        model = parse_lean(path)
    except PipelineError as error:
        again = f"replace the file ({error.remedy}), and run init again; no config was written"
        raise error.but(where=file, remedy=again) from error
    try:
        name_dims(model)
        initialized = {tensor.name for tensor in model.graph.initializer}
        declared = [value for value in model.graph.input if value.name not in initialized]
        del model.graph.input[:]
        model.graph.input.extend(declared)
        _infer_outputs(model)
        known = signature(model)
    except PipelineError as error:
        return GuessedComponent(file, refused=error)
    nodes = len(model.graph.node)
    drop_malformed(model)
    chosen, uses = _selectors(model), find_uses(model.graph)
    inputs = tuple(_guess(spec, known.outputs, chosen, uses, model.graph) for spec in known.inputs)
    values = (*model.graph.input, *model.graph.output)
    unranked = frozenset(value.name for value in values if not value.type.tensor_type.HasField("shape"))
    limits = absent(model.graph, _constants(model.graph))
    pictures = [given.spec.name for given in inputs if given.kind == "image"]
    pixels = {name: found for name in pictures if (found := largest_pixel(model.graph, name))}
    return GuessedComponent(file, inputs, known.outputs, nodes, None, uses.axes, unranked, limits, pixels)


def _infer_outputs(model: ModelProto) -> None:
    """Give outputs that are declared without a rank the one that follows from the graph, where that can be told."""
    unknown = [value for value in model.graph.output if not value.type.tensor_type.HasField("shape")]
    if not unknown:
        return
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except REFUSALS:  # what is wrong with the model is for the steps of the build to say
        return
    found = {value.name: value.type.tensor_type for value in inferred.graph.output}
    for value in unknown:
        if found[value.name].HasField("shape"):
            value.type.tensor_type.shape.CopyFrom(found[value.name].shape)


def _guess(
    spec: TensorSpec,
    outputs: Sequence[TensorSpec],
    chosen: Mapping[str, tuple[int | float, ...]],
    uses: Uses,
    graph: GraphProto,
) -> GuessedInput:
    name, integer = spec.name.lower(), spec.dtype.startswith(("int", "uint", "bool"))
    if 0 in spec.shape:
        return GuessedInput(spec, "empty", "so it is left out of what is built")
    if spec.name in chosen:
        return GuessedInput(spec, "selector", "an If of the graph is decided by it", values=chosen[spec.name])
    if spec.name in uses.lengths:
        return GuessedInput(spec, "length", uses.lengths[spec.name])
    lookup = _lookup(spec.name, graph) if integer else None
    if spec.name in _TEXT:
        return GuessedInput(spec, "mask" if "mask" in name else "ids", "by its name", rows=_rows(lookup))
    if "mask" in name:
        return GuessedInput(spec, "mask", "by its name")
    if re.search(r"len(gth)?s?(_|$)|_len", name) and integer and len(spec.shape) <= 2:
        return GuessedInput(spec, "length", "by its name")
    if fed := _fed_by(spec, outputs):
        return GuessedInput(spec, "state", f"output {fed!r} has its form", feeds=fed)
    if re.search(r"ids?(_|$)|token", name) and integer:
        return GuessedInput(spec, "ids", "by its name", rows=_rows(lookup))
    if is_picture(spec):
        return GuessedInput(spec, "image", "by its shape")
    if integer and len(spec.shape) == 2 and lookup is not None:
        return GuessedInput(spec, "ids", "a table is looked up by it", rows=_rows(lookup))
    if is_wave(spec):
        if any(isinstance(dim, int) and dim >= _SURELY_SOUND for dim in spec.shape):
            return GuessedInput(spec, "audio", "by its length")
        if _WAVE.search(name):
            return GuessedInput(spec, "audio", "by its name and shape")
        if _HEARS & set(_first_operators(spec.name, graph)):
            return GuessedInput(spec, "audio", "by its shape and what reads it")
    if (
        spec.dtype.startswith("float")
        and len(spec.shape) == 3
        and any(dim in (39, 40, 64, 80, 128) for dim in spec.shape)
    ):
        return GuessedInput(spec, "features", "by its shape")
    return GuessedInput(spec, "other", "")


def _fed_by(spec: TensorSpec, outputs: Sequence[TensorSpec]) -> str:
    """The output that an input is fed from the next time: one of its form, with a name that goes with its own."""
    if not spec.dtype.startswith("float"):
        return ""
    alike = [each for each in outputs if each.dtype == spec.dtype and _same_form(spec, each)]
    name = spec.name.lower()
    derived = [each.name for each in alike if _derived(name, each.name.lower())]
    if derived:
        return derived[0]
    return alike[0].name if _STATE.search(name) and len(alike) == 1 else ""


def _same_form(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether two shapes may be of the same size: what is a number in both is equal."""
    if len(one.shape) != len(other.shape) or not one.shape:
        return False
    return all(a == b for a, b in zip(one.shape, other.shape, strict=True) if isinstance(a, int) and isinstance(b, int))


def _derived(name: str, output: str) -> bool:
    """Whether an output is named after a state, as `stateN`, `hn`, `new_h`, `present.0.key` are."""
    if not _STATE.search(name):
        return False
    plain = re.sub(r"(^|[_.])(new|next|out|output|present|in|input|past)(?=[_.]|$)|_key_values", "", output).strip("_.")
    own = re.sub(r"(^|[_.])(in|input|prev|past)(?=[_.]|$)|_key_values", "", name).strip("_.")
    return plain == own or re.fullmatch(rf"{re.escape(own.rstrip('0'))}_?(n|out|new|next|1)", output) is not None


def _lookup(name: str, graph: GraphProto) -> Sequence[int] | None:
    """The dims of a table that an input is an index of, empty where they are not known; None where there is none."""
    sizes: dict[str, Sequence[int]] = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            sizes[node.output[0]] = node.attribute[0].t.dims
        elif node.op_type in ("DequantizeLinear", "Cast", "Identity") and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
    indexed = {name}
    for node in _readers(name, graph, _FOLLOWED | _COMPUTED):
        if node.op_type == "Gather" and node.input[1] in indexed:
            return sizes.get(node.input[0], ())
        indexed.update(node.output)
    return None


def _rows(lookup: Sequence[int] | None) -> int | None:
    return int(lookup[0]) if lookup and len(lookup) == 2 else None


def _first_operators(name: str, graph: GraphProto) -> Iterator[str]:
    """The operators that a value goes into, those that only bring it into another form passed by."""
    return (node.op_type for node in _readers(name, graph, _FOLLOWED))


def _readers(name: str, graph: GraphProto, followed: frozenset[str]) -> Iterator[NodeProto]:
    """The nodes that read a value, and those that read what the operators `followed` make of it."""
    pending, seen = [name], {name}
    while pending:
        value = pending.pop()
        for node in graph.node:
            if value not in node.input:
                continue
            yield node
            if node.op_type in followed:
                new = set(node.output) - seen
                seen |= new
                pending += new


def _selectors(model: ModelProto) -> dict[str, tuple[int | float, ...]]:
    """Inputs of few numbers that decide an If, and the numbers that they are compared with on the way."""
    inputs = {value.name: value for value in model.graph.input}
    if not any(node.op_type == "If" for node in all_nodes(model.graph)):
        return {}
    found: dict[str, tuple[int | float, ...]] = {}
    for graph in _graphs(model.graph):
        makers = {output: node for node in model.graph.node for output in node.output}
        makers |= {output: node for node in graph.node for output in node.output}
        constants = _constants(model.graph) | _constants(graph)
        for node in graph.node:
            if node.op_type != "If":
                continue
            for name, values in _deciders(node.input[0], makers, constants):
                shape = inputs[name].type.tensor_type.shape.dim if name in inputs else ()
                if name in inputs and all(dim.dim_value == 1 for dim in shape):
                    found[name] = tuple(dict.fromkeys((*found.get(name, ()), *values)))
    return found


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for inner in attribute_graphs(node):
            yield from _graphs(inner)


def _constants(graph: GraphProto) -> dict[str, int | float]:
    """Single numbers among the constants of a graph."""
    return {name: values.reshape(-1)[0].item() for name, values in small_constants(graph, 1).items()}


def _deciders(
    condition: str, makers: Mapping[str, NodeProto], constants: Mapping[str, int | float]
) -> Iterator[tuple[str, list[int | float]]]:
    """The values without a maker that a condition is computed from, and numbers that it is compared with."""
    pending, seen, values, ends = [condition], {condition}, [], []
    while pending and len(seen) < 1000:
        name = pending.pop()
        node = makers.get(name)
        if node is None:
            ends.append(name)
            continue
        if node.op_type == "Shape":  # its rank, not its value
            continue
        values += [constants[each] for each in node.input if each in constants and node.op_type == "Equal"]
        new = [each for each in node.input if each and each not in constants and each not in seen]
        seen |= {*new}
        pending += new
    yield from ((name, values) for name in ends)


_VIEWS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_CHANNELS = 4
_OF_BYTES, _OF_FRACTIONS = 1 / 16, 1.5
"""Factors: up to the first, 255 becomes a number that networks take; from the second on, 1 does."""
_BEYOND_FRACTIONS = 2
"""What is taken from a pixel, in its own units, and would leave nothing of a fraction."""


def largest_pixel(graph: GraphProto, name: str) -> int | None:
    """255 or 1 for an input that only a scale and an offset read, one behind the other; None where neither says it.

    Networks are trained on numbers near 1: a factor of 1/127.5 makes them of bytes, one of 1/0.225 of fractions.
    """
    constants = _small(graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for given in {*node.input}:
            readers.setdefault(given, []).append(node)
    factor, offset = 1.0, 0.0
    while len(reading := readers.get(name, [])) == 1:
        (node,) = reading
        if node.op_type not in _VIEWS:
            step = _step(node, name, constants)
            if step is None:
                break
            offset = max(offset, step[1] / factor)
            factor *= step[0] or 1
        name = node.output[0]
    if factor <= _OF_BYTES or offset > _BEYOND_FRACTIONS:
        return 255
    return 1 if factor >= _OF_FRACTIONS else None


def _step(node: NodeProto, name: str, constants: dict[str, NDArray[np.float64]]) -> tuple[float, float] | None:
    """What a node multiplies a value by, and adds before, as means over channels; None for what does neither."""
    first, second = input_at(node, 0), input_at(node, 1)
    other = constants.get(second if first == name else first)
    match node.op_type:
        case "Add" | "Sub" if other is not None:
            return 1.0, float(np.abs(other).mean())
        case "Mul" if other is not None:
            return float(np.abs(other).mean()), 0.0
        case "Div" if other is not None and second != name and other.all():
            return float(np.abs(1 / other).mean()), 0.0
        case "BatchNormalization" if (scale := constants.get(second)) is not None:
            variance, mean = constants.get(input_at(node, 4)), constants.get(input_at(node, 3))
            if variance is not None and mean is not None:
                return float(np.abs(scale / np.sqrt(np.abs(variance) + 1e-5)).mean()), float(np.abs(mean).mean())
    return None


def _small(graph: GraphProto) -> dict[str, NDArray[np.float64]]:
    """The constants of a number for each channel, or of one for all."""
    known = small_constants(graph, _CHANNELS)
    return {name: values.astype(np.float64) for name, values in known.items() if values.dtype.kind == "f"}


_MANY = 1 << 31


@dataclass(frozen=True)
class _Form:
    """How many inputs and outputs an operator has, what its attributes hold, and which it can't do without."""

    inputs: range
    outputs: range
    kinds: Mapping[str, int]
    needed: frozenset[str]

    @classmethod
    def of(cls, node: NodeProto, opsets: Opsets) -> _Form:
        """The form of a node's operator; of one that ONNX doesn't know, any with an input and an output."""
        schema = opsets.schema(node) or opsets.schema(NodeProto(op_type=node.op_type))
        if schema is None:
            return cls(range(1, _MANY), range(1, _MANY), {}, frozenset())
        attributes: Mapping[str, Any] = schema.attributes  # ONNX's stubs don't say that a type is a number
        return cls(
            range(schema.min_input, schema.max_input + 1),
            range(max(schema.min_output, 1), schema.max_output + 1),
            {name: int(attribute.type) for name, attribute in attributes.items()},
            frozenset(name for name, attribute in attributes.items() if attribute.required),
        )

    def fits(self, node: NodeProto) -> bool:
        """Whether a node has it."""
        return (
            len(node.input) in self.inputs
            and len(node.output) in self.outputs
            and all(node.input[place] for place in range(self.inputs.start))
            and self.needed.issubset(attribute.name for attribute in node.attribute)
            and all(self.kinds.get(attribute.name, attribute.type) == attribute.type for attribute in node.attribute)
        )


def drop_malformed(model: ModelProto) -> None:
    """Remove the nodes, those of subgraphs included, with too few or too many inputs or outputs, or without an
    attribute that they need, or with one of another type.

    Operators of other domains than ONNX's are taken for those of its own that have their name.
    """
    opsets, forms = Opsets.of(model), dict[tuple[str, str], _Form]()
    for graph in all_graphs(model.graph):
        for place in reversed(range(len(graph.node))):
            node = graph.node[place]
            kind = node.domain, node.op_type
            if kind not in forms:
                forms[kind] = _Form.of(node, opsets)
            if not forms[kind].fits(node):
                del graph.node[place]
