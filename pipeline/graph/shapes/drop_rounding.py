"""Lets values pass where a quantized model rounds them, and keeps the bounds that it puts on them.

    DequantizeLinear(Reshape(QuantizeLinear(x, s, z)), s, z)

becomes::

    Reshape(Clip(x, (low - z) s, (high - z) s))

where low and high are the ends of the type. The bounds count: quantizers leave out a Relu whose floor is the zero
point. A quantized value that something else reads, an output of the model for one, is computed from the number without
any QuantizeLinear, and one that nothing here made is turned into a number.

Left alone: scales that are computed, and scales for each channel of what is no constant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from pipeline.graph.floats.movers import MOVERS
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.traverse import input_at, reads, unused
from pipeline.graph.shapes.folding import Constants

_SIGNED = frozenset({"int8", "int16", "int4", "int2"})


@dataclass(frozen=True)
class _Encoding:
    """What a quantized number q stands for: ``(q - zero) scale``; `low` and `high` are the least and greatest q."""

    scale: float
    zero: int
    low: int
    high: int
    kind: int
    """Its element type, as TensorProto counts them."""


def drop_rounding(nodes: Sequence[NodeProto], constants: Constants, outputs: Collection[str]) -> list[NodeProto]:
    """The nodes, in their order, with numbers in place of quantized values; `outputs` are those of the model.

    The constants that the new nodes read are added to `constants`.
    """
    if not any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in nodes):
        return list(nodes)
    passing = _Passing(nodes, constants, outputs)
    return passing.run()


class _Passing:
    def __init__(self, nodes: Sequence[NodeProto], constants: Constants, outputs: Collection[str]) -> None:
        self._given = nodes
        self._constants = constants
        self._outputs = outputs
        self._makers = {name: node for node in nodes for name in node.output if name}
        self._taken = {*self._makers, *constants.types, *(name for node in nodes for name in reads(node))}
        self._numbers: dict[str, str] = {}
        self._encodings: dict[str, _Encoding] = {}
        self._rounded: set[str] = set()
        self._nodes: list[NodeProto] = []

    def run(self) -> list[NodeProto]:
        for node in self._given:
            if not self._replaced(node):
                for name in reads(node):
                    self._round(name)
                self._nodes.append(node)
        for name in self._outputs:
            self._round(name)
        return self._nodes

    def _replaced(self, node: NodeProto) -> bool:
        """Write a node with numbers; False where it stays."""
        if node.op_type == "QuantizeLinear":
            return self._quantized(node)
        if node.op_type == "DequantizeLinear":
            return self._dequantized(node)
        return node.op_type in MOVERS and self._moved(node)

    def _encoding(self, node: NodeProto) -> _Encoding | None:
        """The encoding of a QuantizeLinear or DequantizeLinear; None unless it is one, and a constant."""
        given = [*node.input, ""][1:3]
        if given[0] not in self._constants or (given[1] and given[1] not in self._constants):
            return None
        scale = self._constants.value(given[0])
        if scale.size != 1:
            return None
        if given[1]:
            zero = self._constants.value(given[1])
            kind, offset = self._constants.types[given[1]].tensor_type.elem_type, zero.astype(np.int64).ravel()
            if offset.size != 1:
                return None
        else:
            kind, offset = integer(node, "output_dtype") or 2, np.zeros(1, np.int64)  # 2: uint8
        name = helper.tensor_dtype_to_np_dtype(kind).name
        if not name.startswith(("int", "uint")):
            return None
        bits = int(name.removeprefix("u").removeprefix("int"))
        low = -(1 << (bits - 1)) if name in _SIGNED else 0
        return _Encoding(float(scale.ravel()[0]), int(offset[0]), low, low + (1 << bits) - 1, kind)

    def _quantized(self, node: NodeProto) -> bool:
        """Replace a QuantizeLinear by its bounds; False where it stays."""
        encoding = self._encoding(node)
        if encoding is None:
            return False
        made = self._unused(f"{node.output[0]}/number")
        bounds = [(end - encoding.zero) * encoding.scale for end in (encoding.low, encoding.high)]
        names = [self._constant(f"{made}/{place}", bound) for place, bound in zip(("low", "high"), bounds, strict=True)]
        self._nodes.append(helper.make_node("Clip", [node.input[0], *names], [made], node.name))
        self._numbers[node.output[0]] = made
        self._encodings[node.output[0]] = encoding
        return True

    def _dequantized(self, node: NodeProto) -> bool:
        """Replace a DequantizeLinear; False where it stays."""
        wanted = self._encoding(node)
        if wanted is None:
            return False
        name = node.input[0]
        known = self._encodings.get(name)
        if known is None:
            return self._of_a_table(node) or self._of_integers(node, wanted)
        number, ratio = self._numbers[name], wanted.scale / known.scale
        if ratio != 1:
            number = self._computed("Mul", number, ratio, f"{node.output[0]}/scaled")
        if shift := (known.zero - wanted.zero) * wanted.scale:
            number = self._computed("Add", number, shift, f"{node.output[0]}/shifted")
        self._nodes.append(helper.make_node("Identity", [number], [node.output[0]], node.name))
        return True

    def _of_a_table(self, node: NodeProto) -> bool:
        """Replace the DequantizeLinear of what is taken from a constant: the constant becomes numbers."""
        taken = self._makers.get(node.input[0])
        if taken is None or MOVERS.get(taken.op_type) != 1 or taken.input[0] not in self._constants:
            return False
        table = self._unused(f"{node.output[0]}/table")
        turned = helper.make_node("DequantizeLinear", [taken.input[0], *node.input[1:]], [table], domain=node.domain)
        if not self._constants.fold(turned):
            return False
        moved = NodeProto()
        moved.CopyFrom(taken)
        moved.name, moved.input[0] = node.name, table
        del moved.output[:]
        moved.output.append(node.output[0])
        self._nodes.append(moved)
        return True

    def _of_integers(self, node: NodeProto, wanted: _Encoding) -> bool:
        """Replace the DequantizeLinear of whole numbers that are none of ours, as an input of the model."""
        made = self._unused(f"{node.output[0]}/whole")
        self._nodes.append(helper.make_node("Cast", [node.input[0]], [made], f"{node.name}/cast", to=1))
        if wanted.zero:
            made = self._computed("Add", made, -float(wanted.zero), f"{node.output[0]}/centred")
        self._nodes.append(
            helper.make_node("Mul", [made, self._constant(f"{made}/scale", wanted.scale)], [node.output[0]], node.name)
        )
        return True

    def _moved(self, node: NodeProto) -> bool:
        """Let an operator that only moves values move numbers; False where it moves no quantized ones."""
        count = MOVERS[node.op_type] or len(node.input)
        known = [self._encodings.get(name) for name in node.input[:count]]
        if known[0] is None or any(each != known[0] for each in known):
            return False
        moved = NodeProto()
        moved.CopyFrom(node)
        for place in range(count):
            moved.input[place] = self._numbers[node.input[place]]
        if node.op_type == "Pad" and input_at(node, 2):
            if node.input[2] not in self._constants:
                return False
            filling = float(self._constants.value(node.input[2]).ravel()[0])
            moved.input[2] = self._constant(f"{node.output[0]}/filling", (filling - known[0].zero) * known[0].scale)
        elif node.op_type == "Pad" and known[0].zero:  # padded with what 0 stands for
            del moved.input[2:]
            fill = self._constant(f"{node.output[0]}/filling", -known[0].zero * known[0].scale)
            moved.input.extend([fill, *node.input[3:]])
        for place, name in enumerate(node.output):
            if name:
                moved.output[place] = self._unused(f"{name}/number")
                self._numbers[name], self._encodings[name] = moved.output[place], known[0]
        self._nodes.append(moved)
        return True

    def _round(self, name: str) -> None:
        """Make a quantized value for who reads it as such: ``Cast(Clip(Round(x / scale) + zero))``."""
        encoding = self._encodings.get(name)
        if encoding is None or name in self._rounded:
            return
        self._rounded.add(name)
        scale = self._constant(f"{name}/scale", encoding.scale)
        steps, shifted = self._unused(f"{name}/steps"), self._unused(f"{name}/rounded")
        self._nodes.append(helper.make_node("Div", [self._numbers[name], scale], [steps], steps))
        self._nodes.append(helper.make_node("Round", [steps], [shifted], shifted))
        if encoding.zero:
            shifted = self._computed("Add", shifted, float(encoding.zero), f"{name}/shifted")
        self._nodes.append(helper.make_node("Cast", [shifted], [name], f"{name}/cast", to=encoding.kind))

    def _computed(self, kind: str, name: str, value: float, made: str) -> str:
        """A value after an operator with one constant number."""
        made = self._unused(made)
        self._nodes.append(helper.make_node(kind, [name, self._constant(f"{made}/by", value)], [made], made))
        return made

    def _unused(self, name: str) -> str:
        made = unused(name, self._taken)
        self._taken.add(made)
        return made

    def _constant(self, name: str, value: float) -> str:
        name = self._unused(name)
        self._constants.add_array(name, np.array(value, np.float32))
        return name
