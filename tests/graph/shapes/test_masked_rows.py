"""What is computed for the elements that a mask chooses is computed for all, and put back where the mask is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL
from tests.support.sources import ingested, model, outputs, shaped

CONSTANTS: dict[str, Any] = {
    "zero": np.float32(0), "half": np.float32(0.5), "w": np.random.default_rng(1).normal(size=(3, 3)).astype("f4"),
    "start": np.array([0]), "end": np.array([1 << 40]), "step": np.array([2]), "second": np.array([1]),
    "first": np.array(0), "one": np.array(1), "pads": np.array([0, 1, 0, 0]), "flat": np.array([-1]),
    "bias": np.array([1, 2, 3], np.float32), "last": np.array([-1]),
}  # fmt: skip
TAKEN = """g (float[1,n] x, float[1,n,3] h) => ({outputs}) {{
    chosen = Greater (x, zero)  left = Not (chosen)
    a = NonZero (left)  at_left = Transpose <perm = [1, 0]> (a)  others = GatherND (x, at_left)
    b = NonZero (chosen)  at = Transpose <perm = [1, 0]> (b)  v = GatherND (x, at)  rows = GatherND (h, at)
    {body}
    dims = Shape (x)  base = ConstantOfShape (dims)  filled = ScatterND (base, at_left, others)
    y = ScatterND (filled, at, out) }}"""
BODIES = {
    "each element": "s = Sigmoid (v)  out = Mul (s, half)",
    "along another axis": """p = Softmax <axis = -1> (rows)  c = CumSum (p, one)
        q = ReduceSum <keepdims = 0> (c, second)  out = Mul (q, v)""",
    "a linear layer": "m = MatMul (rows, w)  e = Add (m, bias)  out = ReduceMax <keepdims = 0, axes = [1]> (e)",
    "slices, pads, joints": """k = Slice (rows, start, end, second, step)  u = Unsqueeze (v, second)
        j = Concat <axis = 1> (k, u)  d = Pad (j, pads, zero)  t = Gather <axis = 1> (d, first)
        g2 = Gather <axis = 1> (d, one)  s = Add (t, g2)  out = Reshape (s, flat)""",
    "a place in each row, by what is computed": """i = ArgMax <axis = 1, keepdims = 1> (rows)
        t = GatherElements <axis = 1> (rows, i)  out = Squeeze (t, second)""",
    "as many as there are": """d0 = Shape (rows)  n0 = Gather <axis = 0> (d0, first)  z = ConstantOfShape (d0)
        e = Add (rows, z)  r = Range (first, n0, one)  rc = Unsqueeze (r, second)  zc = Sub (rc, rc)
        idx = Concat <axis = 1> (rc, zc)  n1 = Unsqueeze (n0, start)  col = ConstantOfShape (n1)
        f = ScatterND (e, idx, col)  out = ReduceSum <keepdims = 0> (f, second)""",
    "a size of the others": """d0 = Shape (rows)  w0 = Gather <axis = 0> (d0, one)  wf = Cast <to = 1> (w0)
        w1 = Slice (d0, last, end)  w2 = Cast <to = 1> (w1)  p = Mul (v, wf)  out = Mul (p, w2)""",
}


def taken(body: str, outputs: str = "float[1,n] y") -> ModelProto:
    return model(TAKEN.format(body=body, outputs=outputs), CONSTANTS)


@pytest.mark.parametrize("body", BODIES)
def test_rows_that_are_computed_alone(body: str, tmp_path: Path) -> None:
    source = taken(BODIES[body])
    static = shaped(tmp_path, source, n=7).folder / MODEL
    random = np.random.default_rng(0)
    for chosen in (7, 3, 0):
        x = np.abs(random.normal(size=(1, 7))).astype(np.float32)
        x[0, random.permutation(7)[chosen:]] *= -1
        feeds = {"x": x, "h": random.normal(size=(1, 7, 3)).astype(np.float32)}
        (right,) = outputs(source, feeds)
        (got,) = outputs(static, feeds)
        np.testing.assert_allclose(got, right, rtol=1e-6)


MIXED = {
    "a sum of rows": "s = ReduceSum <keepdims = 1> (v, start)  out = Mul (v, s)",
    "a softmax over rows": "out = Softmax <axis = 0> (v)",
    "a row beside another": "out = CumSum (v, first)",
    "how many there are": "d0 = Shape (v)  f = Cast <to = 1> (d0)  out = Div (v, f)",
    "their numbers": """d0 = Shape (v)  n0 = Squeeze (d0)  r = Range (first, n0, one)  f = Cast <to = 1> (r)
        out = Add (v, f)""",
    "rows of another mask": "out = Mul (v, others)",
    "the first row": "out = Slice (v, start, second)",
    "rows turned": "t = Transpose (rows)  r = Transpose (t)  out = ReduceSum <keepdims = 0> (r, second)",
}


@pytest.mark.parametrize("body", MIXED)
def test_rows_that_are_mixed_are_refused_as_before(body: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the output shape of node '[ab]' \(NonZero\) depends on data"):
        shaped(tmp_path, ingested(tmp_path / "in", taken(MIXED[body])), n=7)


@pytest.mark.parametrize(
    ("outputs", "body"),
    [("float[1,n] y, float[k] v", "out = Neg (v)"), ("float[1,n] y, int64[1] m", "m = Shape (v)  out = Neg (v)")],
)
def test_rows_and_their_number_are_no_outputs(outputs: str, body: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"node 'b' \(NonZero\) depends on data"):
        shaped(tmp_path, ingested(tmp_path / "in", taken(body, outputs)), n=7)


def test_one_row_is_not_made_several(tmp_path: Path) -> None:
    text = TAKEN.format(body="t = Expand (v, three)  out = ReduceSum (t, start)", outputs="float[1,n] y")
    source = ingested(tmp_path / "in", model(text, {**CONSTANTS, "three": np.array([3])}))
    with pytest.raises(ModelError, match=r"node 'b' \(NonZero\) depends on data"):
        shaped(tmp_path, source, n=1)
