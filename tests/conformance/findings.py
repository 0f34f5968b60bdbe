"""What the sweep found: where HTP computes otherwise than ONNX says, on which condition, and what the project does.

A finding covers the cases of a sweep that its operators, formats and edges name. Its canary is the smallest model
that shows it; `tests/conformance/test_canaries.py` compiles all of them, and fails for those that a newer QNN computes
rightly.
"""

from __future__ import annotations

import numpy as np

from tests.conformance import joined
from tests.conformance.crooked import quiet_channels, scattered
from tests.conformance.edges import ORDINARY
from tests.conformance.finding import Finding, canary
from tests.conformance.findings_of_rescaling import OF_RESCALING
from tests.conformance.formats import FP16
from tests.conformance.sweep import Outcome
from tests.conformance.tensors import of_rank

_ANGLES = [[0.5, 1.0, 128.0, 200.0, 255.0, 300.0, 2000.0, 40000.0]]
_LOUD = [np.random.default_rng(0).uniform(-200, 200, (4, 16)).astype(np.float32).tolist()]
_SIGNED = np.arange(-95, 97, 3, dtype=np.int32)[None]
_RAMP = np.linspace(-3, 3, 64, dtype=np.float32)[None].tolist()
_TIES = [[1.0, 3.0, 3.0, 3.0, 2.0, 3.0, 0.0, 1.0]]
_IMAGE = np.random.default_rng(3).normal(size=(8, 8, 10)).astype(np.float32)
_INTEGERS = ("int32 *", "int64 *")
_HUGE = ("fp16 limits/*", "beyond fp16/*", "thousands/*")
_QUANTIZED = ("u16", "u8")

