"""Findings of integers that are turned into those of another encoding, and of values that rounding spoils."""

from __future__ import annotations

import numpy as np

from tests.conformance import elementwise, joined, reductions
from tests.conformance.cases import Case
from tests.conformance.crooked import clamped_sum, clamped_zeros
from tests.conformance.finding import Finding, canary

_QUANTIZED = ("u16", "u8")
_WIDE = np.linspace(-30000, 20, 64, dtype=np.float32)[None].tolist()
_NEGATIVE = np.linspace(-4, -0.01, 64, dtype=np.float32)[None].tolist()


def _named(name: str) -> Case:
    """A case of the sweep."""
    sources = (joined.cases, elementwise.cases, reductions.cases)
    return next(case for source in sources for case in source() if case.name == name)


OF_RESCALING = (
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
        "norms-of-few-steps", ("InstanceNormalization",), ("u8",), ("offset/*",),
        "3.18 for 3.28", "5 dB: the QDQ model is that far off its original",
        "values within three steps of their encoding, which holds 0, too: 50 and 50.1", "missed on the CPU",
        lambda: _named("InstanceNormalization/u8/offset/rank 3"),
    ),
)  # fmt: skip
