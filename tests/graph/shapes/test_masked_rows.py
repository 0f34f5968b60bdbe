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
    "table": np.arange(9, dtype=np.float32), "under": np.array([-9]), "seven": np.array([7, -1]),
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
    "a row as often as there are": """d0 = Shape (v)  both = Concat <axis = 0> (d0, d0)  u = Unsqueeze (v, second)
        t = Expand (u, both)  out = ReduceSum <keepdims = 0> (t, second)""",
    "a sum of rows": "s = ReduceSum <keepdims = 1> (v, start)  out = Mul (v, s)",
    "a softmax over rows": "out = Softmax <axis = 0> (v)",
    "a row beside another": "out = CumSum (v, first)",
    "how many there are": "d0 = Shape (v)  f = Cast <to = 1> (d0)  out = Div (v, f)",
    "their numbers": """d0 = Shape (v)  n0 = Squeeze (d0)  r = Range (first, n0, one)  f = Cast <to = 1> (r)
        out = Add (v, f)""",
    "rows of another mask": "out = Mul (v, others)",
    "the first row": "out = Slice (v, start, second)",
    "a number for how many there are": "d0 = Shape (v)  t = Gather (table, d0)  out = Mul (v, t)",
    "whether it is one": "d0 = Shape (v)  e = Equal (d0, second)  out = Where (e, v, zero)",
    "how many there are, put back": "d0 = Shape (v)  t = Gather (table, d0)  out = Expand (t, d0)",
    "their numbers, by NonZero": """d0 = Shape (v)  o = ConstantOfShape (d0)  e = Equal (o, o)  z = NonZero (e)
        s = ReduceMax <keepdims = 0> (z)  t = Gather (table, s)  out = Mul (v, t)""",
    "their shape from behind": """d0 = Shape (rows)  e = Slice (d0, second, under, start, last)  t = Gather (table, e)
        w1 = Slice (t, last, end)  out = Mul (v, w1)""",
    "what is chosen among them": """g2 = Greater (v, half)  b2 = NonZero (g2)  at2 = Transpose <perm = [1, 0]> (b2)
        t = GatherND (table, at2)  m = ReduceMean <keepdims = 0> (t)  out = Mul (v, m)""",
    "groups of rows": "r = Reshape (rows, seven)  s = ReduceSum <keepdims = 0> (r, second)  out = Reshape (s, flat)",
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


FLAT = """g (float[n] x, float[n,2] h) => ({outputs}) {{
    chosen = Greater (x, zero)  b = NonZero (chosen)  at = Transpose <perm = [1, 0]> (b)  v = GatherND (x, at)
    rows = GatherND (h, at)  {body} }}"""


def test_rows_of_a_mask_of_one_axis(tmp_path: Path) -> None:
    text = FLAT.format(outputs="float[n] y, float[n,2] z", body="""a = Neg (v)  y = ScatterND (x, at, a)
        s = Sigmoid (rows)  z = ScatterND (h, at, s)""")  # fmt: skip
    source = model(text, CONSTANTS)
    static = shaped(tmp_path, source, n=3).folder / MODEL
    for x in ([1, -2, 3], [-1, -2, -3], [1, 2, 3]):
        feeds = {"x": np.array(x, np.float32), "h": np.arange(6, dtype=np.float32).reshape(3, 2)}
        for right, got in zip(outputs(source, feeds), outputs(static, feeds), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-6)


@pytest.mark.parametrize("taken", ["v", "rows"])
def test_a_mean_of_rows_of_a_mask_of_one_axis_is_refused(taken: str, tmp_path: Path) -> None:
    text = FLAT.format(outputs="float y", body=f"y = ReduceMean <keepdims = 0> ({taken})")
    with pytest.raises(ModelError, match=r"node 'b' \(NonZero\) depends on data"):
        shaped(tmp_path, ingested(tmp_path / "in", model(text, CONSTANTS)), n=3)


NUMBERS = """g (int64[1,n] x, bool[1,n] mask) => (int64[1,n] y) {{
    b = NonZero (mask)  at = Transpose <perm = [1, 0]> (b)  v = GatherND (x, at)
    count = Shape (v)  {body}  y = ScatterND (x, at, out) }}"""


@pytest.mark.parametrize("body", ["out = Add (v, count)", "out = Expand (count, count)"])
def test_how_many_there_are_is_no_number_to_compute_with(body: str, tmp_path: Path) -> None:
    source = ingested(tmp_path / "in", model(NUMBERS.format(body=body)))
    with pytest.raises(ModelError, match=r"node 'b' \(NonZero\) depends on data"):
        shaped(tmp_path, source, n=7)


def test_zeros_for_each_are_numbers_to_compute_with(tmp_path: Path) -> None:
    source = model(NUMBERS.format(body="z = ConstantOfShape <value = int64[1] {1}> (count)  out = Add (v, z)"))
    static = shaped(tmp_path, source, n=4).folder / MODEL
    feeds = {"x": np.arange(4).reshape(1, 4), "mask": np.array([[True, False, True, False]])}
    np.testing.assert_array_equal(outputs(static, feeds)[0], [[1, 1, 3, 3]])


def test_one_row_is_not_taken_for_all(tmp_path: Path) -> None:
    text = TAKEN.format(
        body="""k = GatherElements <axis = 1> (rows, of_first)  p = Mul (rows, k)
            out = ReduceSum <keepdims = 0> (p, second)""",
        outputs="float[1,n] y",
    )
    source = ingested(tmp_path / "in", model(text, {**CONSTANTS, "of_first": np.array([[0]])}))
    with pytest.raises(ModelError, match=r"node 'b' \(NonZero\) depends on data"):
        shaped(tmp_path, source, n=7)