FINDINGS = (
    Finding(
        "pow-of-minus-zero", ("Pow",), (FP16,), ("rounds to ±0/to *", "±0/to *", "subnormal/to *"),
        "-4 for (-0)²; 16 for (-0)⁴; 131008 for its root; 0 for 0⁰", "0; 1", "x is -0, or rounds to it: above -3e-8",
        "rewrite decompose_pow", canary("Pow", FP16, [[[-0.0, -1e-9, 2.0, 1.0]], 2.0], constants=(1,)),
    ),
    Finding(
        "pow-coarse", ("Pow",), _QUANTIZED, ("*/to *",),
        "43 to 64 dB; 0 for a negative x to the 1", "80 to 106 dB", "any range; worst for negative exponents",
        "rewrite decompose_pow",
        canary("Pow", "u16", [np.linspace(0.01, 4, 64, dtype=np.float32)[None], -1.0], constants=(1,)),
    ),
    Finding(
        "pow-of-a-constant", ("Pow",), _QUANTIZED, ("rank/*, turned", "node test/*"),
        "base and exponent change places: the largest for the smallest x, then 0", "2ˣ", "the base is a constant",
        "rewrite decompose_pow", canary("Pow", "u16", [2.0, _RAMP], constants=(0,)),
    ),
    Finding(
        "pow-beyond-range", ("Pow",), (FP16,), _HUGE,
        "0 for 40000⁹", "more than float16 holds", "result beyond 131008", "forecast fp16_overflow",
        canary("Pow", FP16, [[[40000.0, 2.0, 3.0]], 9.0], constants=(1,)),
    ),
    Finding(
        "exp-far-below", ("Exp",), (FP16,), ("hundreds/*", *_HUGE),
        "±131008 for Exp(-90), Exp(-300), 16 for Exp(-706)", "0", "x below -88", "rewrite bound_exp",
        canary("Exp", FP16, [[[-90.0, -300.0, 1.0, 0.0]]]),
    ),
    Finding(
        "exp-far-above", ("Exp",), (FP16,), ("hundreds/*", *_HUGE),
        "131008 up to 88, 0 beyond", "more than float16 holds", "x above 11.78 overflows; above 88 it is 0",
        "forecast fp16_overflow", canary("Exp", FP16, [[[90.0, 1.0, 0.0, 2.0]]]),
    ),
    Finding(
        "softplus", ("Softplus", "*+Softplus"), (FP16, *_QUANTIZED), ("*",),
        "131008 below -88 in float16; 1.5 % off near 0", "0; 0.693", "any range", "rewrite decompose_softplus",
        canary("Softplus", FP16, [[[-300.0, -1.0, 0.0, 1.0]]]),
    ),
    Finding(
        "swish", ("Swish",), _QUANTIZED, ("*",),
        "a multiple of x: 2.03 for Swish(0.25)", "0.14", "any range", "rewrite decompose_swish",
        canary("Swish", "u16", [_RAMP], opset=24),
    ),
    Finding(
        "softmax-of-quiet-rows", ("Softmax", "*+Softmax", "Softmax+Log", "Attention"), ("u16",),
        ("small/*", "tiny/*", "quiet/*", "node test/*_scaled*"),
        "0.182 for 0.167: rows don't add up to 1; their Log is 0.066 too large", "0.167",
        "an encoding of the scores narrower than 0.15",
        "forecast integer_function",
        canary("Softmax", "u16", [np.linspace(-3e-3, 3e-3, 24, dtype=np.float32).reshape(4, 6)], axis=-1),
    ),
    Finding(
        "softmax-of-loud-scores", ("Softmax",), (FP16,), ("one row loud/*", "hundreds/*", "thousands/*"),
        "0.0229 for 0.0180", "by the rounded scores", "scores beyond 256, which float16 has in steps of 0.25",
        "forecast fp16_overflow",
        canary("Softmax", FP16, [of_rank(4, ORDINARY[:240] * np.float32(100))], axis=-1),
    ),
    Finding(
        "bounds-beyond-zero", ("Clip",), _QUANTIZED, ("negative/floor *", "negative/1e-6 *", "positive/*", "offset/*"),
        "the bound is lost, as the encoding of what is in front does what a Clip does", "the bound",
        "bounds that leave no zero", "rewrite split_clips",
        canary("Clip", "u16", [np.linspace(-4, -0.01, 64, dtype=np.float32)[None], 1e-5], constants=(1,)),
    ),
    Finding(
        "powers-of-5-dims", ("Pow",), _QUANTIZED, ("rank/5, *",), "1.00 for 3.53", "the power",
        "5 dims, and two sides of other dims; in float16 the compiler ends its process", "rewrite expand_powers",
    ),
    Finding(
        "reciprocal", ("Reciprocal",), _QUANTIZED, ("*",),
        "0 to 6 dB of results that are large; 0 for negative x", "72 dB", "results beyond about 2; all x negative",
        "rewrite divide_one", canary("Reciprocal", "u16", [np.linspace(-4, -0.5, 64, dtype=np.float32)[None]]),
    ),
    Finding(
        "log-sum-exp", ("ReduceLogSumExp",), (FP16,), ("*",),
        "34 too small", "the largest and a little", "values of a row more than 88 apart", "rewrite decompose_log_sums",
        canary("ReduceLogSumExp", FP16, [_LOUD[0], np.array([1])], constants=(1,)),
    ),
    Finding(
        "log-softmax", ("LogSoftmax", "*+LogSoftmax"), (FP16, "u8"), ("*",),
        "off by 80 in -250; -3.7 for 0; 44 to 50 dB in uint8", "72 dB; 55 dB",
        "values of a row more than 200 apart in float16; rows of one element",
        "rewrite decompose_log_sums", canary("LogSoftmax", FP16, [_LOUD[0]], axis=-1),
    ),
    Finding(
        "bytes-to-float", ("Cast", "QLinear*", "DequantizeLinear"), (FP16,), ("uint8 */to float", "node test/*"),
        "1 for all but 0", "the byte", "Cast of uint8 to float in a float16 graph, as quantized inputs are read",
        "rewrite cast_by_int32", canary("Cast", FP16, [np.arange(0, 256, 4, dtype=np.uint8)[None]], to=1),
    ),
    Finding(
        "negative-is-false", ("Cast",), (FP16,), ("int*/to bool",),
        "false for -1 and all below", "true: it is not 0", "Cast of int32 or int64 to bool, negative",
        "rewrite compare_casts", canary("Cast", FP16, [_SIGNED], to=9),
    ),
    Finding(
        "mod-in-float16", ("Mod",), (FP16,), ("*",),
        "4097 mod 3 is 0", "2", "|x| above 2048; any x of uint8", "rewrite decompose_mod",
        canary("Mod", FP16, [np.array([[2051, 4097, 70001, 7]], np.int32), np.int32(3)], constants=(1,)),
    ),
    Finding(
        "quotient-by-shift", ("Div",), (FP16,), _INTEGERS,
        "-7 / 2 is -4", "-3", "a negative integer by a constant power of two of one element",
        "rewrite negate_divisors", canary("Div", FP16, [_SIGNED, np.int32(4)], constants=(1,)),
    ),
    Finding(
        "int64-saturates", ("Add", "Sub", "Mul", "Abs", "Neg", "CumSum", "ReduceSum"), (FP16,), ("int64 above 2^24/*",),
        "the largest int32", "the int64", "results beyond int32", "forecast integer_overflow",
        canary("Add", FP16, [np.array([[2**31 - 1, 1]], np.int64), np.array([[5, 1]], np.int64)]),
    ),
    Finding(
        "integer-sums-in-float", ("CumSum", "ReduceSum"), (FP16,), ("int32 above 2^24/*", "int64 above 65504/*"),
        "sums of float32", "exact", "sums above 2^24", "forecast integer_overflow",
        canary("CumSum", FP16, [np.array([[2**24 + 1, 2, 4]], np.int32), np.array(1)], constants=(1,)),
    ),
    Finding(
        "top-k-ties", ("TopK",), (FP16, *_QUANTIZED), ("*",),
        "indices of ties in another order; values are right", "the lower index first", "equal values",
        "judged as near ties",
        canary("TopK", FP16, [_TIES, np.array([3])], constants=(1,), outputs=2, axis=1),
    ),
    Finding(
        "arg-ties", ("ArgMax", "ArgMin"), (FP16, *_QUANTIZED), ("*",),
        "another index of values that the format can't tell apart", "the first", "ties after rounding",
        "judged as near ties",
        canary("ArgMin", FP16, [of_rank(4, ORDINARY[:240] * np.float32(0.01) + 50)], axis=-1),
    ),
    Finding(
        "angles-in-float16", ("Sin", "Cos", "Tan"), (FP16,), ("tails/*", "hundreds/*", *_HUGE),
        "Sin(128) is 0.634, Sin(40000) is 0", "0.721", "|x| above 6 is off by 0.009, above 100 by 0.1; 80 dB in uint16",
        "forecast fp16_overflow", canary("Sin", FP16, [_ANGLES]),
    ),
    Finding(
        "tan-near-poles", ("Tan",), _QUANTIZED, ("*",),
        "431 for 355", "Tan(1.568)", "results beyond 10; an argument of less than 0.004",
        "forecast integer_function",
        canary("Tan", "u16", [np.linspace(1.2, 1.568, 64, dtype=np.float32)[None]]),
    ),
    Finding(
        "atan-of-large", ("Atan",), (FP16,), _HUGE,
        "±131008", "±1.5708", "|x| above 32768", "forecast fp16_overflow",
        canary("Atan", FP16, [[[33000.0, -40000.0, 1.0, 2.0]]]),
    ),
    Finding(
        "l2-by-squares", ("ReduceL2", "LpNormalization", "GlobalLpPool", "LpPool"), (FP16, *_QUANTIZED), ("*",),
        "362, the root of 131008; 0 for less than 2^-12", "the norm",
        "the sum of squares beyond 131008, or below 2^-24, in float16 whatever is around it",
        "forecast fp16_overflow",
        canary("ReduceL2", FP16, [np.full((2, 8), 300, np.float32), np.array([1])], constants=(1,)),
    ),
    Finding(
        "divisor-beyond-2^14", ("Div",), (FP16,), ("thousands/*", *_HUGE),
        "0 for 1000 / 20000", "0.05", "|divisor| above 16384: its inverse is subnormal", "forecast fp16_flush",
        canary("Div", FP16, [[[1000.0, 1000.0]], [[20000.0, 10.0]]]),
    ),
    Finding(
        "beyond-float16",
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Sign", "Cast", "IsNaN", "Softmax", "Hardmax",
         "ArgMax", "ArgMin", "Where", "Max", "Min", "Clip", "Gelu", "Sigmoid"),
        (FP16,), ("beyond fp16/*", "sum beyond fp16/*", "filler*", "node test/test_isnan*"),
        "false, 0, or NaN", "as of any number", "|x| above 65504, inputs of the model included",
        "forecast fp16_overflow",
        canary("Sign", FP16, [[[70000.0, 1.0]]]),
    ),
    Finding(
        "narrow-ranges-in-float16",
        ("Asin", "Acos", "Atan", "Sin", "Tan", "Elu", "Selu", "Log", "Ceil", "Floor", "Sign", "Sqrt", "Round", "Celu",
         "Gelu", "Cast", "Sigmoid", "HardSwish", "Exp", "Swish"),
        _QUANTIZED, ("narrow/*",),
        "steps of 6e-5, or 0", "the function", "computed in float16 inside: inputs of less than 0.004",
        "forecast integer_function", canary("Sin", "u16", [np.linspace(-4e-4, 4e-4, 64, dtype=np.float32)[None]]),
    ),
    Finding(
        "elu-of-large", ("Elu", "Selu", "Celu"), _QUANTIZED, ("wide/*",),
        "the largest for some negative x", "-1", "an input range beyond 2e4", "forecast integer_function",
        canary("Elu", "u16", [np.linspace(-25000, 25000, 64, dtype=np.float32)[None]]),
    ),
    Finding(
        "unequal-comparison", ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _QUANTIZED, ("*",),
        "ties go the other way than in the QDQ model", "by the rounded values", "two encodings that are not equal",
        "forecast unequal_comparison",
        canary("Equal", "u16", [np.linspace(-3, 3, 64, dtype=np.float32)[None],
                                 np.minimum(np.linspace(-3, 3, 64, dtype=np.float32), 1.7)[None]]),
    ),
    Finding(
        "average-over-the-end", ("AveragePool",), (FP16, *_QUANTIZED),
        ("layout/*ceil 1*", "node test/*ceil*"),
        "0, or a part of the mean, in the last window", "the mean of what is there",
        "ceil_mode, where the last window reaches over the end", "rewrite convolve_averages",
        canary("AveragePool", FP16, [_IMAGE[None, :4, :7, :7]], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    ),
    Finding(
        "average-with-padding", ("AveragePool",), (FP16, *_QUANTIZED),
        ("layout/*padded*", "layout/*same*", "node test/*"),
        "0, or other places", "the mean", "padding: counted, on one side, or with wide strides",
        "rewrite convolve_averages",
        canary("AveragePool", FP16, [_IMAGE[:1, :4, :6]], kernel_shape=[3], pads=[1, 1], count_include_pad=1),
    ),
    Finding(
        "grouped-transpose-of-5-dims", ("ConvTranspose",), (FP16, *_QUANTIZED), ("layout/rank 5, *",),
        "other numbers", "the sums", "5 dims and group above 1; tests/qnn/test_admission_of_groups.py", "refused",
    ),
    Finding(
        "negative-computed-indices", ("Gather", "GatherElements", "ScatterElements", "ScatterND", "OneHot"),
        (FP16, *_QUANTIZED), ("*negative*computed*", "node test/*"),
        "0 of GatherElements, the lowest number of the encoding of Gather; nothing is written by a scatter or OneHot",
        "the element, counted from the end",
        "negative indices that are computed (Gather: in integers); constants are right, and GatherND",
        "rewrite count_indices_from_the_front",
        canary("GatherElements", FP16, [[[1.0, 2.0, 3.0]], np.array([[-1, -2]])], axis=1),
    ),
    Finding(
        "scatter-in-one-encoding", ("ScatterElements",), _QUANTIZED, ("*",),
        "integers of one encoding taken for those of another: 8.45 for -2; none, as the quantizer gives it one",
        "-2", "data, updates and result in encodings of their own", "encoded alike", scattered,
    ),
    Finding(
        "wide-products", ("MatMul", "Gemm", "Einsum", "Attention"), ("u16",), ("*computed*", "layout/*", "node test/*"),
        "the right one rounded to 8 bits", "16 bits", "two computed inputs", "option wide_products",
        canary("MatMul", "u16", [np.linspace(-3, 3, 64, dtype=np.float32).reshape(8, 8),
                                  np.linspace(-3, 3, 64, dtype=np.float32).reshape(8, 8).T.copy()]),
    ),
    Finding(
        "batch-norm", ("BatchNormalization", "BatchNormalization+*", "*+BatchNormalization+*"), _QUANTIZED, ("*",),
        "one channel or all wrong", "79 dB", "standing alone, or behind a Conv", "rewrite decompose_batch_norm",
        canary("BatchNormalization", "u16", [
            np.linspace(-3e-3, 3e-3, 24, dtype=np.float32).reshape(8, 3),
            *([*row] for row in ([0.5, 1.0, 1.5], [-1.0, 0.0, 1.0], [-0.5, 0.0, 0.5], [0.5, 1.0, 1.5])),
        ], constants=(1, 2, 3, 4)),
    ),
    Finding(
        "edges-are-zeros", ("Pad",), (FP16,), ("*edge*",), "0", "the first or last element",
        "mode edge over the last axis", "rewrite gather_edges",
        canary("Pad", FP16, [[[1.0, 2.0, 3.0, 4.0]], np.array([0, 1, 0, 1])], constants=(1,), mode="edge"),
    ),
    Finding(
        "nearest-mode", ("Resize", "Upsample"), (FP16, *_QUANTIZED), ("layout/nearest*", "node test/*nearest*"),
        "another neighbour", "by nearest_mode",
        "nearest with a mode or coordinates other than those of torch (asymmetric, floor); by scales that are no ratio",
        "rewrite gather_neighbours",
        canary("Resize", FP16, [_IMAGE[None, :2, :4, :6], None, None, np.array([1, 2, 8, 12])], constants=(3,),
                mode="nearest", nearest_mode="ceil"),
    ),
    Finding(
        "scaled-sums", ("Add+Mul", "MatMul+Add+Mul"), (FP16,), ("*",),
        "x s + c₀ s: the first element of c for all", "(x + c) s", "c a constant of several elements, s of one",
        "rewrite widen_scales",
        lambda: next(case for case in joined.cases() if case.name == "Add+Mul/fp16/ordinary/Add"),
    ),
    Finding(
        "hard-sigmoid-behind-strides", ("ConvTranspose+HardSigmoid",), (FP16,), ("*",),
        "other memory from the fifth column on, and other operators spoiled", "the HardSigmoid",
        "a ConvTranspose with strides, whatever stands between; tests/graph/rewrites/test_decompose_hard_sigmoid.py",
        "rewrite decompose_hard_sigmoid",
    ),
    Finding(
        "sums-of-zero-points", ("CumSum",), ("u8",), ("axes/*",), "-4.40 for 0.25", "the sum",
        "along every axis but the last", "rewrite sum_along_last_axis",
        canary("CumSum", "u8", [[[0.25, -1.0, 2.0], [1.0, 0.5, -2.0]], np.array(0)], constants=(1,)),
    ),
    Finding(
        "zero-points-of-blocks", ("DequantizeLinear",), ("u16",), ("*",),
        "weights in blocks as if their zero points were 0: 0.6 and -9.5 dB", "67 dB",
        "block_size with a zero point that is not 0; tests/qnn/test_admission_of_blocks.py", "refused",
    ),
    Finding(
        "quiet-channels", ("Conv", "ConvTranspose", "Gemm", "MatMul"), _QUANTIZED, ("channels of 2^-*",),
        "the channel saturates; none, since the quantizer raises its scale", "about 0",
        "scale_in · scale_w / scale_out below 2^-24, 16 bit activations", "forecast requantize_underflow",
        quiet_channels,
    ),
    *OF_RESCALING,
)  # fmt: skip


def explain(outcome: Outcome) -> Finding | None:
    """The first finding that covers a case."""
    return next((finding for finding in FINDINGS if finding.covers(outcome)), None)
