"""Makes every shape of a model a number: one pass from the inputs to the outputs.

The pass meets each node with the types of all it reads known and static. It computes the node if its inputs are
constants (so that arithmetic on shapes disappears), drops it if with these shapes it does nothing, and otherwise notes
the types of its outputs. Nothing is guessed: where a type can't be told, the node is reported.

Computes both branches of an If whose condition is data, and chooses: HTP runs one fixed sequence of operators.

    y = If(c) {then: t = Relu(x) -> t, else: x -> x}

becomes::

    if0/then/t = Relu(x);  y = Where(Reshape(c, one element of y's rank), if0/then/t, x)

What a branch computes where it was not chosen is thrown away; what it can't compute there is kept from it
(`guarding`). Each branch stands there once, so a graph grows by no more than the Where nodes.

What single nodes are once the types of their inputs are known.

Outputs whose declaration in the file is not what is computed.

Lists of tensors (ONNX calls them sequences), followed by name until only tensors are left.

    s = SplitToSequence(x)   y = SequenceAt(s, 1)   z = ConcatFromSequence(s)

becomes::

    s0, s1 = Split(x)        y = Identity(s1)       z = Concat(s0, s1)

PyTorch's older exporter writes splits, stacks and lists that loops append to like this. Which tensors a list holds is
known once shapes are, and loops are written out before, so that a list that grows in one is known, too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper, numpy_helper

from pipeline.errors import ConfigError, ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.inlining import inline_branch, take_branch
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.fused import write_out
from pipeline.graph.ir.attributes import integer, settings
from pipeline.graph.ir.inference import Opsets, ShapeError, infer_outputs, is_static, shape_of, spell
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, all_names, input_at, live_nodes, reads
from pipeline.graph.shapes import shape_errors
from pipeline.graph.shapes.axes import DimError, dim_size, fix_inputs
from pipeline.graph.shapes.cut_points import begins_behind, ends_before
from pipeline.graph.shapes.empty_values import (
    check_no_empties,
    check_output,
    empty_results,
    leave_out_empties,
    leave_out_empty_parts,
)
from pipeline.graph.shapes.folding import Constants, type_bytes
from pipeline.graph.shapes.guarding import Guards
from pipeline.graph.shapes.masked_rows import MaskedRows
from pipeline.graph.shapes.random_numbers import Silence
from pipeline.graph.shapes.unrolling import DataDependentError, Unroller


class Lists:
    """The lists of one model: which tensors each holds.

    `known` gives the value of a constant, None for any other value; `dims` the shape of any tensor.
    """

    def __init__(self, known: Callable[[str], NDArray[Any] | None], dims: Callable[[str], Sequence[int]]) -> None:
        self._known = known
        self._dims = dims
        self._held: dict[str, tuple[str, ...]] = {}

    def write_out(self, node: NodeProto) -> GraphProto | None:
        """Nodes on tensors in place of one that makes or reads a list; None for any other node.

        Raises:
            ModelError: what a list holds, or which of it is taken, follows from data.
        """
        if node.domain not in DEFAULT_DOMAINS:
            return None
        part = GraphProto()
        held = [self._held.get(name) for name in node.input]
        match node.op_type:
            case "SequenceEmpty":
                self._held[node.output[0]] = ()
            case "SequenceConstruct":
                self._held[node.output[0]] = tuple(node.input)
            case "SplitToSequence":
                return self._split(node, part)
            case "Identity" if held[0] is not None:
                self._held[node.output[0]] = held[0]
            case "SequenceInsert" | "SequenceErase" | "SequenceAt" if held[0] is not None:
                return self._at(node, held[0], part)
            case "SequenceLength" if held[0] is not None:
                part.initializer.append(numpy_helper.from_array(np.array(len(held[0])), node.output[0]))
            case "ConcatFromSequence" if held[0]:
                _concat(node, held[0], part)
            case _:
                return None
        return part

    def _at(self, node: NodeProto, held: tuple[str, ...], part: GraphProto) -> GraphProto:
        """Insert, erase or take the tensor at a place; without one, at the end."""
        inserts = node.op_type == "SequenceInsert"
        given = node.input[2 if inserts else 1 :]
        place = len(held) if inserts else len(held) - 1
        if given and given[0]:
            value = self._known(given[0])
            if value is None:
                raise shape_errors.list_depends_on_data(node, given[0])
            place = int(value.item())
        place = place + len(held) if place < 0 else place
        if not 0 <= place < len(held) + inserts:
            raise ShapeError(f"the list holds {len(held)} tensors, and place {place} is asked for")
        if inserts:
            self._held[node.output[0]] = (*held[:place], node.input[1], *held[place:])
        elif node.op_type == "SequenceErase":
            self._held[node.output[0]] = held[:place] + held[place + 1 :]
        else:
            part.node.append(helper.make_node("Identity", [held[place]], list(node.output), node.name))
        return part

    def _split(self, node: NodeProto, part: GraphProto) -> GraphProto:
        dims = self._dims(node.input[0])
        axis = integer(node, "axis") % max(len(dims), 1)
        ones = len(node.input) < 2 or not node.input[1]
        value = np.array(1) if ones else self._known(node.input[1])
        if value is None:
            raise shape_errors.list_depends_on_data(node, node.input[1])
        if value.ndim:
            sizes = [int(size) for size in value]
        else:
            step = max(int(value), 1)
            sizes = [min(step, dims[axis] - start) for start in range(0, dims[axis], step)]
        if not sizes or sum(sizes) != dims[axis]:
            raise ShapeError(f"parts of {sizes} don't make up the {dims[axis]} of axis {axis}")
        name = node.output[0]
        names = [f"{name}/{number}" for number in range(len(sizes))]
        part.initializer.append(numpy_helper.from_array(np.array(sizes), f"{name}/sizes"))
        part.node.append(helper.make_node("Split", [node.input[0], f"{name}/sizes"], names, node.name, axis=axis))
        if ones and not integer(node, "keepdims", 1):
            part.initializer.append(numpy_helper.from_array(np.array([axis]), f"{name}/axis"))
            flat = [f"{each}/flat" for each in names]
            for given, made in zip(names, flat, strict=True):
                part.node.append(helper.make_node("Squeeze", [given, f"{name}/axis"], [made], made))
            names = flat
        self._held[name] = tuple(names)
        return part


def _concat(node: NodeProto, held: tuple[str, ...], part: GraphProto) -> None:
    axis, name = integer(node, "axis"), node.output[0]
    if integer(node, "new_axis"):
        part.initializer.append(numpy_helper.from_array(np.array([axis]), f"{name}/axis"))
        taller = [f"{name}/{number}" for number in range(len(held))]
        for given, made in zip(held, taller, strict=True):
            part.node.append(helper.make_node("Unsqueeze", [given, f"{name}/axis"], [made], made))
        held = tuple(taller)
    part.node.append(helper.make_node("Concat", list(held), [name], node.name, axis=axis))


_NO_OPS = frozenset({*VIEWS, "Cast", "Dropout", "Expand", "Tile"})  # where types are equal, they give their first input
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

LARGEST_VALUE = 1 << 32
"""Bytes of the largest value that is let through: HTP's addresses have 32 bits."""


