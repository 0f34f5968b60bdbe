"""Activations that ONNX Runtime's optimizer fused with what stood before them."""

from __future__ import annotations

import math

from pipeline.graph.fused.unfused import Unfused
from pipeline.graph.ir.index import CONTRIB_DOMAIN


def write_bias_gelu(made: Unfused) -> None:
    """``Gelu(x + bias)``."""
    total = made.op("Add", made.given(0), made.given(1))
    made.give(0, made.op("Gelu", total, domain=CONTRIB_DOMAIN))


def write_fast_gelu(made: Unfused) -> None:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``, a bias added to x first where there is one."""
    x = made.op("Add", made.given(0), made.given(1)) if made.given(1) else made.given(0)
    cube = made.op("Mul", made.op("Mul", x, x), x)
    inner = made.op("Add", x, made.op("Mul", cube, made.scalar(0.044715)))
    bend = made.op("Tanh", made.op("Mul", inner, made.scalar(math.sqrt(2 / math.pi))))
    half = made.op("Mul", x, made.scalar(0.5))
    made.give(0, made.op("Mul", half, made.op("Add", bend, made.scalar(1.0))))


def write_quick_gelu(made: Unfused) -> None:
    """``x Sigmoid(alpha x)``."""
    x, alpha = made.given(0), made.number("alpha", 1.702)
    scaled = x if alpha == 1 else made.op("Mul", x, made.scalar(alpha))
    made.give(0, made.op("Mul", x, made.op("Sigmoid", scaled)))


def activated(made: Unfused, name: str, kind: str, parameters: list[float]) -> str:
    """A value after the activation that a fused Conv or Gemm names, with its parameters in their order."""
    match kind, parameters:
        case "", _:
            return name
        case (("Relu" | "Sigmoid" | "Tanh"), _):
            return made.op(kind, name)
        case "LeakyRelu", [alpha]:
            return made.op("LeakyRelu", name, alpha=alpha)
        case "HardSigmoid", [alpha, beta]:
            return made.op("HardSigmoid", name, alpha=alpha, beta=beta)
        case "Clip", [low, high]:
            return made.op("Clip", name, made.scalar(low), made.scalar(high))
        case "QuickGelu", [alpha]:
            return made.op("Mul", name, made.op("Sigmoid", made.op("Mul", name, made.scalar(alpha))))
        case _:
            raise made.refused(f"its activation is {kind!r} with the parameters {parameters}")
