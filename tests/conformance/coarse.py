"""Why some results are coarser than their format: mechanisms that were found by single operators."""

from __future__ import annotations

_FP16, _BOTH = ("fp16",), ("fp16", "u16")

COARSE_BECAUSE: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("*+Sigmoid", "*+Tanh"), _FP16, "made one with what is in front; rewrite `bound_activations`"),
    (("Softplus", "*+Softplus"), _BOTH, "off by up to 0.014; rewrite `decompose_softplus`"),
    (("Gelu", "*+Gelu"), _BOTH, "computed in pieces, off by up to 0.0014"),
    (("Sigmoid",), _FP16, "off by up to 0.0009, however small the result"),
    (("Swish", "HardSwish", "*+HardSwish"), _FP16, "off by up to 0.004"),
    (("Sin", "Cos", "Tan", "*+Sin"), _FP16, "the angle in float16 inside: off by 0.0003 near 0, 0.009 at 6 to 8"),
    (("Elu", "Selu", "*+Elu"), _FP16, "Exp(x) - 1, of an Exp that is rounded: off by 0.0002 near 0"),
    (("Div",), _FP16, "times the divisor's inverse, which is subnormal"),
)
"""Patterns of operators, formats, and the reason, with the largest error over 8192 arguments between -8 and 8."""
