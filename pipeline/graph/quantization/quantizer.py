"""QDQ models: a float model with the encodings of its values written into it as Q and DQ nodes.

A value is stored in the type that its maker computes in, and read through a DQ node. A reader that computes in another
type gets a conversion, a DQ and a Q node that QNN makes one operator of. Nodes that a rule keeps in float read what DQ
nodes give and are read through Q nodes::

    made -> Q -> DQ -> reader of the same type         x, x_QuantizeLinear_Output, x_DequantizeLinear_Output
             `-> DQ -> Q' -> DQ' -> reader of another

Where the documented recipe and what QNN EP 2.7 accepts differ, we follow the latter: see
:mod:`pipeline.graph.quantization.operand_rules`. Next to that, a MatMul with a constant right-hand matrix becomes
FullyConnected, which takes a scale per column, so it gets one. The recipe gives it a scale per tensor (MiniLM, w8a16:
15.4 dB of SQNR against 29.9). A constant that differs between buckets gets the encoding of its range over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.contracts.scheme import ROOM, Scheme
from pipeline.errors import QuantizationError
from pipeline.graph.ir.index import FLOATS, GraphIndex, element_type, is_float, is_op, prune, sort_nodes
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.bounds.headroom import with_headroom, with_padding
from pipeline.graph.quantization.bounds.whole_numbers import held_exactly
from pipeline.graph.quantization.calibration.input_guards import rule_for_guards
from pipeline.graph.quantization.calibration.ranges import Range, Ranges
from pipeline.graph.quantization.chip_limits import ROWS_MISPLACED
from pipeline.graph.quantization.operand_rules import PRODUCTS, Operand, operands
from pipeline.graph.quantization.passes.prepare_casts import prepare_casts
from pipeline.graph.quantization.passes.raise_divisors import raise_divisors
from pipeline.graph.quantization.passes.raise_floors import raise_floors
from pipeline.graph.quantization.passes.shrink_streams import shrink_streams
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment
from pipeline.graph.quantization.qdq.clamps import drop_clamps, hold_clamps
from pipeline.graph.quantization.qdq.constant_encodings import ConstantEncodings
from pipeline.graph.quantization.qdq.packed_tables import look_up
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS, QUANTIZER_INPUT
from pipeline.graph.quantization.qdq.qdq_nodes import QdqNodes
from pipeline.graph.quantization.qdq.rule_checks import check_rules
from pipeline.graph.quantization.qdq.value_encodings import ValueEncodings
from pipeline.graph.quantization.weights.constant_store import ConstantStore, InModel
from pipeline.graph.quantization.weights.correlations import Correlations
from pipeline.progress import counted

_IN_MODEL = InModel()


@dataclass(frozen=True)
class Quantized:
    """A QDQ model, and the measured range of every float value in it, also of those that its quantizer put in."""

    model: ModelProto
    ranges: Mapping[str, Range]


def quantize(
    model: ModelProto,
    folder: Path,
    ranges: Mapping[str, Range],
    scheme: Scheme,
    store: ConstantStore = _IN_MODEL,
    correlations: Correlations | None = None,
) -> Quantized:
    """The QDQ form of a model whose blobs are in `folder`; `model` is used up.

    `ranges` has the range of every float value a node makes, of float inputs, and of constants that differ between
    buckets. `store` keeps the constants, by default in the model; `correlations` are those of the weights' inputs, for
    a scheme that looks at data. The same arguments give the same bytes.

    Raises:
        QuantizationError: a value has no range, or a rule of the scheme names nothing or can't be followed.
    """
    sort_nodes(model)
    index = GraphIndex(model, folder)
    _check_ranges(index, ranges)
    check_rules(index, scheme)
    scheme = scheme.with_rules(rule_for_guards(index, ranges))
    shrunk = shrink_streams(index, ranges, scheme)
    if shrunk is not None:
        ranges, scheme = shrunk.ranges, shrunk.scheme
        for name, origin in shrunk.made.items():
            store.made(name, origin)
        index = GraphIndex(model, folder)
    prepared = prepare_casts(index, ranges, scheme)
    if prepared is not None:
        ranges, scheme = prepared.ranges, prepared.scheme
        index = GraphIndex(model, folder)
    # The encodings of states are tied to each other, and their ranges say what they are.
    exact = held_exactly(index) if scheme.states is None else frozenset[str]()
    room = ROOM if scheme.room is None else scheme.room
    padded = with_padding(index, ranges)
    measured, ranges = ranges, with_headroom(index, padded, room, wide_products=scheme.wide_products)
    assignment = Assignment(index, scheme)
    # Before clamps are dropped: what an encoding does for a Clip from 0, it does not for one from a step.
    if raise_divisors(index, assignment, ValueEncodings(index, assignment, ranges, exact), ranges):
        index = GraphIndex(model, folder)
        assignment = Assignment(index, scheme)
    held = hold_clamps(index, assignment, ValueEncodings(index, assignment, ranges, exact))
    if held is not None:
        measured, ranges = held.with_ranges(Ranges(measured)), held.with_ranges(ranges)
        scheme = scheme.with_rules(held.rules)
        index = GraphIndex(model, folder)
        assignment = Assignment(index, scheme)
    if drop_clamps(index, assignment, ValueEncodings(index, assignment, ranges, exact)):
        index = GraphIndex(model, folder)
        assignment = Assignment(index, scheme)
    float_constants = set(index.initializers)
    values = ValueEncodings(index, assignment, ranges, exact)
    constants = ConstantEncodings(index, assignment, values, ranges, store, correlations)
    _Wiring(index, assignment, values, constants, store).run()
    raise_floors(model, folder, ranges)
    _tidy(model)
    for tensor in model.graph.initializer:
        if tensor.name in float_constants:
            tensor.CopyFrom(store.unchanged(tensor, folder))
    return Quantized(model, measured)


def float_nodes(index: GraphIndex) -> list[str]:
    """The nodes of a QDQ model that compute in float, as messages name them; conversions are not counted."""
    return [
        label(node)
        for node in index.model.graph.node
        if node.op_type not in (*Q_OPS, "Cast") and computes_in_float(index, node)
    ]


def computes_in_float(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node of a QDQ model that is no Q or DQ itself reads or makes floats that have no encoding."""
    return _reads_float(index, node) or _makes_float(index, node) or _looks_up_floats(index, node)


