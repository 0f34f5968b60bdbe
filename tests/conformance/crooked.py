"""QDQ models as the quantizer would make them, had it not been told what HTP does: canaries for what it avoids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, numpy_helper

from pipeline.graph.ir.index import prune
from pipeline.graph.quantization.calibration.ranges import Range
from tests.conformance.cases import OPSET, Arrays, Case, single
from tests.conformance.formats import in_format
from tests.support.graphs import graph

_RAMP = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
_QUIET = 2.0**-6


def scattered() -> Case:
    """A ScatterElements that reads its inputs in encodings of their own."""
    model, feeds = single("ScatterElements", [_RAMP, np.array([[3, 0], [0, 2], [3, 1]]), -_RAMP[:, :2].copy()], axis=1)

    def bend(quantized: ModelProto) -> None:
        node = next(node for node in quantized.graph.node if node.op_type == "ScatterElements")
        for position in (0, 2):
            node.input[position] = f"x{position}_DequantizeLinear_Output"

    return _bent("ScatterElements", model, feeds, bend)


def joined_input() -> Case:
    """A Concat that reads an input of the model, transposed, in the encoding that it came in."""
    text = "g (float[3,4] x) => (float[6,3] y) { t = Transpose <perm = [1, 0]> (x) y = Concat <axis = 0> (t, wide) }"
    model = graph(text, {"wide": 4 * _RAMP[:2, :3]}, opset=OPSET)

    def bend(quantized: ModelProto) -> None:
        node = next(node for node in quantized.graph.node if node.op_type == "Concat")
        node.input[0] = "t_DequantizeLinear_Output"

    return _bent("Transpose+Concat", model, {"x": _RAMP}, bend)


def quiet_channels() -> Case:
    """A MatMul of which every fourth channel has a weight scale below what is rescaled right."""
    random = np.random.default_rng(0)
    quiet = np.where(np.arange(16) % 4 == 0, 2.0**-22, 1)
    weight = (random.normal(size=(32, 16)) * quiet).astype(np.float32)
    model, feeds = single("MatMul", [random.normal(size=(8, 32)).astype(np.float32), weight], constants=(1,))

    def bend(quantized: ModelProto) -> None:
        scale = next(tensor for tensor in quantized.graph.initializer if tensor.name == "x1_scale")
        scales = numpy_helper.to_array(scale) * np.where(quiet < 1, _QUIET, 1)
        scale.CopyFrom(numpy_helper.from_array(scales.astype(np.float32), scale.name))

    return _bent("MatMul", model, feeds, bend)


def clamped_sum() -> Case:
    """A CumSum whose encoding is to end where the Clip behind it does."""
    model, feeds = single("CumSum", [_RAMP - 6, np.array(1)], constants=(1,))
    quantized = in_format(model, feeds, "u16", {"y0": Range(0.0, 1.0)})
    return Case("CumSum", "u16", "canary", "behind", quantized, feeds)


def clamped_zeros() -> Case:
    """A sum with zeros whose encoding is to end where the Relu behind it does."""
    model, feeds = single("Add", [_RAMP - 6, np.zeros(4, np.float32)], constants=(1,))
    quantized = in_format(model, feeds, "u16", {"y0": Range(0.0, 6.0)})
    return Case("Add", "u16", "canary", "of zeros", quantized, feeds)


def _bent(operator: str, model: ModelProto, feeds: Arrays, bend: Callable[[ModelProto], None]) -> Case:
    quantized = in_format(model, feeds, "u16", {})
    bend(quantized)
    prune(quantized)
    return Case(operator, "u16", "canary", "", quantized, feeds)
