"""Operators that onnxruntime has in float32 alone, written out in those that it has in float64.

Shapes are fixed. What may still differ between processors is the order of sums and the last bits of ``exp``: some 1e-16
of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from pipeline.graph.ir.attributes import integer, real, text

_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_P = 0.3275911
"""Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 7.1.26: off by 1.5e-7, as float32 is."""


class DoubleNodes:
    """Nodes under construction in float64, with their constants; their values' names are all their own."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._count = 0

    def op(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add a node of one output, which is called `out` if that is given; returns the output's name."""
        made = out or self._name()
        self.nodes.append(helper.make_node(kind, list(inputs), [made], self._name(), **attributes))
        return made

    def number(self, value: float) -> str:
        """A constant of one number."""
        return self.constant(np.array(value))

    def vector(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.constant(np.array(values, np.int64))

    def constant(self, values: NDArray[Any]) -> str:
        """A constant."""
        made = self._name()
        self.constants[made] = values
        return made

    def _name(self) -> str:
        self._count += 1
        return f"double/{self._count}"


Shapes = Mapping[str, tuple[int, ...]]
Writer = Callable[[DoubleNodes, NodeProto, Sequence[str], str, Shapes], bool]
"""Writes a node out, given its inputs in float64, what its output is to be called, and the dims of the node's values.
False if it can't."""


def _erf_of(made: DoubleNodes, x: str, out: str = "") -> str:
    size = made.op("Abs", x)
    one = made.number(1.0)
    place = made.op("Reciprocal", made.op("Add", made.op("Mul", size, made.number(_ERF_P)), one))
    sum_ = made.number(0.0)
    for factor in _ERF:
        sum_ = made.op("Mul", made.op("Add", sum_, made.number(factor)), place)
    rest = made.op("Mul", sum_, made.op("Exp", made.op("Neg", made.op("Mul", size, size))))
    return made.op("Mul", made.op("Sign", x), made.op("Sub", one, rest), out=out)


def _erf(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    _erf_of(made, inputs[0], out)
    return True


def _gelu(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    x = inputs[0]
    if text(node, "approximate", "none") == "tanh":
        cube = made.op("Mul", made.op("Mul", made.op("Mul", x, x), x), made.number(0.044715))
        share = made.op("Tanh", made.op("Mul", made.op("Add", x, cube), made.number(math.sqrt(2 / math.pi))))
    else:
        share = _erf_of(made, made.op("Mul", x, made.number(math.sqrt(0.5))))
    half = made.op("Mul", x, made.number(0.5))
    made.op("Mul", half, made.op("Add", share, made.number(1.0)), out=out)
    return True


def _elu(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    below = made.op("Sub", made.op("Exp", made.op("Min", inputs[0], made.number(0.0))), made.number(1.0))
    scaled = made.op("Mul", below, made.number(real(node, "alpha", 1.0)))
    made.op("Add", made.op("Relu", inputs[0]), scaled, out=out)
    return True


def _softplus(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    small = made.op("Exp", made.op("Neg", made.op("Abs", inputs[0])))
    rest = made.op("Log", made.op("Add", small, made.number(1.0)))
    made.op("Add", made.op("Relu", inputs[0]), rest, out=out)
    return True


def _hard_sigmoid_of(made: DoubleNodes, x: str, alpha: float, beta: float, out: str = "") -> str:
    line = made.op("Add", made.op("Mul", x, made.number(alpha)), made.number(beta))
    return made.op("Clip", line, made.number(0.0), made.number(1.0), out=out)


def _hard_sigmoid(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    _hard_sigmoid_of(made, inputs[0], real(node, "alpha", 0.2), real(node, "beta", 0.5), out)
    return True


def _hard_swish(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    made.op("Mul", inputs[0], _hard_sigmoid_of(made, inputs[0], 1 / 6, 0.5), out=out)
    return True


def _rms_norm(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    dims = shapes[node.input[0]]
    axis = integer(node, "axis", -1) % len(dims)
    count = math.prod(dims[axis:])
    # A product, as ReduceMean is told its axes otherwise before opset 18, and onnxruntime's norm is in any.
    squares = made.op("Reshape", made.op("Mul", inputs[0], inputs[0]), made.vector(*dims[:axis], count))
    mean = made.op("MatMul", squares, made.constant(np.full((count, 1), 1 / count)))
    mean = made.op("Reshape", mean, made.vector(*dims[:axis], *(1 for _ in dims[axis:])))
    size = made.op("Sqrt", made.op("Add", mean, made.number(real(node, "epsilon", 1e-5))))
    made.op("Mul", made.op("Div", inputs[0], size), inputs[1], out=out)
    return True


FUNCTIONS: Mapping[str, Writer] = {
    "Elu": _elu,
    "Erf": _erf,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "Softplus": _softplus,
}
"""By operator, ONNX's own and onnxruntime's of the same name: what is made of each number alone, or of a row."""
