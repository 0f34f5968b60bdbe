"""Files that the rung `reading` is tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.support.graphs import graph

NET = """g (float[1,rows,32] x) => (float[1,rows,16] y) {
    n = MatMul (x, w)
    b = Add (n, bias)
    r = Relu (b)
    l = LayerNormalization <axis = -1, epsilon = 0.5> (r, gamma)
    m = MatMul (l, v)
    s = Softmax <axis = -1> (m)
    t = MatMul (s, u)
    y = Add (t, m)
}"""


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net() -> ModelProto:
    constants: dict[str, NDArray[Any]] = {"w": numbers(32, 32) / 6, "bias": numbers(32) / 4, "gamma": numbers(32) ** 2}
    return graph(NET, {**constants, "v": numbers(32, 16, seed=1) / 5, "u": numbers(16, 16, seed=2)})


def of_mixed_signs(kind: str) -> ModelProto:
    """A convolution of int8 by uint8, which onnxruntime does not run; `kind` is the operator after it."""
    text = f"""<ir_version: 10, opset_import: ["" : 19, "com.microsoft" : 1]>
    g (float[1,4,6] x) => (float[1,4,6] y) {{
        q = QuantizeLinear (x, scale, zero)
        r = QLinearConv (q, scale, zero, weight, scale, weight_zero, scale, zero)
        s = {kind}
        y = DequantizeLinear (s, scale, zero)
    }}"""
    model: ModelProto = onnx.parser.parse_model(text)
    constants: dict[str, NDArray[Any]] = {
        "scale": np.array(0.05, np.float32),
        "zero": np.array(0, np.int8),
        "weight": np.random.default_rng(0).integers(0, 100, (4, 4, 1)).astype(np.uint8),
        "weight_zero": np.array(40, np.uint8),
    }
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model
