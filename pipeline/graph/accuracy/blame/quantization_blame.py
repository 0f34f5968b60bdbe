"""Which values of a QDQ model went wrong, by how much, and what their encodings and constants have to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from pipeline.graph.accuracy.blame.blame import Row, measured, nearest
from pipeline.graph.accuracy.blame.reasons import Evidence, explain, explain_local
from pipeline.graph.accuracy.figures.trace import Twin, View
from pipeline.graph.accuracy.figures.value_errors import ValueSums
from pipeline.graph.files.model_file import byte_size, tensor_dtype
from pipeline.graph.ir.index import FLOATS, GraphIndex, is_op
from pipeline.graph.ir.moves import MOVES
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.qdq.qdq_model import (
    Encoding,
    computing_node,
    dequantized_constant,
    encoding_of,
    is_dequantized_constant,
    standing_for,
)
from pipeline.ladder import EXACT_DB

_THROUGH = (
    "Add", "Cast", "Clip", "Concat", "Div", "Expand", "Gather", "Max", "Min", "Mul", "Reshape", "Slice", "Sub",
    "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators that a mask's filler goes through on its way to the scores."""

_FILLER_STEPS = 8


def quantized_values(above: View, qdq: View, shapes: View, ranges: Mapping[str, Range]) -> list[Row]:
    """The values of a float model against those of its QDQ model, in the graph's order, with encodings and reasons.

    `shapes` as in :func:`pipeline.graph.accuracy.blame.blame.compare_values`; `ranges` is what calibration measured.
    """
    graph, quantized = above.traced.index, qdq.traced.index
    standing = {value: standing_for(quantized, value) for value in above.traced.floats()}
    below = View(qdq.traced, qdq.feeds, {value: name for value, name in standing.items() if name})
    values = [value for value, name in standing.items() if name]
    encodings = {value: encoding_of(quantized, below.name(value)) for value in values}
    twins = _with_quantized_constants(above, quantized, values)
    sums = measured(values, encodings, above, below, shapes, twins)
    found = _Findings(graph, encodings, twins.twins, sums, nearest(graph, sums), ranges)
    return [found.row(value) for value in sums]


@dataclass(frozen=True)
class _Findings:
    """All that was found about the values of a graph."""

    index: GraphIndex
    encodings: Mapping[str, Encoding | None]
    twins: Mapping[str, Twin]
    sums: Mapping[str, ValueSums]
    before: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, Range]

    def row(self, value: str) -> Row:
        """A row with the likely reasons, if the value is quantized."""
        row = self._measured(value)
        evidence = self._evidence(row, with_inputs=True)
        if evidence is None:
            return row
        local = explain_local(evidence) if row.local_db < EXACT_DB else None
        return replace(row, reason=explain(evidence), local=local)

    def _measured(self, value: str) -> Row:
        node, sums = self.index.makers.get(value), self.sums[value]
        return Row(
            value=value,
            node=label(node) if node is not None else "an input of the model",
            op=node.op_type if node is not None else "",
            inputs=self.before[value],
            sqnr_db=sums.total_db,
            observed=sums.observed,
            own_db=EXACT_DB if self._as_its_input(value, node) else sums.own_db,
            weights_db=sums.weights_db if value in self.twins else None,
            encoding=self.encodings[value],
            calibrated=self.ranges.get(value),
        )

    def _evidence(self, row: Row, *, with_inputs: bool) -> Evidence | None:
        if row.encoding is None:
            return None
        inputs_db = [self.sums[name].total_db for name in row.inputs]
        given = [self._evidence(self._measured(name), with_inputs=False) for name in row.inputs] if with_inputs else []
        return Evidence(
            value=row.value,
            op=row.op,
            total_db=row.sqnr_db,
            own_db=row.own_db,
            weights_db=row.weights_db,
            has_weights=row.value in self.twins,
            inputs_db=None if None in inputs_db else min((db for db in inputs_db if db is not None), default=None),
            encoding=row.encoding,
            observed=row.observed,
            bulk=self.sums[row.value].bulk,
            filler=_filler(self.index, row.value, max(-row.encoding.covers.low, row.encoding.covers.high)),
            inputs=tuple(evidence for evidence in given if evidence is not None),
        )

    def _as_its_input(self, value: str, node: NodeProto | None) -> bool:
        """Whether a node moves elements that have been rounded to the same encoding before."""
        if node is None or not is_op(node, *MOVES) or self.encodings[value] is None:
            return False
        inputs = self.before[value]
        return bool(inputs) and all(self.encodings.get(name) == self.encodings[value] for name in inputs)


def _with_quantized_constants(above: View, quantized: GraphIndex, values: Sequence[str]) -> View:
    """The float model, in which nodes have a twin that computes with the QDQ model's constants and the same inputs."""
    index = above.traced.index
    names = dict.fromkeys(values, "")
    twins: dict[str, Twin] = {}
    for value in values:
        node, below = index.makers.get(value), computing_node(quantized, standing_for(quantized, value) or "")
        if node is None or below is None or node.output[0] != value:
            continue
        constants = _quantized_constants(index, quantized, node, below)
        if constants:
            names[value] = f"{value}//quantized constants"
            twins[value] = _twin(index, quantized, node, constants, names[value])
    return View(above.traced, above.feeds, names, twins)


def _twin(index: GraphIndex, quantized: GraphIndex, node: NodeProto, constants: Mapping[int, str], name: str) -> Twin:
    twin = NodeProto()
    twin.CopyFrom(node)
    twin.name = name
    for position in range(len(twin.output)):
        twin.output[position] = name if position == 0 else ""
    for position in constants:
        twin.input[position] = f"{name}/{position}"
    originals = {position: index.initializers[node.input[position]] for position in constants}

    def made() -> list[TensorProto]:
        arrays = {position: dequantized_constant(quantized, other) for position, other in constants.items()}
        return [
            numpy_helper.from_array(array.astype(tensor_dtype(originals[position])), f"{name}/{position}")
            for position, array in arrays.items()
            if array is not None
        ]

    return Twin(twin, sum(map(byte_size, originals.values())), made)


def _quantized_constants(index: GraphIndex, quantized: GraphIndex, node: NodeProto, below: NodeProto) -> dict[int, str]:
    """By position among a node's inputs, what gives the constants that are quantized, in the QDQ model."""
    return {
        position: other
        for position, (name, other) in enumerate(zip(node.input, below.input, strict=False))
        if name in index.initializers
        and index.initializers[name].data_type in FLOATS
        and is_dequantized_constant(quantized, other, tuple(index.initializers[name].dims))
    }


def _filler(index: GraphIndex, value: str, extreme: float, steps: int = _FILLER_STEPS) -> float | None:
    """A constant of about the magnitude `extreme` that reaches a value through nodes which a mask goes through."""
    array = index.constant(value)
    if array is not None:
        if array.dtype.kind != "f" or array.size == 0:
            return None
        largest = array.flat[int(np.argmax(np.abs(array)))]
        return float(largest) if extreme / 2 <= abs(largest) <= 2 * extreme else None
    node = index.makers.get(value)
    if node is None or not steps or not is_op(node, *_THROUGH):
        return None
    found = (_filler(index, name, extreme, steps - 1) for name in node.input if name)
    return next((filler for filler in found if filler is not None), None)