@dataclass(frozen=True)
class StaticModel:
    """What :func:`make_static` made, and what it did: nodes computed, and outputs the model had declared otherwise."""

    model: ModelProto
    folded: int
    stale_outputs: tuple[str, ...]


def make_static(model: ModelProto, axes: Mapping[str, int], folder: Path, blob: BlobWriter) -> StaticModel:
    """The model with all axes fixed: static types for every value, constants folded, dead nodes gone.

    `folder` holds the external data of the model, whose initializers stay as they are. Constants that were computed and
    are large go to `blob`. `model` is used up.

    Raises:
        ConfigError: an axis has no value.
        ModelError: values of axes contradict each other, or a shape depends on data.
    """
    fix_inputs(model, axes)
    sweep = _Pass(model, axes, folder)
    sweep.run()
    return sweep.result(blob)


def following_dims(path: Path, axes: Mapping[str, int], lengths: Iterable[str]) -> dict[str, dict[int, str]]:
    """For each value of the static form of the model at `path`, the dims that are as long as one of the axes `lengths`.

    Found by trial: a dim that grows by one when only that axis does. An axis that the model can't be one longer on is
    left out. Result: value -> dim -> axis.
    """
    known = _types_at(path, axes)
    found: dict[str, dict[int, str]] = {}
    for axis in lengths:
        try:
            longer = _types_at(path, {**axes, axis: axes[axis] + 1})
        except (ConfigError, ModelError):
            continue
        for name, kind in known.items():
            if not is_static(kind) or not is_static(longer.get(name)):
                continue
            for dim, (size, other) in enumerate(zip(shape_of(kind), shape_of(longer[name]), strict=False)):
                if size == axes[axis] and other == size + 1:
                    found.setdefault(name, {})[dim] = axis
    return found


