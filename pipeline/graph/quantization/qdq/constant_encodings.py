"""Constants as the integers that their readers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.contracts.scheme import bits
from pipeline.errors import QuantizationError
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.chip_limits import REQUANTIZE
from pipeline.graph.quantization.operand_rules import ONE_ENCODING, PRODUCTS, Operand, Role, operands
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment, Stored
from pipeline.graph.quantization.qdq.packed_tables import PackedTable, pack
from pipeline.graph.quantization.qdq.qdq_model import Encoding
from pipeline.graph.quantization.qdq.value_encodings import ValueEncodings
from pipeline.graph.quantization.weights.constant_store import ConstantStore, EncodedConstant
from pipeline.graph.quantization.weights.correlations import Correlations
from pipeline.graph.quantization.weights.weight_encodings import (
    Integers,
    asymmetric,
    bias,
    largest,
    limits,
    rounded_to,
    symmetric,
)
from pipeline.graph.quantization.weights.weight_layout import Layout, layout_of
from pipeline.graph.quantization.weights.weight_rounding import Recipe, encode_weight

_LARGEST_BIAS = 2**31 - 2**10
"""A bias of 32 bits is kept this far from the end, as its scale is rounded to float32."""

_RESCALED = 1.001 * REQUANTIZE
"""Scales are rounded to float32."""


class ConstantEncodings:
    """Encodes each constant once for all readers that need it alike."""

    def __init__(
        self,
        index: GraphIndex,
        assignment: Assignment,
        values: ValueEncodings,
        ranges: Mapping[str, Range],
        store: ConstantStore,
        correlations: Correlations | None,
    ) -> None:
        self._index = index
        self._assignment = assignment
        self._values = values
        self._ranges = ranges
        self._store = store
        self._correlations = correlations
        self._encoded: dict[tuple[str, Stored, Encoding | None], EncodedConstant] = {}

    def of(self, node: NodeProto, operand: Operand) -> EncodedConstant:
        """A float constant as a quantized node reads it."""
        if operand.role is not Role.BIAS:
            return self._shared(node, operand)
        scale = self._bias_scale(node)

        def encode() -> Integers:
            self._range(node, operand.name)
            return bias(self._array(operand.name), scale)

        return self._store.encoded(self._index.initializers[operand.name], ("bias", _key(scale)), encode)

    def packed(self, node: NodeProto, block: int) -> tuple[EncodedConstant, EncodedConstant]:
        """The table of a node in 4 bits, `block` columns to a scale: its pairs and its scales."""
        name, made = node.input[0], list[PackedTable]()
        covers = self._range(node, name)

        def table() -> PackedTable:
            if not made:
                made.append(pack(self._index.pieces(name), covers, block))
            return made[0]

        of = self._index.initializers[name]
        pairs = self._store.encoded(of, ("pairs", block), lambda: table().stored_pairs)
        return pairs, self._store.encoded(of, ("scales", block), lambda: table().stored_scales)

    def _range(self, node: NodeProto, name: str) -> Range:
        """The range of a constant's own values, which have to be finite."""
        covers = self._values.constant_range(name)
        if not covers.finite:
            remedy = "export the model again from sound weights; if it is a mask, with a filler such as -100"
            if is_op(node, "ScatterElements", "ScatterND"):
                remedy = (
                    "export the model again with a finite start in its place, below all that maxima are taken of"
                    " (above all that minima are)"
                )
            raise QuantizationError(
                f"constant {name!r} holds NaN or infinity and can't be quantized",
                where=f"node {label(node)}",
                why="an encoding has one range for all of it, and there is none that holds such numbers",
                remedy=remedy,
            )
        return covers

    def _shared(self, node: NodeProto, operand: Operand) -> EncodedConstant:
        name, stored = operand.name, self._stored(node, operand)
        given = self._of_result(node, name, stored.kind)
        if (name, stored, given) in self._encoded:
            return self._encoded[name, stored, given]
        of_all, smallest = self._ranges.get(name), self._smallest_scale(name, stored)
        recipe, layout = self._assignment.recipe(stored.kind), self._layout(node, operand, stored)

        def encode() -> Integers:
            covers = self._range(node, name)
            if given is not None:
                return rounded_to(self._index.pieces(name), given.dtype, given.scale, given.zero_point)
            if layout is not None:
                parts = self._correlations.of(name) if self._correlations is not None else ()
                return encode_weight(self._array(name), layout, recipe, parts, smallest)
            if not stored.symmetric:
                return asymmetric(self._index.pieces(name), of_all or covers, stored.kind, float(np.max(smallest)))
            least = smallest
            if of_all is not None:
                # Of one scale in every bucket, whatever part of the range this one's values have.
                least = np.maximum(smallest, max(-of_all.low, of_all.high) / largest(stored.kind))
            return symmetric(self._array(name), stored.kind, stored.axis, least)

        how = (stored, given, of_all, _key(smallest), recipe, layout)
        made = self._encoded[name, stored, given] = self._store.encoded(self._index.initializers[name], how, encode)
        return made

    def _layout(self, node: NodeProto, operand: Operand, stored: Stored) -> Layout | None:
        """Where inputs and channels of a weight are that is in blocks, or that the scheme treats by its inputs."""
        if operand.role is not Role.WEIGHT or stored.axis is None:
            return None
        recipe = self._assignment.recipe(stored.kind)
        if stored.block is None and recipe == Recipe(stored.kind):
            return None
        found = layout_of(self._index, node)
        return replace(found, block=stored.block) if found is not None else None

    def _of_result(self, node: NodeProto, name: str, kind: str) -> Encoding | None:
        """The encoding of what a node makes, where it is to be that of a constant too; None for most nodes.

        A Where gets it, if it holds the constant that is selected from.
        Else the compiler converts the constant to it, which rounds twice; and what it leaves behind a single number
        differs from run to run (MiniLM's mask: 126 bytes of the binary, in 1 of 20 to 80 compiles).
        """
        if is_op(node, *ONE_ENCODING):
            self._range(node, name)  # what is joined to an infinity has no encoding to ask for
        demanded = self._values.demanded(node, kind, name) or self._whole_step(node, name, kind)
        if demanded is not None or not is_op(node, "Where"):
            return demanded
        made, covers = self._values.encoding(node.output[0], kind), self._values.constant_range(name)
        low, high = ((limit - made.zero_point) * made.scale for limit in limits(kind))
        return made if low <= covers.low and covers.high <= high else None

    def _whole_step(self, node: NodeProto, name: str, kind: str) -> Encoding | None:
        """The step of a sum of whole numbers, for a whole constant in it; None for any other.

        Of 1 in steps of its own, which are 65535 to it, HTP (2.51, emulated) adds nothing to a value of 0 to 60000.
        """
        if not is_op(node, "Add", "Sub") or not self._values.is_exact(node.output[0]):
            return None
        scale, covers = self._values.encoding(node.output[0], kind).scale, self._values.constant_range(name)
        values = self._index.constant(name)
        low, high = limits(kind)
        if values is None or not covers.finite or (values != np.rint(values)).any() or scale > 1:
            return None
        zero = low + round(-min(covers.low, 0.0) / scale)
        return Encoding(kind, scale, zero) if max(covers.high, 0.0) / scale + zero <= high else None

    def _stored(self, node: NodeProto, operand: Operand) -> Stored:
        stored = self._assignment.constant(node, operand)
        return Stored(stored.kind, stored.symmetric) if operand.name in self._ranges else stored

    def _smallest_scale(self, name: str, stored: Stored) -> NDArray[np.float64]:
        """What a weight's scales must not fall short of, lest a bias that is added exceeds 32 bits, or a channel's
        products are too small to be rescaled.
        """
        smallest = np.zeros(())
        for node in self._index.readers[name]:
            found = {operand.role: operand for operand in operands(self._index, node)}
            weight = found.get(Role.WEIGHT) or found.get(Role.SCALE)
            if weight is None or weight.name != name or self._assignment.computes_in(node) == FLOAT:
                continue
            if self._stored(node, weight) != stored:
                continue
            if weight.role is Role.WEIGHT:
                smallest = np.maximum(smallest, self._least_rescaled(node, weight))
            if Role.BIAS not in found:
                continue
            added = np.abs(self._array(found[Role.BIAS].name)).astype(np.float64)
            columns = stored.axis is not None and added.ndim > 0
            added = added.reshape(-1, added.shape[-1]).max(axis=0) if columns else added.max(initial=0)
            smallest = np.maximum(smallest, added / (_LARGEST_BIAS * self._input_scale(node)))
        return smallest

    def _least_rescaled(self, node: NodeProto, weight: Operand) -> float:
        """The scale of a weight below which HTP saturates what the node makes of it; 0 where none is.

        A channel that gets this scale in place of a smaller one is next to dead: what its weights are rounded by adds
        at most ``inputs / 512`` steps to a result, and far less where the errors of many inputs cancel.
        """
        name = node.output[0]
        kind = self._assignment.stored_in(name)
        kind = self._assignment.computes_in(node) if kind == FLOAT else kind
        if not is_op(node, *PRODUCTS) or bits(kind) < 16:
            return 0.0
        other = next(each for each in operands(self._index, node) if each.position == 1 - weight.position)
        if other.name in self._index.initializers:
            return 0.0
        return _RESCALED * self._values.encoding(name, kind).scale / self._scale_read(node, other)

    def _bias_scale(self, node: NodeProto) -> NDArray[np.float64]:
        weight = next(operand for operand in operands(self._index, node) if operand.position == 1)
        if weight.name in self._index.initializers:
            encoded = self._shared(node, weight)
            scale = encoded.scale if encoded.block is None else np.abs(encoded.scale).max(axis=encoded.axis).reshape(-1)
        else:
            kind = self._values.read_type(node, weight, self._assignment.computes_in(node))
            scale = np.array(self._values.encoding(weight.name, kind).scale)
        # As the runtime computes it, from what is stored as float32.
        stored = np.asarray(scale, np.float32).astype(np.float64)
        return np.asarray(stored * np.float64(np.float32(self._input_scale(node))))

    def _input_scale(self, node: NodeProto) -> float:
        given = next(operand for operand in operands(self._index, node) if operand.position == 0)
        if given.name in self._index.initializers:
            return float(self._shared(node, given).scale)
        return self._scale_read(node, given)

    def _scale_read(self, node: NodeProto, given: Operand) -> float:
        """The scale with which a node reads a value that is no constant."""
        kind = self._assignment.computes_in(node)
        return self._values.encoding(given.name, self._values.read_type(node, given, kind)).scale

    def _array(self, name: str) -> NDArray[np.float32]:
        array = self._index.constant(name)
        assert array is not None
        return np.asarray(array)


def _key(array: NDArray[np.float64]) -> tuple[tuple[int, ...], bytes]:
    """What tells arrays of other shapes or bits apart."""
    return array.shape, array.tobytes()
