"""Says for each operator what to do about a node that QNN leaves to the CPU.

Each form named here was compiled with onnxruntime-qnn 2.7 and is taken whole; the tests compile it again.
"""

from __future__ import annotations

from collections.abc import Mapping

HINTS: Mapping[str, str] = {
    "Acosh": "write log(x + sqrt(x * x - 1))",
    "Asinh": "write sign(x) * log(|x| + sqrt(x * x + 1))",
    "Celu": "write alpha * elu(x / alpha)",
    "Cosh": "write (exp(x) + exp(-x)) / 2",
    "Einsum": "write it with Transpose, Reshape and MatMul; QNN takes few equations",
    "Erf": "use it inside of Gelu only, which QNN takes as one operator",
    "GlobalLpPool": "write ReduceL2 over the length axes",
    "Hardmax": "return the scores, and take the largest outside of the model",
    "IsInf": "compare |x| with a large number",
    "LRN": "keep it in float: overrides: [{ops: [LRN], precision: fp16}]",
    "Mod": "write x - y * floor(x / y), and with fmod that of |x| and |y|, times sign(x)",
    "OneHot": "look the rows of an identity matrix up with Gather",
    "ReduceL1": "write ReduceSum of Abs",
    "ReduceLogSum": "write Log of ReduceSum",
    "ReduceLogSumExp": "write m + Log of ReduceSum of Exp of (x - m), where m is ReduceMax",
    "ReduceProd": "write Exp of ReduceSum of Log for positive values, or Mul of slices",
    "ReduceSumSquare": "write ReduceSum of x * x",
    "Shrink": "write x - clip(x, -lambd, lambd)",
    "Sinh": "write (exp(x) - exp(-x)) / 2",
    "Softsign": "write x / (1 + |x|)",
    "Trilu": "multiply by a constant of zeros and ones, or select with Where and a constant mask",
}
NO_OPERATOR = "are not supported by QNN EP"
"""Part of what the EP says of an operator type that QNN lacks in every precision."""

_OTHERWISE = "export the model with other operators in its place"
_TYPES = (
    "give what it reads or makes another type: HTP has float16 and float32, uint8, integers of 32 bits, and booleans"
)
_BY_REASON: Mapping[str, str] = {
    "consumes dynamic": "give the node constants where it has computed inputs",
    "rank": "reshape around it: QNN has tensors of 5 dims at most, and many of its operators take 4",
    "data type": _TYPES,
    "create cast": _TYPES,
    "datatype": "give it another type: HTP has no float64, and integers of 64 bits only at the graph's edge",
}


def of(op: str, reason: str) -> str:
    """What to do about a node of type `op` that QNN did not take, for the `reason` it gave."""
    if op in ("QuantizeLinear", "DequantizeLinear"):
        return "the conversions around such a node stay on the CPU with it"
    by_reason = next((hint for words, hint in _BY_REASON.items() if words in reason.lower()), _OTHERWISE)
    return f"{op}: {HINTS.get(op, by_reason)}"
