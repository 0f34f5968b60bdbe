"""Cases of operators behind those that HTP may compute them with: it makes one of a product and its activation, say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from tests.conformance.cases import OPSET, Case
from tests.conformance.edges import Floats
from tests.conformance.formats import FORMATS

_IR_VERSION = 10
_Node = tuple[str, Sequence[str], Mapping[str, Any]]
"""An operator, its inputs, its attributes. `x` is what the model is given, `h` what the node before made, other names
are constants; the last node makes `y`."""

_random = np.random.default_rng(11)


def _weight(*shape: int) -> Floats:
    return np.asarray(_random.normal(size=shape) * 0.3, np.float32)


_IMAGE, _ROWS = (1, 8, 6, 6), (1, 12, 8)
_GIVEN: Mapping[str, Any] = {
    "kernel": _weight(8, 8, 3, 3), "point": _weight(8, 8, 1, 1), "depth": _weight(8, 1, 3, 3), "bias": _weight(8),
    "up": _weight(8, 8, 2, 2), "square": _weight(8, 8), "row": _weight(8), "channel": _weight(8, 1, 1),
    "factor": np.float32(0.35), "slope": np.abs(_weight(8, 1, 1)), "zero": np.float32(0), "six": np.float32(6),
    "two": np.float32(2), "half": np.float32(0.5), "one": np.float32(1), "root": np.float32(2**-0.5),
    "three": np.float32(3), "gamma": np.abs(_weight(8)) + np.float32(0.5), "variance": np.abs(_weight(8)) + 1,
    "mask": np.arange(8) < 6, "filler": np.float32(-100), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "zeros": np.zeros(8, np.float32), "ones": np.ones(8, np.float32), "third": np.array(2),
    "slab": 9 * _weight(1, 4, 12), "dims": np.array([1, 8, 12]), "ends": np.array([0, 1, 0, 0, 0, 0]),
    "low": np.float32(-0.3), "high": np.float32(0.2),
    "last": np.array([-1]), "tokens": np.array([0, 6, 16]), "turned": np.array([1, 8, 12]),
}  # fmt: skip
_CONSTANTS: Mapping[str, NDArray[Any]] = {name: np.asarray(values) for name, values in _GIVEN.items()}

_MAKERS: Mapping[str, tuple[tuple[int, ...], _Node]] = {
    "Conv": (_IMAGE, ("Conv", ("x", "kernel", "bias"), {"pads": [1, 1, 1, 1]})),
    "Conv of 1": (_IMAGE, ("Conv", ("x", "point", "bias"), {})),
    "Conv in depth": (_IMAGE, ("Conv", ("x", "depth"), {"group": 8})),
    "ConvTranspose": (_IMAGE, ("ConvTranspose", ("x", "up", "bias"), {"strides": [2, 2]})),
    "MatMul": (_ROWS, ("MatMul", ("x", "square"), {})),
    "Gemm": ((12, 8), ("Gemm", ("x", "square", "bias"), {})),
    "Add": (_ROWS, ("Add", ("x", "row"), {})),
    "Sub": (_ROWS, ("Sub", ("x", "row"), {})),
    "Mul": (_ROWS, ("Mul", ("x", "factor"), {})),
    "Div": (_ROWS, ("Div", ("x", "three"), {})),
    "BatchNormalization": (_IMAGE, ("BatchNormalization", ("x", "gamma", "bias", "row", "variance"), {})),
    "LayerNormalization": (_ROWS, ("LayerNormalization", ("x", "gamma", "bias"), {})),
    "Transpose": (_ROWS, ("Transpose", ("x",), {"perm": [0, 2, 1]})),
    "ReduceMean": (_ROWS, ("ReduceMean", ("x", "last"), {})),
}
_BARE: _Node = ("ConvTranspose", ("x", "up"), {"strides": [2, 2]})
_READERS: Mapping[str, _Node] = {
    "Relu": ("Relu", ("h",), {}), "Sigmoid": ("Sigmoid", ("h",), {}), "Tanh": ("Tanh", ("h",), {}),
    "HardSwish": ("HardSwish", ("h",), {}), "HardSigmoid": ("HardSigmoid", ("h",), {}),
    "Clip": ("Clip", ("h", "zero", "six"), {}), "LeakyRelu": ("LeakyRelu", ("h",), {"alpha": 0.1}),
    "Elu": ("Elu", ("h",), {}), "Gelu": ("Gelu", ("h",), {}), "Softmax": ("Softmax", ("h",), {}),
    "LogSoftmax": ("LogSoftmax", ("h",), {}), "Exp": ("Exp", ("h",), {}), "Abs": ("Abs", ("h",), {}),
    "Softplus": ("Softplus", ("h",), {}), "Neg": ("Neg", ("h",), {}), "Mul": ("Mul", ("h", "factor"), {}),
    "Add": ("Add", ("h", "half"), {}), "Sin": ("Sin", ("h",), {}), "ReduceMax": ("ReduceMax", ("h", "last"), {}),
    "ReduceMean": ("ReduceMean", ("h", "last"), {}), "Round": ("Round", ("h",), {}),
}  # fmt: skip
_LONGER: Mapping[str, tuple[tuple[int, ...], Sequence[_Node]]] = {
    "MatMul+Add+Gelu": (_ROWS, [_MAKERS["MatMul"][1], ("Add", ("h", "row"), {}), _READERS["Gelu"]]),
    "MatMul+Add+Relu": (_ROWS, [_MAKERS["MatMul"][1], ("Add", ("h", "row"), {}), _READERS["Relu"]]),
    "MatMul+Add+Tanh": (_ROWS, [_MAKERS["MatMul"][1], ("Add", ("h", "row"), {}), _READERS["Tanh"]]),
    "MatMul+Mul+Softmax": (_ROWS, [_MAKERS["MatMul"][1], _READERS["Mul"], _READERS["Softmax"]]),
    "Mul+Where+Softmax": (
        _ROWS, [_MAKERS["Mul"][1], ("Where", ("mask", "h", "filler"), {}), _READERS["Softmax"]]
    ),
    "Conv+Add+Relu": (_IMAGE, [_MAKERS["Conv"][1], ("Add", ("h", "x"), {}), _READERS["Relu"]]),
    "Conv+Mul+Add": (_IMAGE, [_MAKERS["Conv"][1], ("Mul", ("h", "channel"), {}), ("Add", ("h", "channel"), {})]),
    "Conv+PRelu": (_IMAGE, [_MAKERS["Conv"][1], ("PRelu", ("h", "slope"), {})]),
    "Conv+BatchNormalization+Relu": (
        _IMAGE,
        [_MAKERS["Conv"][1], ("BatchNormalization", ("h", "gamma", "bias", "row", "variance"), {}), _READERS["Relu"]],
    ),
    "Conv+MaxPool": (_IMAGE, [_MAKERS["Conv"][1], ("MaxPool", ("h",), {"kernel_shape": [2, 2], "strides": [2, 2]})]),
    "Pad+Conv": (_IMAGE, [("Pad", ("x", "pads"), {}), ("Conv", ("h", "kernel", "bias"), {})]),
    "Relu+Conv": (_IMAGE, [("Relu", ("x",), {}), ("Conv", ("h", "kernel", "bias"), {})]),
    "Add+LayerNormalization": (_ROWS, [_MAKERS["Add"][1], ("LayerNormalization", ("h", "gamma", "bias"), {})]),
    "Relu+Add+Clip": (_ROWS, [("Relu", ("x",), {}), _READERS["Add"], _READERS["Clip"]]),
    "Transpose+MatMul": (_ROWS, [("Transpose", ("x",), {"perm": [0, 2, 1]}), ("MatMul", ("x", "h"), {})]),
    "Reshape+Transpose": (_ROWS, [("Reshape", ("x", "tokens"), {}), ("Transpose", ("h",), {"perm": [0, 2, 1]})]),
    "Transpose+Reshape": (_ROWS, [_MAKERS["Transpose"][1], ("Reshape", ("h", "tokens"), {})]),
    "Transpose+Concat": (_ROWS, [_MAKERS["Transpose"][1], ("Concat", ("h", "slab"), {"axis": 1})]),
    "Reshape+Concat": (_ROWS, [("Reshape", ("x", "dims"), {}), ("Concat", ("slab", "h"), {"axis": 1})]),
    "Transpose+Pad": (_ROWS, [_MAKERS["Transpose"][1], ("Pad", ("h", "ends", "six"), {})]),
    "ConvTranspose+Add of channels": (_IMAGE, [_BARE, ("Add", ("h", "channel"), {})]),
    "ConvTranspose+Relu+Add of channels": (_IMAGE, [_BARE, ("Relu", ("h",), {}), ("Add", ("h", "channel"), {})]),
    "Mul+Sqrt+Div": (_ROWS, [("Mul", ("x", "x"), {}), ("Sqrt", ("h",), {}), ("Div", ("one", "h"), {})]),
    "Sigmoid+Log": (_ROWS, [("Sigmoid", ("x",), {}), ("Log", ("h",), {})]),
    "Softmax+Log": (_ROWS, [("Softmax", ("x",), {}), ("Log", ("h",), {})]),
    "Exp+ReduceSum+Log": (_ROWS, [("Exp", ("x",), {}), ("ReduceSum", ("h", "last"), {}), ("Log", ("h",), {})]),
    "Sigmoid+Mul": (_ROWS, [("Sigmoid", ("x",), {}), ("Mul", ("x", "h"), {})]),
    "Tanh+Mul": (_ROWS, [("Tanh", ("x",), {}), ("Mul", ("x", "h"), {})]),
    "Sub+Mul+ReduceMean": (_ROWS, [_MAKERS["Sub"][1], ("Mul", ("h", "h"), {}), _READERS["ReduceMean"]]),
    "Mul+Mul": (_ROWS, [_MAKERS["Mul"][1], ("Mul", ("h", "three"), {})]),
    "Mul+Add": (_ROWS, [("Mul", ("x", "gamma"), {}), ("Add", ("h", "row"), {})]),
    "Neg+Exp": (_ROWS, [("Neg", ("x",), {}), _READERS["Exp"]]),
    "Abs+Add+Div": (_ROWS, [("Abs", ("x",), {}), ("Add", ("h", "one"), {}), ("Div", ("x", "h"), {})]),
    "Greater+Where": (_ROWS, [("Greater", ("x", "half"), {}), ("Where", ("h", "x", "zero"), {})]),
    "Max+Log": (_ROWS, [("Max", ("x", "half"), {}), ("Log", ("h",), {})]),
    "Add+Relu of zeros": (_ROWS, [("Add", ("x", "zeros"), {}), _READERS["Relu"]]),
    "Sub+Relu of zeros": (_ROWS, [("Sub", ("x", "zeros"), {}), _READERS["Relu"]]),
    "Mul+Relu of ones": (_ROWS, [("Mul", ("x", "ones"), {}), _READERS["Relu"]]),
    "Div+Relu of ones": (_ROWS, [("Div", ("x", "one"), {}), _READERS["Relu"]]),
    "MatMul+Add+Relu of zeros": (_ROWS, [_MAKERS["MatMul"][1], ("Add", ("h", "zeros"), {}), _READERS["Relu"]]),
    "Clip behind CumSum": (_ROWS, [("CumSum", ("x", "third"), {}), ("Clip", ("h", "low", "high"), {})]),
    "Clip behind Atan": (_ROWS, [("Atan", ("x",), {}), ("Clip", ("h", "low", "high"), {})]),
    "Clip behind LogSoftmax": (_ROWS, [("LogSoftmax", ("x",), {}), ("Clip", ("h", "low", "high"), {})]),
    "Clip+Div": (_ROWS, [("Clip", ("x", "half", "six"), {}), ("Div", ("one", "h"), {})]),
}  # fmt: skip

_SPOILS = ("ConvTranspose", "HardSigmoid")
"""In float16 it spoils other models of its batch; tests/graph/rewrites/test_decompose_hard_sigmoid.py has it apart."""

SCALES = {"ordinary": 1.0, "loud": 6.0, "quiet": 0.02}
"""Edge -> what normal numbers are multiplied with."""


def cases() -> Iterator[Case]:
    """All of them."""
    for number_format in FORMATS:
        for edge, scale in SCALES.items():
            for maker, (dims, first) in _MAKERS.items():
                for name, reader in _READERS.items():
                    if (maker, name) == _SPOILS:
                        continue
                    yield _case(number_format, edge, maker, scale, dims, [first, reader])
            for name, (dims, nodes) in _LONGER.items():
                yield _case(number_format, edge, name, scale, dims, nodes)


def _case(
    number_format: str, edge: str, variant: str, scale: float, dims: Sequence[int], nodes: Sequence[_Node]
) -> Case:
    x = np.asarray(np.random.default_rng(5).normal(size=dims) * scale, np.float32)
    operator = "+".join(operator for operator, _, _ in nodes)
    return Case(operator, number_format, edge, variant, _model(operator, dims, nodes), {"x": x})


def _model(name: str, dims: Sequence[int], nodes: Sequence[_Node]) -> ModelProto:
    used = [each for _, inputs, _ in nodes for each in inputs if each in _CONSTANTS]
    made = [*(f"h{at}" for at in range(len(nodes) - 1)), "y"]
    graph = helper.make_graph(
        [
            helper.make_node(
                operator, [made[at - 1] if each == "h" else each for each in inputs], [made[at]], f"{operator}_{at}",
                **attributes,
            )
            for at, (operator, inputs, attributes) in enumerate(nodes)
        ],
        name,
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(_CONSTANTS[each], each) for each in dict.fromkeys(used)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
    typed: ModelProto = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return typed
