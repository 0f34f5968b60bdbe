"""What a message advises in place of an operator that QNN leaves to the CPU: the real compiler takes it whole."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from pipeline.qnn.child import compile_apart
from pipeline.qnn.compiling import hints
from tests.support.graphs import graph
from tests.support.stage_runs import X_ELITE, Component

pytestmark = pytest.mark.slow

CONSTANTS: dict[str, ArrayLike] = {
    "one": np.float32(1),
    "two": np.float32(2),
    "big": np.float32(1e6),
    "low": np.float32(-0.5),
    "high": np.float32(0.5),
    "last": np.array([2]),
    "w": np.random.default_rng(0).normal(size=(8, 8, 1)).astype(np.float32),
    "rows": np.eye(16, dtype=np.float32),
    "lower": np.tril(np.ones((8, 16), np.float32)),
    "square": np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32),
}

# In place of an operator: the same with those that QNN takes, from `a` float[1,8,16] to `y`.
ADVICE = {
    "Acosh": "p = Exp(a) b = Add(p, one) s = Mul(b, b) m = Sub(s, one) r = Sqrt(m) t = Add(b, r) y = Log(t)",
    "Asinh": "g = Sign(a) b = Abs(a) s = Mul(b, b) p = Add(s, one) r = Sqrt(p) t = Add(b, r) l = Log(t) y = Mul(g, l)",
    "Celu": "b = Div(a, two) e = Elu(b) y = Mul(e, two)",
    "Cosh": "n = Neg(a) p = Exp(a) q = Exp(n) s = Add(p, q) y = Div(s, two)",
    "Einsum": "t = Transpose<perm = [0, 2, 1]>(a) y = MatMul(a, t)",
    "Erf": 'y = Gelu<approximate = "none">(a)',
    "GlobalLpPool": "y = ReduceL2(a, last)",
    "IsInf": "b = Abs(a) c = Greater(b, big) y = Where(c, one, a)",
    "Mod": "q = Div(a, two) f = Floor(q) m = Mul(f, two) y = Sub(a, m)",
    "OneHot": "i = ArgMax<axis = 2, keepdims = 0>(a) y = Gather(rows, i)",
    "ReduceL1": "b = Abs(a) y = ReduceSum(b, last)",
    "ReduceLogSum": "e = Exp(a) s = ReduceSum(e, last) y = Log(s)",
    "ReduceLogSumExp": "m = ReduceMax(a, last) d = Sub(a, m) e = Exp(d) s = ReduceSum(e, last) p = Log(s)"
    " y = Add(m, p)",
    "ReduceProd": "e = Exp(a) l = Log(e) s = ReduceSum(l, last) y = Exp(s)",
    "ReduceSumSquare": "b = Mul(a, a) y = ReduceSum(b, last)",
    "Shrink": "b = Clip(a, low, high) y = Sub(a, b)",
    "Sinh": "n = Neg(a) p = Exp(a) q = Exp(n) s = Sub(p, q) y = Div(s, two)",
    "Softsign": "b = Abs(a) p = Add(b, one) y = Div(a, p)",
    "Trilu": "y = Mul(a, lower)",
}
ELSEWHERE = {"Hardmax", "LRN"}
"""Advice that is not another form: it moves the node out of the model, or changes its precision."""


def test_every_hint_is_tried() -> None:
    assert set(hints.HINTS) == set(ADVICE) | ELSEWHERE


@pytest.mark.parametrize("op", sorted(ADVICE))
def test_what_is_advised_runs_on_the_npu(op: str, tmp_path: Path) -> None:
    body = ADVICE[op].replace(") ", ")\n    ")
    used = {name: value for name, value in CONSTANTS.items() if name == "w" or re.search(rf"\b{name}\b", body)}
    model = graph(f"g (float[1,8,16] x) => (float[1,8,m] y) {{\n    a = Conv(x, w)\n    {body}\n}}", used, opset=20)
    component = Component(tmp_path / "net", model, {"all": {}})
    calls = [{"x": np.random.default_rng(seed).normal(size=(1, 8, 16)).astype(np.float32)} for seed in range(2)]
    quantized = component.quantize("all", component.calibrate(calls))
    out = tmp_path / "context"
    out.mkdir()
    made = compile_apart(quantized.folder / "model.onnx", "net", X_ELITE, out)
    assert made.partitions == 1
    assert made.fallbacks == ()


def test_a_reason_helps_where_the_operator_is_not_known() -> None:
    assert hints.of("Frobnicate", "") == "Frobnicate: export the model with other operators in its place"
    assert "5 dims" in hints.of("Frobnicate", "Rank of 6 is not supported")