def _reads_float(index: GraphIndex, node: NodeProto) -> bool:
    """Whether an input that is no constant comes from elsewhere than a DQ node."""
    given = [name for name in node.input if name and name not in index.initializers]
    made = [(name, index.makers.get(name, node).op_type) for name in given]
    # Of what is between Q and DQ nodes, the graph gives no type; there, a Cast is half of a barrier.
    return any(
        op != Q_OPS[1] if is_float(index, name) else op == "Cast" and name not in index.types for name, op in made
    )


def _looks_up_floats(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node takes rows of a constant table of floats, wherever they go."""
    table = str(node.input[0]) if is_op(node, "Gather") else ""
    return table in index.initializers and is_float(index, table)


def _makes_float(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a result goes elsewhere than to a Q node."""
    made = [name for name in node.output if is_float(index, name)]
    readers = [reader.op_type for name in made for reader in index.readers.get(name, [])]
    return any(op != Q_OPS[0] for op in readers) or not index.outputs.isdisjoint(made)


class _Wiring:
    """Puts the Q and DQ nodes into one graph."""

    def __init__(
        self,
        index: GraphIndex,
        assignment: Assignment,
        values: ValueEncodings,
        constants: ConstantEncodings,
        store: ConstantStore,
    ) -> None:
        self._index = index
        self._assignment = assignment
        self._values = values
        self._constants = constants
        self._new = QdqNodes(index, store)

    def run(self) -> None:
        """Replace the graph's nodes with the wired ones."""
        graph = self._index.model.graph
        for value in graph.input:
            if value.name not in self._index.initializers and is_float(self._index, value.name):
                self._store(value.name)
        for node in counted(list(graph.node), "node", len(graph.node)):  # rounding a large weight takes minutes
            copy = NodeProto.FromString(node.SerializeToString())
            block = self._assignment.packed(node)
            if block is None:
                self._read_all(node, copy)
            else:
                copy = self._look_up(node, block)
            self._new.nodes.append(copy)
            for position, name in enumerate(node.output):
                if name and is_float(self._index, name):
                    if name in self._index.outputs and self._assignment.stored_in(name) != FLOAT:
                        copy.output[position] = f"{name}{QUANTIZER_INPUT}"
                    self._store(name)
        self._new.finish()

    def _read_all(self, node: NodeProto, copy: NodeProto) -> None:
        kind = self._assignment.computes_in(node)
        needs_barrier = kind == FLOAT and self._needs_barrier(node)
        for operand in operands(self._index, node):
            if not is_float(self._index, operand.name):
                continue
            if operand.name not in self._index.initializers:
                copy.input[operand.position] = self._read(node, operand, kind)
                if needs_barrier:
                    copy.input[operand.position] = self._new.barrier(operand.name, copy.input[operand.position])
                    needs_barrier = False  # one input is enough
            elif kind != FLOAT:
                encoded = self._constants.of(node, operand)
                copy.input[operand.position] = self._new.constant(operand.name, encoded, self._half(operand.name))

    def _look_up(self, node: NodeProto, block: int) -> NodeProto:
        """What stands in place of a node whose table has 4 bits."""
        name = node.input[0]
        pairs, scales = self._constants.packed(node, block)
        tables = self._new.constant(name, pairs, half=False), self._new.constant(name, scales, half=False)
        made = self._values.encoding(node.output[0], self._assignment.computes_in(node))
        *rows, columns = (dim.dim_value for dim in self._index.types[node.output[0]].tensor_type.shape.dim)
        return look_up(self._new, node, tables, float(scales.scale), made, (*rows, columns // block, block))

    def _store(self, name: str) -> None:
        """The Q and DQ nodes right behind a value."""
        kind = self._assignment.stored_in(name)
        if kind == FLOAT:
            return
        encoding = self._values.encoding(name, kind)
        is_output = name in self._index.outputs and name in self._index.makers
        source = f"{name}{QUANTIZER_INPUT}" if is_output else name
        self._new.store(name, source, encoding, self._half(name), name if is_output else None)

    def _read(self, node: NodeProto, operand: Operand, kind: str) -> str:
        """The name under which a node that computes in `kind` reads a value."""
        name, stored = operand.name, self._assignment.stored_in(operand.name)
        demanded = self._values.demanded(node, kind, name)
        if stored == FLOAT:
            if kind == FLOAT:
                return name
            source = self._float_source(name)
            return self._new.converted(name, source, demanded or self._values.encoding(name, kind), self._half(name))
        if demanded is not None and demanded != self._values.encoding(name, stored):
            return self._new.converted(name, None, demanded, self._half(name))
        wanted = self._values.read_type(node, operand, kind)
        if wanted in (stored, FLOAT):
            return self._new.dequantized(name)
        return self._new.converted(name, None, self._values.encoding(name, wanted), self._half(name))

    def _float_source(self, name: str) -> str:
        """Under which name a Q node reads a value that is stored in float."""
        if name not in self._index.makers:
            return self._new.beside(name, shape_of(self._index.types[name]))
        return self._new.apart(name, self._half(name)) if self._is_misplaced(name) else name

    def _needs_barrier(self, node: NodeProto) -> bool:
        """Whether QNN would take a float node that reads nothing but what DQ nodes give for a quantized one.

        It does so by the shape of the graph alone: DQ, node, Q. The node would compute in integers after all.
        """
        made = [name for name in node.output if name and is_float(self._index, name)]
        if any(self._half(name) for name in made):
            return False
        given = [each for each in node.input if each and each not in self._index.initializers]
        floats = [each for each in given if is_float(self._index, each)]
        if not floats or any(self._assignment.stored_in(each) == FLOAT for each in floats):
            return False
        readers = [reader for name in made for reader in self._index.readers.get(name, [])]
        stored = any(self._assignment.stored_in(name) != FLOAT for name in made)
        return stored or any(self._assignment.computes_in(reader) != FLOAT for reader in readers)

    def _is_misplaced(self, name: str) -> bool:
        """Whether HTP may place the rows of a float value wrongly: it does where a product reads so many."""
        shape = [dim.dim_value for dim in self._index.types[name].tensor_type.shape.dim]
        if shape[-2:-1] != [ROWS_MISPLACED] or any(size != 1 for size in shape[:-2]):
            return False
        products = (node for node in self._index.readers[name] if is_op(node, *PRODUCTS))
        return any(node.input[0] == name and self._assignment.computes_in(node) != FLOAT for node in products)

    def _half(self, name: str) -> bool:
        return element_type(self._index, name) == TensorProto.FLOAT16


def _check_ranges(index: GraphIndex, ranges: Mapping[str, Range]) -> None:
    for value in (*index.model.graph.input, *index.model.graph.value_info, *index.model.graph.output):
        if value.type.tensor_type.elem_type in FLOATS and value.name not in ranges:
            if value.name in index.initializers:
                continue
            node = index.makers.get(value.name)
            raise QuantizationError(
                f"value {value.name!r} has no calibrated range",
                where=f"node {label(node)}" if node is not None else "an input of the model",
                why="the ranges were measured on another model than this one",
                remedy="build again; if it stays, report it with the model",
            )


def _tidy(model: ModelProto) -> None:
    """Put the nodes in topological order, and remove what no output needs or says when and by what it was made."""
    sort_nodes(model)
    for field in ("producer_name", "producer_version", "metadata_props"):
        model.ClearField(field)
    prune(model)
