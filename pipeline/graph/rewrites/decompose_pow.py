"""Write powers with a constant exponent as products, quotients and roots, and those of a constant with Exp.

Before, and after for each exponent::

    Pow(x, 2)               Mul(x, x)
    Pow(x, 3), to 8         products of squares
    Pow(x, 0)               Add(Mul(x, 0), 1)
    Pow(x, 1)               Identity(x)
    Pow(x, 0.5)             Sqrt(x)
    Pow(x, 1.5)             Mul(x, Sqrt(x))
    Pow(x, -n)              Div(1, the form for n)
    Pow(x, any other)       Pow(Abs(x), exponent), unless the exponent is whole
    Pow(2, x)               Exp(Mul(x, log(2))), and so of any positive number
    Pow(x, whole numbers)   Pow(x, Cast(whole numbers)), x being floats

HTP (2.51, emulated) computes a float16 Pow wrongly where x is -0, or a negative number that float16 rounds to it: x to
the 2 is -4, to the 4 is 16, to the 0.5 is 131008. In 16 bits it is right and coarse (SQNR of the context against the
QDQ model, uint16, x in 0.1 to 4)::

    exponent   Pow        product, quotient or root
    2          105.7 dB   105.7 dB
    3          63.4       100.2
    4          63.8       98.4
    -1         43.5       71.8
    -0.5       46.5       91.4
    0.5        64.5       66.9

Powers of a constant are wrong in 8 and 16 bits, as if base and exponent changed places (2 to the x, uint16: -8.1 dB,
by Exp 86.9; 10 to the x: -12.6 and 81.0).

QNN EP 2.7 leaves powers of integers, and powers by integers, to the CPU. Products of int32 and int64 are exact, so that
their exponent may be up to 31.

A power that is no number (a root of something negative) may become one. The result keeps its name. Left alone:
other types; exponents that differ between elements, or are whole and beyond 8, and the negative ones of integers;
computed exponents of a base that is computed, or not one positive number.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_MOST_FACTORS = 8
"""More squarings than three in a row round more than Pow does."""
_MOST_OF_INTEGERS = 31
"""What 2 to more than that is, int32 has not."""
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Pow whose exponent or base is one number, or whose exponents are integers."""
    index = added.index
    exponent, base = _exponent(index, node), _base(index, node)
    if exponent is not None:
        _Power(added, node, element_type(index, node.output[0])).write(exponent)
    elif base is not None:
        factor = added.number(f"{node.output[0]}_log", np.log(base))
        scaled = added.op("Mul", node.input[1], factor, out=f"{node.output[0]}_scaled")
        added.replace("Exp", scaled, out=node.output[0])
    elif is_op(node, "Pow") and is_float32(index, node.input[0]) and element_type(index, node.input[1]) in WHOLE:
        by = added.op("Cast", node.input[1], out=f"{node.output[0]}_exponent", to=TensorProto.FLOAT)
        added.replace("Pow", node.input[0], by, out=node.output[0])
    else:
        return False
    return True


def _base(index: GraphIndex, node: NodeProto) -> float | None:
    """The constant that a computed exponent is put on."""
    if not is_op(node, "Pow") or node.input[1] not in index.types or node.input[1] in index.initializers:
        return None
    exponent, result = index.types[node.input[1]], index.types[node.output[0]]
    base = index.scalar(node.input[0]) if node.input[0] in index.initializers else None
    kinds = {exponent.tensor_type.elem_type, result.tensor_type.elem_type}
    if base is None or not 0 < base < np.inf or kinds != {TensorProto.FLOAT} or shape_of(exponent) != shape_of(result):
        return None
    return base


def _exponent(index: GraphIndex, node: NodeProto) -> float | None:
    """The exponent of a power that is to be replaced."""
    if not is_op(node, "Pow") or node.input[0] not in index.types or node.input[0] in index.initializers:
        return None
    base, result = index.types[node.input[0]], index.types[node.output[0]]
    exponent = index.scalar(node.input[1])
    if exponent is None or not np.isfinite(exponent) or shape_of(base) != shape_of(result):
        return None
    kind = base.tensor_type.elem_type
    if kind in _INTEGERS:
        return exponent if exponent.is_integer() and 0 <= exponent <= _MOST_OF_INTEGERS else None
    if kind != TensorProto.FLOAT:
        return None
    if abs(exponent) <= _MOST_FACTORS and exponent.is_integer():
        return exponent
    positive = index.maker(node.input[0], "Abs") is not None
    return None if exponent.is_integer() or (positive and abs(exponent) not in (0.5, 1.5)) else exponent


class _Power:
    """The nodes that take the place of one power."""

    def __init__(self, added: Additions, node: NodeProto, kind: int) -> None:
        self._added = added
        self._dtype = helper.tensor_dtype_to_np_dtype(kind)
        self._node = node
        self._base = str(node.input[0])
        self._result = str(node.output[0])

    def write(self, exponent: float) -> None:
        """Add the nodes; the last makes the result under its name."""
        size = abs(exponent)
        if size == 0:
            zeros = self._added.op("Mul", self._base, self._number("zero", 0), out=f"{self._result}_zeros")
            self._added.replace("Add", zeros, self._number("one", 1), out=self._result)
        elif not size.is_integer() and size not in (0.5, 1.5):
            positive = self._added.op("Abs", self._base, out=f"{self._result}_size")
            self._added.replace("Pow", positive, self._node.input[1], out=self._result)
        elif exponent < 0:
            self._added.replace("Div", self._number("one", 1), self._made(size), out=self._result)
        elif size == 1:
            self._added.replace("Identity", self._base, out=self._result)
        elif size == 0.5:
            self._added.replace("Sqrt", self._base, out=self._result)
        else:
            self._added.replace("Mul", *self._factors(size), out=self._result)

    def _made(self, size: float) -> str:
        """The name of x to the `size`."""
        if size == 1:
            return self._base
        if size == 0.5:
            return self._added.op("Sqrt", self._base, out=f"{self._result}_root")
        return self._added.op("Mul", *self._factors(size), out=f"{self._result}_to_{size:g}".replace(".", "_"))

    def _factors(self, size: float) -> tuple[str, str]:
        """Two powers of x whose product is x to the `size`."""
        if size == 1.5:
            return self._base, self._made(0.5)
        if size % 2:
            return self._made(size - 1), self._base
        half = self._made(size / 2)
        return half, half

    def _number(self, name: str, value: float) -> str:
        return self._added.number(f"{self._result}_{name}", value, self._dtype)


AFTER = {
    "fuse_gelu": "it looks for the powers in an activation",
    "fuse_layer_norm": "it looks for the powers in a norm",
    "fuse_rms_norm": "it looks for the powers in a norm",
}
