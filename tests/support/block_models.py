"""A product whose weight has scales in blocks."""

from __future__ import annotations

import numpy as np
import onnx
from ml_dtypes import uint4
from numpy.typing import ArrayLike
from onnx import ModelProto, TensorProto, helper, numpy_helper


def in_blocks(kind: type, zero_point: int) -> ModelProto:
    """A MatMul of 16 bit activations with a weight in blocks of 32."""
    numbers = np.random.default_rng(1)
    low = 0 if kind is uint4 else -8
    constants: dict[str, ArrayLike] = {
        "w": numbers.integers(low, low + 16, (64, 32)).astype(kind),
        "s": numbers.uniform(0.01, 0.05, (2, 32)).astype(np.float32), "z": np.full((2, 32), zero_point).astype(kind),
        "xs": np.float32(6 / 65535), "ys": np.float32(20 / 65535), "middle": np.uint16(32768),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["weight"], "weights", axis=0, block_size=32),
        helper.make_node("QuantizeLinear", ["x", "xs", "middle"], ["xq"], "in"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "middle"], ["xd"], "given"),
        helper.make_node("MatMul", ["xd", "weight"], ["m"], "product"),
        helper.make_node("QuantizeLinear", ["m", "ys", "middle"], ["yq"], "made"),
        helper.make_node("DequantizeLinear", ["yq", "ys", "middle"], ["y"], "out"),
    ]
    graph = helper.make_graph(
        nodes, "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 32])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    inferred: ModelProto = onnx.shape_inference.infer_shapes(model)
    return inferred