def _types_at(path: Path, axes: Mapping[str, int]) -> dict[str, TypeProto]:
    model = load_graph(path)
    fix_inputs(model, axes)
    sweep = _Pass(model, axes, path.parent)
    sweep.run()
    return sweep.types


class _Pass:
    def __init__(self, model: ModelProto, axes: Mapping[str, int], folder: Path) -> None:
        self._model = model
        self._axes = axes
        self._opsets = Opsets.of(model)
        self._constants = Constants(model.graph.initializer, folder, self._opsets)
        self._types: dict[str, TypeProto] = {value.name: value.type for value in model.graph.input}
        for name, kind in self._types.items():
            _check_size(name, kind, axes)
        self._types |= self._constants.types
        self._outputs = {value.name for value in model.graph.output}
        self._read = {name for node in model.graph.node for name in reads(node)} | self._outputs
        self._taken = all_names(model.graph)
        self._same_as: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._kept: list[NodeProto] = []
        self._made: set[str] = set()
        self._folded = 0
        self._choosing: list[NodeProto] = []
        self._unroller = Unroller(self._known, self._dims)
        self._lists = Lists(self._known, self._dims)
        self._guards = Guards(self._type, self._known)
        self._silence = Silence(self._known)
        self._masked = MaskedRows(self._type, self._known, self._refused)

    def run(self) -> None:
        waiting: deque[NodeProto | Iterator[GraphProto]] = deque(self._model.graph.node)
        while waiting:
            node = waiting.popleft()
            if not isinstance(node, NodeProto):  # a loop that is being written out
                if part := next(node, None):
                    self._take_in(part)
                    waiting.appendleft(node)
                    waiting.extendleft(reversed(part.node))
                continue
            for position, name in enumerate(node.input):
                if name in self._same_as:
                    node.input[position] = self._same_as[name]
            try:
                if parts := self._in_parts(node):
                    waiting.appendleft(parts)
                else:
                    self._visit(node)
            except ShapeError as error:
                refused = shape_errors.contradiction(node, self._types, self._axes, str(error))
                raise self._of_branches(refused) from None
            except ModelError as error:
                raise self._of_branches(error) from None

    @property
    def types(self) -> dict[str, TypeProto]:
        """The type of every value met, once the pass has run."""
        return self._types

    def result(self, blob: BlobWriter) -> StaticModel:
        graph = self._model.graph
        for value in graph.output:
            check_output(value, self._types[value.name], alone=len(graph.output) == 1)
        self._masked.check({*self._outputs, *self._renamed})
        stale = [
            text for value in graph.output for text in declared_otherwise(value, self._types[value.name], self._axes)
        ]
        for node in self._kept:
            for field in (node.input, node.output):
                for position, name in enumerate(field):
                    field[position] = self._renamed.get(name, name)
        nodes = live_nodes(self._kept, self._outputs)
        read = {name for node in nodes for name in node.input}
        used = [name for name in self._constants.types if name in read or name in self._outputs]
        made = [name for node in nodes for name in node.output if name and name not in self._outputs]
        static = GraphProto(
            name=graph.name,
            node=nodes,
            input=graph.input,
            output=[ValueInfoProto(name=value.name, type=self._types[value.name]) for value in graph.output],
            initializer=[self._constants.tensor(name, blob) for name in used],
            value_info=[ValueInfoProto(name=name, type=self._types[name]) for name in made],
        )
        graph.CopyFrom(static)
        return StaticModel(self._model, self._folded, tuple(stale))

    def _visit(self, node: NodeProto) -> None:
        if node.op_type in ("Shape", "Size") and node.domain in DEFAULT_DOMAINS:
            self._constants.add_array(node.output[0], shape_value(node, shape_of(self._types[node.input[0]])))
            self._fold(node)
            return
        if node.op_type == "CastLike" and node.domain in DEFAULT_DOMAINS:
            node = plain_cast(node, self._types[node.input[1]].tensor_type.elem_type)
        end_in_the_input(node, self._types)
        types: dict[str, TypeProto] | None = None
        if node.op_type not in _CONTROL_FLOW:
            leave_out_empties(node, self._types)
            types = infer_outputs(node, self._types, self._constants.small, self._opsets)
            check_reshape(node, self._types, types)
            leave_out_empty_parts(node, types, self._add_array)
            if self._is_no_op(node, types) and self._bypass(node, types):
                return
        if results := empty_results(node, types) or self._silence.results(node, types):
            for name, values in results.items():
                self._constants.add_array(name, values)
            self._fold(node)
        elif self._constants.fold(node, types):
            self._fold(node)
        elif types is None:
            raise self._left(node)
        else:
            self._keep(node, types)

    def _is_loop(self, node: NodeProto) -> bool:
        """Whether this is a loop that is not computed as a whole."""
        return node.op_type in ("Loop", "Scan") and node.domain in DEFAULT_DOMAINS and not self._folds(node)

    def _folds(self, node: NodeProto) -> bool:
        if folded := self._constants.fold(node):
            self._fold(node)
        return folded

    def _in_parts(self, node: NodeProto) -> Iterator[GraphProto] | None:
        """What to put where a node stands, None if it stays: of an If one branch or both, of a loop its iterations."""
        if node.op_type == "If" and node.domain in DEFAULT_DOMAINS:
            if node.input[0] in self._constants:
                return iter([inline_branch(node, self._constants.value(node.input[0]))])
            if not shape_errors.is_a_setting(node.input[0], self._constants.types, self._kept, self._types):
                return self._both_branches(node)
        if self._is_loop(node):
            return self._written_out(node)
        part = self._guards.guard(node) or self._masked.part(node) or self._written_in_tensors(node)
        return iter([part]) if part is not None else None

    def _both_branches(self, node: NodeProto) -> Iterator[GraphProto]:
        self._choosing.append(node)
        try:
            yield from compute_both(node, self._type, self._guards)
        except UnlikeBranchesError:
            raise self._left(node) from None
        self._choosing.remove(node)

    def _of_branches(self, error: ModelError) -> ModelError:
        """An error as it is, but inside of a branch that is computed on trial: then that of the If around it."""
        if not self._choosing:
            return error
        refused = self._left(self._choosing[0])
        return refused.but(why=f"{refused.why}; computing both branches fails: {error.what}")

    def _left(self, node: NodeProto, decider: str = "") -> ModelError:
        """The error for control flow that is left."""
        found, ends = self._constants.types, ends_before(self._model.graph, node, self._constants.types)
        return shape_errors.control_flow(node, found, self._kept, self._types, decider, ends)

    def _written_out(self, node: NodeProto) -> Iterator[GraphProto]:
        try:
            yield from self._unroller.unroll(node)
        except DataDependentError as error:
            raise self._left(node, self._same_as.get(error.value, error.value)) from None

    def _written_in_tensors(self, node: NodeProto) -> GraphProto | None:
        """ONNX's operators on tensors in place of a fused operator, or of one on lists."""
        fused = write_out(node, self._types, self._opsets, self._taken)
        return fused if fused is not None else self._lists.write_out(node)

    def _known(self, name: str) -> NDArray[Any] | None:
        name = self._same_as.get(name, name)
        return self._constants.value(name) if name in self._constants else None

    def _type(self, name: str) -> TypeProto | None:
        return self._types.get(self._same_as.get(name, name))

    def _dims(self, name: str) -> tuple[int, ...]:
        return shape_of(self._types[self._same_as.get(name, name)])

    def _is_no_op(self, node: NodeProto, types: Mapping[str, TypeProto]) -> bool:
        given, made = node.input[0] if node.input else "", node.output[0]
        return (
            node.op_type in _NO_OPS
            and node.domain in DEFAULT_DOMAINS
            and self._read.isdisjoint(node.output[1:])
            and is_static(types.get(made))
            and types[made] == self._types.get(given)
            and not (node.op_type == "Dropout" and self._may_drop(node))
        )

    def _may_drop(self, node: NodeProto) -> bool:
        training = input_at(node, 2)
        return bool(training) and (training not in self._constants or bool(self._constants.value(training).any()))

    def _bypass(self, node: NodeProto, types: Mapping[str, TypeProto]) -> bool:
        """Let all that reads a node's output read its input; an output of the model gives the input its own name."""
        given, made = node.input[0], node.output[0]
        if made in self._outputs:
            if given not in self._made or given in self._outputs or given in self._renamed:
                return False
            self._renamed[given] = made
            self._types[made] = types[made]
        self._same_as[made] = given
        return True

    def _add_array(self, name: str, values: NDArray[Any]) -> None:
        self._constants.add_array(name, values)
        self._types[name] = self._constants.types[name]

    def _fold(self, node: NodeProto) -> None:
        self._folded += 1
        self._types |= {name: self._constants.types[name] for name in node.output if name}

    def _keep(self, node: NodeProto, types: Mapping[str, TypeProto]) -> None:
        for name in node.output:
            if name and not is_static(types.get(name)):
                raise self._refused(node, types, name)
            if name:
                _check_size(name, types[name], self._axes)
        check_no_empties(node, self._types, types)
        self._kept.append(node)
        self._made.update(node.output)
        self._types |= types

    def _refused(self, node: NodeProto, types: Mapping[str, TypeProto] | None = None, name: str = "") -> ModelError:
        """The error for a node with an output whose shape depends on data: the first, if none is named."""
        name, found, graph = name or node.output[0], self._constants.types, self._model.graph
        inferred = types or infer_outputs(node, self._types, self._constants.small, self._opsets)
        parts = ends_before(graph, node, found), begins_behind(graph, node, found)
        return shape_errors.depends_on_data(node, name, inferred.get(name), found, self._kept, parts)

    def _take_in(self, branch: GraphProto) -> None:
        self._read.update(name for node in branch.node for name in reads(node))
        self._taken |= all_names(branch)
        for tensor in branch.initializer:
            self._constants.add_tensor(tensor)
            self._types[tensor.name] = self._constants.types[tensor.name]


