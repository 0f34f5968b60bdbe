"""Tiny models for tests of the compiler: a multilayer perceptron, as float and as QDQ model.

All are `x` float32 [1, seq, WIDTH] -> `y` float32 [1, seq, WIDTH], their weights in `weights.bin` beside the graph
file as every stage leaves them. Values are fixed by a seed; scales come from running the layers in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import save_graph

WIDTH = 32  # 4 KiB a weight in float32, 1 KiB in uint8: large enough to be external in both
LAYERS = 2

Array = NDArray[np.float32]


def sample(seq: int, seed: int = 0) -> Array:
    """One input, float32 [1, seq, WIDTH]."""
    return np.random.default_rng(seed).normal(size=(1, seq, WIDTH)).astype(np.float32)


def float_model(folder: Path, seq: int = 8, *, between: str = "", sequence: int | str | None = None) -> Path:
    """Write MatMul, Relu, MatMul, Relu to `folder/model.onnx`.

    `between` is a unary operator to put after the first Relu; `sequence` replaces `seq` as the declared dim.
    """
    nodes: list[NodeProto] = []
    value = "x"
    for layer in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"matmul{layer}_out"], f"matmul{layer}"))
        nodes.append(helper.make_node("Relu", [f"matmul{layer}_out"], [f"relu{layer}_out"], f"relu{layer}"))
        value = f"relu{layer}_out"
        if between and layer == 0:
            nodes.append(helper.make_node(between, [value], ["between_out"], "between"))
            value = "between_out"
    nodes[-1].output[0] = "y"
    weights = {f"w{layer}": weight for layer, weight in enumerate(_weights())}
    return _save(folder, nodes, weights, seq if sequence is None else sequence)


@dataclass(frozen=True)
class Scheme:
    """How the weights of a QDQ model are quantized."""

    per_channel: bool = False
    signed: bool = False


def qdq_model(folder: Path, seq: int = 8, scheme: Scheme | None = None) -> Path:
    """Write the QDQ form of the float model to `folder/model.onnx`: uint16 activations, 8-bit weights."""
    graph = _QdqGraph()
    activation = sample(64, seed=1)
    value = graph.quantized("x", "x", activation)
    for layer, weight in enumerate(_weights()):
        dequantized = graph.weight(f"w{layer}", weight, scheme or Scheme())
        graph.add("MatMul", [value, dequantized], f"matmul{layer}_out", f"matmul{layer}")
        activation = activation @ weight
        value = graph.quantized(f"matmul{layer}", f"matmul{layer}_out", activation)
        activation = np.maximum(activation, 0)
        graph.add("Relu", [value], f"relu{layer}_out", f"relu{layer}")
        value = graph.quantized(f"relu{layer}", f"relu{layer}_out", activation)
    graph.nodes[-1].output[0] = "y"
    return _save(folder, graph.nodes, graph.tensors, seq)


class _QdqGraph:
    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.tensors: dict[str, NDArray[Any]] = {}

    def add(self, op: str, inputs: list[str], output: str, name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name, **attributes))
        return output

    def quantized(self, name: str, value: str, array: Array) -> str:
        """Q and DQ after `value`, with the range of `array`; the dequantized value's name."""
        low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
        scale = (high - low) / 65535
        encoding = self._encoding(name, np.asarray(scale, np.float32), np.asarray(round(-low / scale), np.uint16))
        quantized = self.add("QuantizeLinear", [value, *encoding], f"{name}_q", f"{name}_quantize")
        return self.add("DequantizeLinear", [quantized, *encoding], f"{name}_dq", f"{name}_dequantize")

    def weight(self, name: str, weight: Array, scheme: Scheme) -> str:
        """DQ of a weight that is quantized symmetrically around zero; the dequantized value's name."""
        largest = np.abs(weight).max(axis=0 if scheme.per_channel else None)
        scales = np.asarray(largest / 127, np.float32)
        dtype, zero = (np.int8, 0) if scheme.signed else (np.uint8, 128)
        self.tensors[f"{name}_q"] = (np.round(weight / scales) + zero).astype(dtype)
        encoding = self._encoding(name, scales, np.full(scales.shape, zero, dtype))
        axis = {"axis": 1} if scheme.per_channel else {}
        return self.add("DequantizeLinear", [f"{name}_q", *encoding], name, f"{name}_dequantize", **axis)

    def _encoding(self, name: str, scale: NDArray[Any], zero_point: NDArray[Any]) -> list[str]:
        self.tensors |= {f"{name}_scale": scale, f"{name}_zero_point": zero_point}
        return [f"{name}_scale", f"{name}_zero_point"]


def _weights() -> list[Array]:
    generator = np.random.default_rng(0)
    # Columns of different sizes, so that a scale per channel is not the scale of the tensor.
    columns = np.geomspace(0.02, 0.5, WIDTH)
    return [(generator.normal(size=(WIDTH, WIDTH)) * columns).astype(np.float32) for _ in range(LAYERS)]


def _save(folder: Path, nodes: list[NodeProto], tensors: Mapping[str, NDArray[Any]], seq: int | str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, seq, WIDTH]) for name in ("x", "y"))
    with BlobWriter(folder / "weights.bin") as blob:
        initializers = [blob.tensor(name, array) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "tiny", [x], [y], initializers)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save_graph(model, folder / "model.onnx")
    return folder / "model.onnx"
