"""Findings of integers that are turned into those of another encoding, and of values that rounding spoils."""

from __future__ import annotations

import numpy as np

from tests.conformance import elementwise, joined, layers, movers, reductions
from tests.conformance.cases import Case
from tests.conformance.crooked import clamped_sum, clamped_zeros, joined_input
from tests.conformance.finding import Finding, canary

_QUANTIZED = ("u16", "u8")
_WIDE = np.linspace(-30000, 20, 64, dtype=np.float32)[None].tolist()
_PIXELS = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
_BETWEEN = np.array([[[[0, 0], [0, 0.2]]]], np.float32)
_NEGATIVE = np.linspace(-4, -0.01, 64, dtype=np.float32)[None].tolist()


def _named(name: str) -> Case:
    """A case of the sweep."""
    sources = (joined.cases, elementwise.cases, reductions.cases, layers.cases, movers.cases)
    return next(case for source in sources for case in source() if case.name == name)


OF_RESCALING = (
    Finding(
        "products-of-5-dims", ("MatMul",), ("u8",), ("rank/(1, 2, 2, 3, 4) *computed",),
        "-13.0 for -2.4", "the product", "5 dims, two batch dims above 1; by a constant it is not compiled",
        "rewrite flatten_products",
        lambda: _named("MatMul/u8/rank/(1, 2, 2, 3, 4) (1, 2, 2, 4, 5) computed"),
    ),
    Finding(
        "transposed-sums", ("ConvTranspose+Add",), _QUANTIZED, ("*of channels",),
        "off by up to 0.49 of 4: 7 dB", "76 dB in uint16, as with a bias of its own",
        "a constant for each channel, as the second operand; as the first it is right", "rewrite fold_biases",
        lambda: _named("ConvTranspose+Add/u16/ordinary/ConvTranspose+Add of channels"),
    ),
    Finding(
        "clamped-transposed-sums", ("ConvTranspose+Relu+Add",), _QUANTIZED, ("*of channels",),
        "off by up to 1.5 of 3: 0 dB", "79 dB in uint16, with the constant as the first operand",
        "a constant for each channel behind a Relu or Clip", "rewrite put_constants_last",
        lambda: _named("ConvTranspose+Relu+Add/u16/ordinary/ConvTranspose+Relu+Add of channels"),
    ),
    Finding(
        "joined-inputs", ("Transpose+Concat", "Reshape+Concat", "Transpose+Pad"), _QUANTIZED, ("*",),
        "integers of one encoding taken for those of another: 1.0 for 0.7; none, as it is rescaled in front",
        "0.7", "an input of the model that was transposed or reshaped, joined to what makes the encoding wider",
        "encoded alike", joined_input,
    ),
    Finding(
        "zeros-left-out", ("Add+Relu", "Sub+Relu", "Mul+Relu", "Div+Relu", "MatMul+Add+Relu"), _QUANTIZED,
        ("*of zeros", "*of ones"),
        "10.24 for 0: integers of one encoding taken for those of another; none, as the quantizer leaves the Relu", "0",
        "a sum with zeros, or in 16 bits a quotient by one, whose result has another encoding, as a Relu makes it",
        "clamped apart", clamped_zeros,
    ),
    Finding(
        "no-end-of-sums", ("CumSum", "CumSum+*", "Atan+Clip", "Asin+Clip", "LogSoftmax+Clip"), _QUANTIZED,
        ("*behind*",),
        "the other end of the encoding: 1 for 0; none, as the quantizer leaves the Clip", "0",
        "results beyond their encoding, as a Clip that is left to it makes them", "clamped apart", clamped_sum,
    ),
    Finding(
        "rescaled-too-far", ("Clip", "Relu", "Neg", "Concat", "ReduceMax", "ReduceMin", "Where", "Max", "Min", "Abs"),
        _QUANTIZED, ("wide/*", "outlier/*"),
        "6 for -2642; -0.37 for -0.47", "0; -0.47",
        "scale_in / scale_out above 2^13 (8 bits: 2^7), or times the zero point above 2^28",
        "forecast rescale_overflow",
        canary("Clip", "u16", [_WIDE, 0.0, 4.0], constants=(1, 2)),
    ),
    Finding(
        "divided-by-nothing", ("Div",), ("u8",), ("outlier/*",),
        "0 for -3190", "no number: the divisor is 0 in its encoding",
        "a divisor of less than half a step, and a small dividend", "forecast integer_divisor",
        lambda: _named("Div/u8/outlier/on the right"),
    ),
    Finding(
        "inverse-root-of-nothing", ("Mul+Sqrt+Div",), ("u16",), ("*",),
        "0 for 185", "no number: the root is of 0 in its encoding",
        "1 / Sqrt(x) of less than half a step, which are computed as one operator; results beyond 50",
        "rewrite scale_magnitudes", lambda: _named("Mul+Sqrt+Div/u16/ordinary/Mul+Sqrt+Div"),
    ),
    Finding(
        "gelu-in-pieces", ("Gelu",), ("u16",), ("negative/*",),
        "-0.0049 for -0.0061", "256 steps of 65535 of a range as narrow as 0.2",
        "off by up to 0.0014 wherever it is, in float16 too", "forecast integer_function",
        canary("Gelu", "u16", [_NEGATIVE]),
    ),
    Finding(
        "joined-activations", ("*+Tanh", "*+Sigmoid"), ("fp16",), ("*",),
        "-0.0206 for -0.0214", "4 steps of float16", "a Tanh or Sigmoid right behind a product or a sum",
        "rewrite bound_activations", lambda: _named("MatMul+Tanh/fp16/quiet/MatMul"),
    ),
    Finding(
        "small-angles", ("*+Sin",), ("fp16",), ("quiet/*",),
        "0.00513 for 0.00524", "4 steps of float16", "arguments below 0.02: steps of 1.2e-4", "forecast fp16_flush",
        lambda: _named("Mul+Sin/fp16/quiet/Mul"),
    ),
    Finding(
        "logarithms-of-shares", ("Sigmoid+Log", "Softmax+Log"), ("fp16",), ("*",),
        "-7.6 for -20.8; -7.63 for -7.95", "as LogSoftmax", "a Sigmoid or Softmax of less than 2^-6",
        "forecast fp16_flush", lambda: _named("Sigmoid+Log/fp16/loud/Sigmoid+Log"),
    ),
    Finding(
        "sums-of-exponentials", ("Exp+ReduceSum+Log",), ("fp16",), ("loud/*",),
        "-0.0005 for 14.6", "as ReduceLogSumExp", "an Exp beyond 65504", "forecast fp16_overflow",
        lambda: _named("Exp+ReduceSum+Log/fp16/loud/Exp+ReduceSum+Log"),
    ),
    Finding(
        "sums-of-rounded-exponentials", ("Exp+ReduceSum+Log",), ("u16",), ("loud/*",),
        "11.5 for 14.6", "as ReduceLogSumExp", "an Exp over more than 2^16", "forecast exponent",
        lambda: _named("Exp+ReduceSum+Log/u16/loud/Exp+ReduceSum+Log"),
    ),
    Finding(
        "negative-indices-of-a-table", ("Gather",), _QUANTIZED, ("*negative of a constant",),
        "-4.65 for 1.81: the lowest number of the encoding", "the element, counted from the end",
        "a constant table in integers, negative indices that are an input", "forecast negative_index",
        lambda: _named("Gather/u16/axes/rank 2, axis 0 negative of a constant"),
    ),
    Finding(
        "root-of-squares", ("Mul+Sqrt+Div",), ("fp16",), ("*",),
        "2364 for 2416", "4 steps of float16", "squares below 2^-14, which float16 has in few bits",
        "rewrite scale_magnitudes", lambda: _named("Mul+Sqrt+Div/fp16/quiet/Mul+Sqrt+Div"),
    ),
    Finding(
        "elu-of-quiet-values", ("Elu", "*+Elu"), ("u16",), ("quiet/*",),
        "0.0707, the end of the encoding, for -0.0008 and all that is negative", "x",
        "some encodings of the input narrower than 0.15", "forecast integer_function",
        lambda: _named("Transpose+Elu/u16/quiet/Transpose"),
    ),
    Finding(
        "cubic-by-two", ("Resize",), ("u16",),
        ("layout/cubic, align_corners, (8, 12)*", "layout/cubic, align_corners, (16, 24)*", "layout/cubic, *, (8, 24)*",
         "layout/cubic, *, (16, 12)*", "node test/*_cubic_align_corners*"),
        "the lowest number of the encoding for all", "76 dB and more of other modes and factors, and in 8 bits",
        "cubic by 2 and 4; with align_corners by 2 or 4 on both axes", "rewrite resize_axes_apart",
        lambda: _named("Resize/u16/layout/cubic, align_corners, (8, 12), "),
    ),
    Finding(
        "resize-of-5-dims", ("Resize",), ("fp16",), ("layout/linear, *, (1, 3, 4, 4, 6) to *",),
        "0.16 for 0.02: other places", "4 steps of float16", "linear along 5 dims", "rewrite resize_axes_apart",
        lambda: _named("Resize/fp16/layout/linear, align_corners, (1, 3, 4, 4, 6) to (1, 3, 4, 8, 9)"),
    ),
    Finding(
        "options-of-resize", ("Resize",), ("fp16", *_QUANTIZED),
        ("layout/*, outside excluded", "layout/*, not larger", "layout/*, by scales", "node test/*not_larger*",
         "node test/*not_smaller*", "node test/*exclude_outside*", "node test/*_scales_*",
         "node test/*pytorch_half_pixel*"),
        "1.67 for 1.55: as if the option were not there", "as exclude_outside, the ratio or the scales say",
        "exclude_outside; scales, given or of a kept ratio, that sizes don't come to; pytorch_half_pixel to 1",
        "rewrite resize_by_products", lambda: _named("Resize/fp16/layout/cubic, outside excluded"),
    ),
    Finding(
        "points-between-pixels", ("GridSample",), ("fp16",), ("node test/*nearest*",),
        "3 for 2: the pixel above", "the even one", "nearest pixels, a point halfway; in a computed grid, too",
        "rewrite center_grids",
        canary("GridSample", "fp16", [_PIXELS, _BETWEEN], constants=(1,), mode="nearest", align_corners=1),
    ),
    Finding(
        "lookups-of-5-dims", ("Gather",), _QUANTIZED, ("axes/rank 4, * square*",),
        "2.61 for -2.85: another element; in float16 no context that runs", "the element",
        "a result of 5 dims, by indices of 2 and more", "rewrite flatten_gathers",
        lambda: _named("Gather/u16/axes/rank 4, axis 2 square"),
    ),
    Finding(
        "integers-above-2048", ("QuantizeLinear",), ("fp16", "u16"), ("node test/*int16*",),
        "32768 for 32770; 32766 for 32768 in uint16", "float16 has steps of 32 there, uint16 of 2",
        "16 bits made of what computes in float16, or in 16 bits over twice their range", "judged in dB",
    ),
    Finding(
        "norms-of-few-steps", ("InstanceNormalization",), ("u8",), ("offset/*",),
        "3.18 for 3.28", "5 dB: the QDQ model is that far off its original",
        "values within three steps of their encoding, which holds 0, too: 50 and 50.1", "missed on the CPU",
        lambda: _named("InstanceNormalization/u8/offset/rank 3"),
    ),
)  # fmt: skip