def _check_size(name: str, kind: TypeProto, axes: Mapping[str, int]) -> None:
    if is_static(kind) and type_bytes(kind) > LARGEST_VALUE:
        raise shape_errors.too_large(name, kind, type_bytes(kind), axes)


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


def plain_cast(node: NodeProto, to: int) -> NodeProto:
    """The Cast that a CastLike is once the type of its second input is known."""
    cast = helper.make_node("Cast", node.input[:1], node.output, name=node.name, to=to)
    cast.attribute.extend(node.attribute)
    return cast


def shape_value(node: NodeProto, dims: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """What a Shape or Size makes of a value of these dims."""
    if node.op_type == "Size":
        return np.array(math.prod(dims), np.int64)
    return np.array(dims[integer(node, "start") : integer(node, "end", len(dims))], np.int64)


def check_reshape(node: NodeProto, given: Mapping[str, TypeProto], made: Mapping[str, TypeProto]) -> None:
    """ONNX infers a Reshape to its target without counting the elements."""
    if node.op_type != "Reshape" or node.domain not in DEFAULT_DOMAINS or not is_static(made.get(node.output[0])):
        return
    before, after = shape_of(given[node.input[0]]), shape_of(made[node.output[0]])
    if math.prod(before) != math.prod(after):
        raise ShapeError(f"{list(before)} has {math.prod(before)} elements, {list(after)} has {math.prod(after)}")


def end_in_the_input(node: NodeProto, given: Mapping[str, TypeProto]) -> None:
    """Let a pool with ceil_mode have no window that begins in the padding behind its input, which it leaves out.

    ONNX counts such a window before opset 22, where onnxruntime computes none. What no window reaches of the padding is
    taken away, or the mode, where all sizes are those of the other one. Left alone: auto_pad.
    """
    attributes = settings(node)
    pools = node.op_type in ("MaxPool", "AveragePool", "LpPool") and node.domain in DEFAULT_DOMAINS
    if not pools or not attributes.get("ceil_mode") or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return
    sizes, kernel = shape_of(given[node.input[0]])[2:], attributes.get("kernel_shape", [])
    count = len(kernel)
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    padding = attributes.get("pads", [0] * (2 * count))
    if not len(sizes) == count == len(strides) == len(dilations) == len(padding) // 2 or min(strides, default=0) < 1:
        return  # refused where the shape of its result is inferred
    pads, as_floor = list(padding), True
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        reach, end = dilations[axis] * (kernel[axis] - 1) + 1, size + padding[axis]
        beyond = end + padding[count + axis] - reach
        windows = -(-beyond // stride)  # those before the last that ONNX counts
        if windows * stride >= end:
            pads[count + axis] = (windows - 1) * stride + reach - end
        elif beyond % stride:
            as_floor = False
    if pads == padding or (min(pads) < 0 and not as_floor):
        return
    changed = "ceil_mode" if as_floor else "pads"
    for attribute in [each for each in node.attribute if each.name == changed]:
        node.attribute.remove(attribute)
    if not as_floor:
        node.attribute.append(helper.make_attribute("pads", pads))


def declared_otherwise(value: ValueInfoProto, actual: TypeProto, axes: Mapping[str, int]) -> list[str]:
    """What the model declares of an output that it is not: onnxruntime computes it all the same, with a warning.

    Raises:
        ModelError: it is of another element type.
    """
    declared = value.type.tensor_type
    dims = shape_of(actual)
    if declared.elem_type not in (0, actual.tensor_type.elem_type):
        raise shape_errors.wrong_output(value, actual)
    if not declared.HasField("shape"):
        return []
    if len(declared.shape.dim) != len(dims):
        return [f"{value.name} is declared {spell(value.type)} and is {spell(actual)}"]
    found = []
    for position, (dim, size) in enumerate(zip(declared.shape.dim, dims, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            found.append(f"{value.name}[{position}] is declared {dim.dim_value} and is {size}")
        try:
            named = dim_size(dim.dim_param, axes) if dim.dim_param else size
        except DimError:  # a name of the exporter's making, which no input has
            continue
        if named != size:
            found.append(f"{value.name}[{position}] is named {dim.dim_param!r} ({named}) and is {size}")
    return found
