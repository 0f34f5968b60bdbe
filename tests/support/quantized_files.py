"""Files that onnxruntime's tools quantize: small models, and how each is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from pipeline.graph.shapes.normal_form import name_nodes
from tests.support.sources import model, numbers

CONSTANTS: Mapping[str, NDArray[Any]] = {
    "kernel": numbers(8, 3, 3, 3) / 4, "narrow": numbers(8, 8, 1, 1) / 3, "b": numbers(8), "w": numbers(8, 5) / 3,
    "c": numbers(5), "half": np.array(0.5, np.float32), "table": numbers(20, 16), "w16": numbers(16, 16) / 4,
    "two": np.array([1, -1, 2, 8]), "b16": numbers(16), "lw": numbers(1, 32, 16) / 4, "lr": numbers(1, 32, 8) / 3,
    "lb": numbers(1, 64),
}  # fmt: skip
PICTURES = """g (float[1,3,12,12] x) => (float[1,5] y) {
    a = Conv <kernel_shape = [3, 3]> (x, kernel, b) r = Relu (a) n = Conv <kernel_shape = [1, 1]> (r, narrow)
    s = Sigmoid (n) m = Mul (r, s) d = Add (m, n) l = LeakyRelu <alpha = 0.1> (d)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (l) q = AveragePool <kernel_shape = [2, 2]> (p)
    e = Concat <axis = 1> (q, q) f = GlobalAveragePool (e) t = Flatten (f)
    u, v = Split <axis = 1> (t) h = Add (u, v) y = Gemm (h, w, c) }"""
WORDS = """g (int64[1,n] ids) => (float[1,n,16] y) {
    e = Gather (table, ids) k = MatMul (e, w16) a = Add (k, b16) r = Relu (a) l = MatMul (r, w16)
    s = Softmax (l) y = MatMul (s, w16) }"""
STATES = """g (float[6,1,16] x) => (float[6,1,1,8] y) { y = LSTM <hidden_size = 8> (x, lw, lr, lb) }"""


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """A few pictures for onnxruntime's calibration."""

    def __init__(self) -> None:
        self.left = [{"x": numbers(1, 3, 12, 12)} for _ in range(8)]

    def get_next(self) -> Any:
        """The next, or None."""
        return self.left.pop() if self.left else None


def static(source: Path, made: Path, form: QuantFormat, **more: Any) -> None:
    quantize_static(source, made, Samples(), quant_format=form, **more)


def dynamic(source: Path, made: Path, **more: Any) -> None:
    quantize_dynamic(source, made, **more)


UINT8 = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
INT8 = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
UINT16 = {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8}
CASES: dict[str, tuple[str, Callable[[Path, Path], None], float]] = {
    "QDQ": (PICTURES, lambda a, b: static(a, b, QuantFormat.QDQ, **UINT8), 25),
    "QDQ, int8, a scale for each channel": (
        PICTURES, lambda a, b: static(a, b, QuantFormat.QDQ, per_channel=True, **INT8), 25,
    ),
    "QDQ, uint16": (PICTURES, lambda a, b: static(a, b, QuantFormat.QDQ, **UINT16), 60),
    "operators of quantized values": (PICTURES, lambda a, b: static(a, b, QuantFormat.QOperator, **UINT8), 20),
    "ranges that are found at run time": (WORDS, lambda a, b: dynamic(a, b, weight_type=QuantType.QInt8), 30),
    "the same, a scale for each channel": (WORDS, lambda a, b: dynamic(a, b, per_channel=True), 30),
    "a convolution": (PICTURES, lambda a, b: dynamic(a, b, weight_type=QuantType.QUInt8), 25),
    "an LSTM": (STATES, lambda a, b: dynamic(a, b, weight_type=QuantType.QInt8), 30),
}  # fmt: skip


def float_source(text: str) -> ModelProto:
    """The model of a text, whose nodes have names: onnxruntime's quantizer mixes up those without."""
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source = model(text, {name: each for name, each in CONSTANTS.items() if name in words}, opset=13)
    name_nodes(source.graph)
    return source


def quantized(folder: Path, case: str) -> tuple[ModelProto, ModelProto]:
    """The float model of a case, and the file that onnxruntime makes of it."""
    text, quantize, _ = CASES[case]
    source = float_source(text)
    onnx.save(source, folder / "float.onnx")
    quantize(folder / "float.onnx", folder / "quantized.onnx")
    return source, onnx.load(folder / "quantized.onnx")


INPUTS: Mapping[str, NDArray[Any]] = {
    PICTURES: numbers(1, 3, 12, 12), STATES: numbers(6, 1, 16), WORDS: np.arange(7).reshape(1, 7),
}  # fmt: skip


BIASED: Mapping[str, NDArray[Any]] = {
    "wq": np.random.default_rng(0).integers(0, 256, (8, 3, 3, 3)).astype(np.uint8), "wz": np.array(130, np.uint8),
    "ws": np.array(0.2, np.float32), "b": numbers(8), "dims": np.array([1, 8, 1, 1]), "z": np.array(128, np.uint8),
    "s": np.array(0.03, np.float32), "n": np.arange(8, dtype=np.float32) * 9,
}  # fmt: skip
BIASED_CONV = """g (float[1,3,12,12] x) => (float[1,8,10,10] y) {{
    {start} p = ConvInteger <kernel_shape = [3, 3]> (q, wq, z, wz) u = Mul (s, ws) {bias} r = Reshape (i, dims)
    a = Add (p, r) c = Cast <to = 1> (a) y = Mul (c, u) }}"""
FLOAT_CONV = "g (float[1,3,12,12] x) => (float[1,8,10,10] y) { y = Conv <kernel_shape = [3, 3]> (x, w) }"
RUN_TIME, FIXED = "q, s, z = DynamicQuantizeLinear (x)", "q = QuantizeLinear (x, s, z)"
ROUNDED, WHOLE = "d = Div (b, u) f = Floor (d) i = Cast <to = 6> (f)", "i = Cast <to = 6> (n)"
