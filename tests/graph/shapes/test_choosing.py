"""An If on data is computed both ways and chosen from, where its branches give values of one shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from pipeline.errors import ModelError
from tests.support.sources import model, shaped

TAIL = "s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)"
ZERO = {"zero": np.array(0, np.float32)}
BOTH = {
    "one output": "y = If (c) <then_branch = t () => (float[n,4] p) { p = Relu (x) }, else_branch = e () => (float[n,4]"
    " p) { p = Neg (x) }>",
    "an outer value, a constant, names that both have": "a, b = If (c) <then_branch = t () => (float[n,4] p,"
    " float[2] k) { p = Identity (x)  k = Constant <value_floats = [1.0, 2.0]> () }, else_branch = e () => (float[n,4]"
    " q, float[2] k) { q = Neg (x)  k = Constant <value_floats = [3.0, 4.0]> () }>"
    "  m = ReduceSum <keepdims = 0> (b)  y = Mul (a, m)",
    "an If in an If": "y = If (c) <then_branch = t () => (float[n,4] p) { p = Relu (x) }, else_branch = e () =>"
    " (float[n,4] q) { d = Greater (s, least)  q = If (d) <then_branch = u () => (float[n,4] v) { v = Neg (x) },"
    " else_branch = w () => (float[n,4] z) { z = Add (x, x) }> }>",
    "what is not chosen is no number": "y = If (c) <then_branch = t () => (float[n,4] p) { p = Sqrt (x) },"
    " else_branch = e () => (float[n,4] q) { q = Neg (x) }>",
    "a scalar": "v = If (c) <then_branch = t () => (float p) { p = Exp (s) }, else_branch = e () => (float q)"
    " { q = Neg (s) }>  y = Mul (x, v)",
    "a condition in dims": "e = Reshape (c, one)  y = If (e) <then_branch = t () => (float[n,4] p) { p = Relu (x) },"
    " else_branch = e () => (float[n,4] q) { q = Neg (x) }>",
}


@pytest.mark.parametrize("text", BOTH.values(), ids=BOTH)
def test_computes_what_the_if_does(text: str, tmp_path: Path) -> None:
    constants = ZERO | {"least": np.array(-20, np.float32), "one": np.array([1])}
    source = model(f"g (float[n,4] x) => (float[n,4] y) {{ {TAIL}  {text} }}", constants)
    made = shaped(tmp_path, source, n=2).folder / "model.onnx"
    assert "If" not in {node.op_type for node in onnx.load(made, load_external_data=False).graph.node}
    for given in ([1, -2, 3, 4, 5, 6, 7, 8], [-1, 2, -3, -4, 5, -6, -7, -0.5], [-9, -9, -9, -9, 1, 1, 1, 1]):
        x = np.array(given, np.float32).reshape(2, 4)
        np.testing.assert_array_equal(_run(made, x), _run(source.SerializeToString(), x))


def test_branches_of_other_shapes_are_refused(tmp_path: Path) -> None:
    text = "y = If (c) <then_branch = t () => (float[a,b] p) { p = Relu (x) }, else_branch = e () => (float[a,b] q) {"
    source = model(f"g (float[n,4] x) => (float[a,b] y) {{ {TAIL}  {text} q = Concat <axis = 0> (x, x) }}> }}", ZERO)
    with pytest.raises(ModelError, match="what node 'y' \\(If\\) runs depends on data") as caught:
        shaped(tmp_path, source, n=2)
    assert "so that both give values of the same shapes" in caught.value.remedy


def test_a_branch_that_can_not_be_made_static_is_named(tmp_path: Path) -> None:
    text = "y = If (c) <then_branch = t () => (float[a,b] p) { p = Relu (x) }, else_branch = e () => (float[a,b] q) {"
    inner = "z = NonZero (x)  f = Cast <to = 1> (z)  q = Transpose (f) }"
    source = model(f"g (float[n,4] x) => (float[a,b] y) {{ {TAIL}  {text} {inner}> }}", ZERO)
    with pytest.raises(ModelError, match="what node 'y' \\(If\\) runs depends on data") as caught:
        shaped(tmp_path, source, n=2)
    assert "computing both branches fails: the output shape of node 'y/else/z' (NonZero)" in caught.value.why


def test_a_flag_is_to_be_fixed(tmp_path: Path) -> None:
    text = "y = If (k) <then_branch = t () => (float[n,4] p) { p = Relu (x) }, else_branch = e () => (float[n,4] q) {"
    source = model(f"g (float[n,4] x, bool k) => (float[n,4] y) {{ {text} q = Neg (x) }}> }}")
    with pytest.raises(ModelError, match="depends on data") as caught:
        shaped(tmp_path, source, n=2)
    assert "constants: {k: <its value>}" in caught.value.remedy


def _run(
    source: Path | bytes, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return np.asarray(found)
