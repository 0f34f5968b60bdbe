"""Q and DQ nodes under construction, with the constants they read.

Models at the opset whose Q and DQ take blocks: what changed on the way there is written as it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, defs, helper

from pipeline.errors import QuantizationError
from pipeline.graph.files.model_file import inline_tensor, tensor_dtype
from pipeline.graph.files.runtime_operators import is_of_onnxruntime
from pipeline.graph.ir.index import CONTRIB_DOMAIN, GraphIndex, import_contrib, opset
from pipeline.graph.ir.traverse import all_nodes, attribute_graphs, label
from pipeline.graph.quantization.chip_limits import FP16_LARGEST
from pipeline.graph.quantization.qdq.qdq_model import Encoding
from pipeline.graph.quantization.weights.constant_store import ConstantStore, EncodedConstant
from pipeline.graph.quantization.weights.weight_encodings import dtype

_SINCE_21 = ("uint16", "int16", "int4", "uint4")


class QdqNodes:
    """The nodes and initializers that a graph is to have; :meth:`finish` puts them in place of its own."""

    def __init__(self, index: GraphIndex, store: ConstantStore) -> None:
        self.nodes: list[NodeProto] = []
        self._index = index
        self._store = store
        self._initializers: dict[str, TensorProto] = {}
        self._read: dict[str, str] = {}
        self._stored: dict[str, str] = {}
        self._parameters: dict[str, list[str]] = {}
        self._conversions: dict[tuple[str, Encoding], str] = {}
        self._constants: dict[EncodedConstant, str] = {}
        self._barriers: dict[str, str] = {}
        self._kinds: set[str] = set()

    def store(self, name: str, source: str, encoding: Encoding, half: bool, result: str | None) -> None:
        """Q and DQ behind value `name`, which comes as `source` and is read as `result`, or a name of its own."""
        parameters = self._parameters[name] = self._encoding(name, encoding, half)
        self._stored[name] = f"{name}_QuantizeLinear_Output"
        self._read[name] = result or f"{name}_DequantizeLinear_Output"
        self._pair(name, source, self._read[name], parameters)

    def dequantized(self, name: str) -> str:
        """What those read who take value `name` as it is stored."""
        return self._read[name]

    def converted(self, name: str, source: str | None, encoding: Encoding, half: bool) -> str:
        """What those read who take value `name` in another encoding, made of a float `source` or of what is stored."""
        key = (name, encoding)
        if key not in self._conversions:
            stem, count = f"{name}_{encoding.dtype}", 1
            while f"{stem}_scale" in self._initializers:
                count += 1
                stem = f"{name}_{encoding.dtype}_{count}"
            if source is None:
                # A DQ node of its own: QNN makes one operator of it and the Q node it feeds.
                source = f"{stem}_QuantizeLinear_Input"
                self._node("DequantizeLinear", f"{stem}_convert", [self._stored[name], *self._parameters[name]], source)
            result = self._conversions[key] = f"{stem}_DequantizeLinear_Output"
            self._pair(stem, source, result, self._encoding(stem, encoding, half))
        return self._conversions[key]

    def barrier(self, name: str, source: str) -> str:
        """Float value `name`, read as `source`, through float16, so that its reader is not taken for a quantized node.

        Behind such a node it may not stand: of 16 rows that a normalization makes, HTP (2.51, emulated) gives a MatMul
        the first two, two of zeros, and then the third and fourth (-0.6 dB; 70 with the conversions in front of it).
        """
        if name not in self._barriers:
            narrow, wide = f"{name}_float16", f"{name}_float16_as_float"
            for target, given, result in (
                (TensorProto.FLOAT16, source, narrow),
                (TensorProto.FLOAT, narrow, wide),
            ):
                self.nodes.append(helper.make_node("Cast", [given], [result], f"{result}_Cast", to=target))
            self._barriers[name] = wide
        return self._barriers[name]

    def apart(self, name: str, half: bool) -> str:
        """A float value behind a maximum that no float16 is below, so that HTP doesn't join its maker to a product."""
        result = f"{name}_apart"
        if f"{result}_least" not in self._initializers:
            least = self._add(f"{result}_least", np.array(-FP16_LARGEST, np.float16 if half else np.float32))
            self._node("Max", f"{result}_Max", [name, least], result)
        return result

    def beside(self, name: str, dims: tuple[int, ...]) -> str:
        """An input of the model that nodes in float read, too, for a Q node: QNN EP (2.7) takes what a Q node reads of
        the model's inputs for integers, whoever else reads it, and no run can be had.
        """
        result, size = f"{name}_beside", math.prod(dims)
        if f"{result}_dims" not in self._initializers:
            other = self.dims(f"{result}_other_dims", (size,) if len(dims) != 1 else (size, 1))
            self._node("Reshape", f"{result}_other", [name, other], f"{result}_other")
            self._node("Reshape", result, [f"{result}_other", self.dims(f"{result}_dims", dims)], result)
        return result

    def constant(self, name: str, encoded: EncodedConstant, half: bool) -> str:
        """A quantized constant; what was encoded once is stored once."""
        if encoded not in self._constants:
            stem, count = name, 1
            while f"{stem}_quantized" in self._initializers or (count > 1 and stem in self._index.initializers):
                count += 1
                stem = f"{name}_{count}"
            self._kinds.add(tensor_dtype(encoded.values).name)
            stored = f"{stem}_quantized"
            values = self._initializers[stored] = TensorProto()
            values.CopyFrom(encoded.values)
            values.name = stored
            arrays = {
                f"{stem}_scale": encoded.scale.astype(np.float16 if half else np.float32),
                f"{stem}_zero_point": encoded.zero_point,
            }
            for parameter, array in arrays.items():
                self._initializers[parameter] = self._store.parameter(name, parameter, array)
            result = self._constants[encoded] = f"{stem}_DequantizeLinear_Output"
            name_of_node = f"{stem}_DequantizeLinear"
            self._node("DequantizeLinear", name_of_node, [stored, *arrays], result, encoded.axis, encoded.block)
        return self._constants[encoded]

    def computed(self, op: str, stem: str, inputs: list[str], encoding: Encoding, axis: int | None) -> str:
        """What a node that the float model has not makes, in an encoding, as those read it who take it like that."""
        self._node(op, f"{stem}_{op}", inputs, stem, axis)
        return self.reencoded(stem, stem, encoding)

    def reencoded(self, stem: str, source: str, encoding: Encoding) -> str:
        """What `source` is after it was stored in an encoding."""
        result = f"{stem}_DequantizeLinear_Output"
        self._pair(stem, source, result, self._encoding(stem, encoding, half=False))
        return result

    def number(self, stem: str, value: float, encoding: Encoding) -> str:
        """A single number in an encoding that has it."""
        parameters, result = self._encoding(stem, encoding, half=False), f"{stem}_DequantizeLinear_Output"
        stored = self._add(f"{stem}_quantized", np.array(value / encoding.scale + encoding.zero_point, encoding.dtype))
        self._node("DequantizeLinear", f"{stem}_DequantizeLinear", [stored, *parameters], result)
        return result

    def dims(self, stem: str, dims: tuple[int, ...]) -> str:
        """A shape, as Reshape takes it."""
        return self._add(stem, np.array(dims, np.int64))

    def finish(self) -> None:
        """Give the graph these nodes and initializers; the quantized constants' originals stay for who reads them."""
        model = self._index.model
        if any(encoded.block for encoded in self._constants):
            raise_opset(model, self.nodes, self._initializers)
        if any(node.domain == CONTRIB_DOMAIN for node in self._with_domain()):
            import_contrib(model)
        del model.graph.node[:]
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self._initializers.values())

    def _with_domain(self) -> list[NodeProto]:
        old = opset(self._index.model) < OWN_OPSET and any(kind in _SINCE_21 for kind in self._kinds)
        for node in self.nodes:
            if old and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                node.domain = CONTRIB_DOMAIN
        return self.nodes

    def _pair(self, stem: str, source: str, result: str, parameters: list[str]) -> None:
        between = f"{stem}_QuantizeLinear_Output"
        self._node("QuantizeLinear", f"{stem}_QuantizeLinear", [source, *parameters], between)
        self._node("DequantizeLinear", f"{stem}_DequantizeLinear", [between, *parameters], result)

    def _encoding(self, stem: str, encoding: Encoding, half: bool) -> list[str]:
        self._kinds.add(encoding.dtype)
        scale = np.array(encoding.scale, np.float16 if half else np.float32)
        zero_point = np.array(encoding.zero_point, dtype(encoding.dtype))
        return [self._add(f"{stem}_scale", scale), self._add(f"{stem}_zero_point", zero_point)]

    def _add(self, name: str, array: NDArray[Any]) -> str:
        self._initializers[name] = inline_tensor(name, array)
        return name

    def _node(
        self, op: str, name: str, inputs: list[str], output: str, axis: int | None = None, block: int | None = None
    ) -> None:
        self.nodes.append(helper.make_node(op, inputs, [output], name, axis=axis, block_size=block))


