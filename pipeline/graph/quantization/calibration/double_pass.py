"""A float32 model that computes in float64, so that what it computes is the same on every processor but for 1e-15.

onnxruntime's kernels of float32 add up in another order on each instruction set, and their results differ in the 7th
digit. What is rounded to a few bits afterwards falls to another side for one number in some thousands, with float64
for one in some 1e12 (ADR 29).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.ir.index import CONTRIB_DOMAIN, GraphIndex, element_type, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, attribute_graphs, live_nodes, reads
from pipeline.graph.quantization.calibration.double_nodes import FUNCTIONS, DoubleNodes
from pipeline.graph.quantization.calibration.double_windows import WINDOWS

IN_DOUBLE = (
    "Abs", "Add", "ArgMax", "ArgMin", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat", "Cos", "CumSum",
    "DepthToSpace", "Div", "Einsum", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Gemm", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "LayerNormalization",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "MatMul", "Max", "MaxPool", "Min",
    "Mish", "Mod", "Mul", "Neg", "PRelu", "Pad", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu",
    "Reshape", "Round", "ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice",
    "Softmax", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "TopK", "Transpose",
    "Trilu", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators that onnxruntime 1.31 computes in float64, by a kernel or by ONNX's own definition of them."""
_EXACT = ("Constant", "ConstantOfShape", "DequantizeLinear")
"""Operators whose float32 is the same everywhere: no sums, no functions."""
_LOOKS_UP = ("Gather", "GatherElements", "GatherND")
"""What they take from a table of constants is widened, not the table."""
_WRITERS = {**FUNCTIONS, **WINDOWS}
_WIDE = "wide/"


@dataclass(frozen=True)
class Wide:
    """`model` takes what the float32 model takes, and computes in float64.

    `outputs` are its outputs by the names that the values have in the float32 model. `doubtful` are values that may
    differ between processors as float32 does: what is computed from an operator that float64 is not to be had for.
    """

    model: ModelProto
    outputs: Mapping[str, str]
    doubtful: frozenset[str]


def in_double(index: GraphIndex, outputs: Collection[str]) -> Wide:
    """The part of a float32 model with fixed shapes that makes some values, in float64.

    External initializers stay where they are, and are widened as the model runs.
    """
    return _Widening(index).widen(sorted(outputs))


def widened_once(index: GraphIndex, model: ModelProto, most: int) -> dict[str, NDArray[np.float64]]:
    """Initializers in float64 that become inputs of `model`, made by :func:`in_double`, in place of nodes that widen
    them in every run: in the order of the graph, as many as take `most` bytes.
    """
    found: dict[str, NDArray[np.float64]] = {}
    nodes = []
    for node in model.graph.node:
        name = node.input[0] if node.op_type == "Cast" and node.output[0] == f"{_WIDE}{node.input[0]}" else ""
        dims = index.initializers[name].dims if name in index.initializers else ()
        if name in index.initializers and (size := 8 * math.prod(dims)) <= most:
            array = index.constant(name)
            assert array is not None
            found[node.output[0]] = np.ascontiguousarray(array, np.float64)
            model.graph.input.append(helper.make_tensor_value_info(node.output[0], TensorProto.DOUBLE, dims))
            most -= size
        else:
            nodes.append(node)
    if found:
        read = {name for node in nodes for name in reads(node)}
        left = [tensor for tensor in model.graph.initializer if tensor.name in read]
        del model.graph.node[:], model.graph.initializer[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(left)
    return found


class _Widening:
    """Values of float32 keep their names, and have another one in float64. Each is there once it is asked for."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._made = DoubleNodes()
        self._wide: set[str] = set()
        self._narrow = {value.name for value in index.model.graph.input} | set(index.initializers)
        self._doubtful: set[str] = set()
        self._shapes = {name: shape_of(kind) for name, kind in index.types.items()}
        self._shapes |= {name: tuple(tensor.dims) for name, tensor in index.initializers.items()}

    def widen(self, outputs: list[str]) -> Wide:
        """Make the model."""
        source = self._index.model
        for node in live_nodes(source.graph.node, outputs):
            self._add(node)
        made = {name: self._read(name) for name in outputs}
        nodes, constants = self._made.nodes, self._made.constants
        model = ModelProto(ir_version=source.ir_version, opset_import=source.opset_import, functions=source.functions)
        graph, used = model.graph, {name for node in nodes for name in reads(node)}
        graph.name = source.graph.name
        graph.node.extend(nodes)
        graph.input.extend(source.graph.input)
        graph.initializer.extend(tensor for tensor in source.graph.initializer if tensor.name in used)
        graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in constants.items())
        for name, wide in made.items():
            kind = TensorProto.DOUBLE if self._is_float(name) else element_type(self._index, name)
            graph.output.append(helper.make_tensor_value_info(wide, kind, self._shapes[name]))
        return Wide(model, made, frozenset(self._doubtful))

    def _add(self, node: NodeProto) -> None:
        if not self._doubtful.isdisjoint(reads(node)):
            self._doubtful.update(node.output)
        encloses = next(attribute_graphs(node), None) is not None
        if not encloses and not any(self._is_float(name) for name in (*node.input, *node.output)):
            self._made.nodes.append(node)
        elif is_op(node, *_EXACT) or (is_op(node, *_LOOKS_UP) and node.input[0] in self._index.initializers):
            self._keep(node)
        elif encloses or not (self._write(node) or self._copy(node)):
            self._keep(node)
            self._doubtful.update(node.output)

    def _write(self, node: NodeProto) -> bool:
        if node.op_type not in _WRITERS or node.domain not in (*DEFAULT_DOMAINS, CONTRIB_DOMAIN):
            return False
        inputs, out = [self._read(name) for name in node.input], self._widened(node.output[0])
        written = _WRITERS[node.op_type](self._made, node, inputs, out, self._shapes)
        if not written:
            self._wide.discard(node.output[0])
        return written

    def _copy(self, node: NodeProto) -> bool:
        if not is_op(node, *IN_DOUBLE):
            return False
        copy = NodeProto.FromString(node.SerializeToString())
        copy.ClearField("input")
        copy.input.extend(self._read(name) for name in node.input)
        copy.ClearField("output")
        copy.output.extend(self._widened(name) for name in node.output)
        for attribute in copy.attribute:
            if is_op(node, "Cast") and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
        self._made.nodes.append(copy)
        return True

    def _keep(self, node: NodeProto) -> None:
        """The node as it is, in float32."""
        for name in reads(node):
            if self._is_float(name) and name not in self._narrow:
                self._made.op("Cast", f"{_WIDE}{name}", out=name, to=TensorProto.FLOAT)
                self._narrow.add(name)
        self._made.nodes.append(node)
        self._narrow.update(node.output)

    def _read(self, name: str) -> str:
        """A value as a node of float64 reads it: what is there in float32 alone is widened."""
        if self._is_float(name) and name in self._narrow and name not in self._wide:
            self._made.op("Cast", name, out=self._widened(name), to=TensorProto.DOUBLE)
        return f"{_WIDE}{name}" if self._is_float(name) else name

    def _widened(self, name: str) -> str:
        """What a value that a node is about to make is called."""
        if not self._is_float(name):
            return name
        self._wide.add(name)
        return f"{_WIDE}{name}"

    def _is_float(self, name: str) -> bool:
        return bool(name) and element_type(self._index, name) == TensorProto.FLOAT