OWN_OPSET = 21
"""From here on ONNX's own Q and DQ take 16 and 4 bits, and blocks; before, onnxruntime's do, but no blocks."""

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip
"""Their axes are an input since 18."""
_MODES = {b"bilinear": b"linear", b"bicubic": b"cubic"}
"""Of GridSample, since 20."""
_SAME = frozenset({
    "AveragePool", "Cast", "CastLike", "Constant", "ConstantOfShape", "DequantizeLinear", "Equal", "Flatten", "Gelu",
    "GridSample", "Identity", "If", "IsInf", "IsNaN", "Loop", "LpPool", "Mish", "Pad", "QuantizeLinear", "Reshape",
    "Resize", "Scan", "ScatterElements", "ScatterND", "Shape", "Size", "Split", "Squeeze", "Transpose", "Unsqueeze",
    *_REDUCTIONS,
})  # fmt: skip
"""What took more types or attributes between 17 and 21 and does the same, or is rewritten here."""
_FIRST = 17


def raise_opset(model: ModelProto, nodes: Sequence[NodeProto], initializers: MutableMapping[str, TensorProto]) -> None:
    """Make nodes that are to be a model's, with more initializers, those of :data:`OWN_OPSET`; nothing at a later one.

    Raises:
        QuantizationError: an operator changed in a way that is not known here.
    """
    version = opset(model)
    if version >= OWN_OPSET:
        return
    _check(nodes, version)
    for node in _with_branches(nodes):
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _REDUCTIONS and version < 18:
            _give_axes(node, initializers)
        elif node.op_type == "Split" and len([name for name in node.input if name]) < 2 and version < 18:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        elif node.op_type == "GridSample" and version < 20:
            for attribute in node.attribute:
                if attribute.name == "mode":
                    attribute.s = _MODES.get(attribute.s, attribute.s)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = OWN_OPSET
    model.ir_version = max(model.ir_version, 10)


def _with_branches(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for branch in attribute_graphs(node):
            yield from all_nodes(branch)


def _check(nodes: Sequence[NodeProto], version: int) -> None:
    for node in _with_branches(nodes):
        if node.domain in ("", "ai.onnx") and node.op_type not in _SAME and not is_of_onnxruntime(node):
            schema = defs.get_schema(node.op_type, OWN_OPSET)
            if schema.since_version > version or version < _FIRST:
                raise QuantizationError(
                    "weights can't be in blocks in this model",
                    where=f"node {label(node)}",
                    why=f"blocks need opset {OWN_OPSET}, and {node.op_type} is another there than in {version}",
                    remedy=f"export the model with opset {OWN_OPSET}, or leave 'block' out",
                )


def _give_axes(node: NodeProto, initializers: MutableMapping[str, TensorProto]) -> None:
    axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), None)
    if axes is None:
        return
    kept = [attribute for attribute in node.attribute if attribute.name != "axes"]
    del node.attribute[:]
    node.attribute.extend(kept)
    name = f"{node.output[0]}_axes"
    initializers[name] = inline_tensor(name, np.array(axes, np.int64))
    node.input.append(name)
