"""An If on data is computed both ways and chosen from, where its branches give values of one shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline.errors import ModelError
from tests.support.on_htp import on_chip, with_rewrites
from tests.support.sources import model, shaped

ELSE = "else_branch = e () => (float[n,4] q) { q = Neg (x) }>"
# What the branch may only compute where the sum of x is above zero: it is 0, then far below, in two of the feeds.
HAZARDS = {
    "a division of integers by zero": "f = Div (hundred, t)  r = Cast <to = 1> (f)  p = Mul (x, r)",
    "a remainder by zero": "f = Mod (hundred, t)  r = Cast <to = 1> (f)  p = Mul (x, r)",
    "a value that is named as a guard might be": "f = Div (hundred, t)  f_guarded = Cast <to = 1> (f)"
    "  p = Mul (x, f_guarded)",
    "a row that a table has not": "r = Gather (table, t)  p = Mul (x, r)",
    "elements out of range": "p = GatherElements (x, k)",
    "an index of more dims": "j = Unsqueeze (u, one)  f = GatherND (table, j)  p = Mul (x, f)",
    "a place to write that is not there": "f = ScatterElements (x, k, x)  p = Identity (f)",
    "an If inside that does not ask again": "p = If (d) <then_branch = a () => (float[n,4] v) { r = Gather (table, t)"
    "  v = Mul (x, r) }, else_branch = b () => (float[n,4] w) { g = Neg (t)  h = Add (g, ten)  r = Gather (table, h)"
    "  w = Mul (x, r) }>",
}
HAZARD_TABLES: dict[str, NDArray[Any]] = {
    "hundred": np.array([100], np.int64),
    "table": np.arange(40, dtype=np.float32).reshape(10, 4),
    "one": np.array([1]),
    "ten": np.array(10),
    "five": np.array(5, np.float32),
}
TAIL = "s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)"
ZERO: dict[str, NDArray[Any]] = {"zero": np.array(0, np.float32)}
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


@pytest.mark.parametrize("text", HAZARDS.values(), ids=HAZARDS)
@pytest.mark.parametrize("which", ["then", "else"])
def test_what_the_if_kept_from_a_branch_is_kept_from_it(text: str, which: str, tmp_path: Path) -> None:
    source = _guarded_by_an_if(text, which)
    made = shaped(tmp_path, source, n=2).folder / "model.onnx"
    for x in _HAZARDOUS:
        np.testing.assert_array_equal(_run(made, x), _run(source.SerializeToString(), x))


@pytest.mark.parametrize(
    "text", ["r = Gather (x, two)  p = Mul (x, r)", "f = Div (hundred, hundred)  p = Identity (x)"]
)
def test_constants_within_range_need_no_guard(text: str, tmp_path: Path) -> None:
    text = f"y = If (c) <then_branch = t0 () => (float[n,4] p) {{ {text} }}, {ELSE}"
    source = model(
        f"g (float[n,4] x) => (float[n,4] y) {{ {TAIL}  {text} }}", ZERO | HAZARD_TABLES | {"two": np.array([-1, 1])}
    )
    made = onnx.load(shaped(tmp_path, source, n=2).folder / "model.onnx", load_external_data=False)
    assert [node.op_type for node in made.graph.node].count("Where") == 1


@pytest.mark.slow
def test_a_branch_with_guards_runs_on_the_chip(tmp_path: Path) -> None:
    source = _guarded_by_an_if(HAZARDS["a row that a table has not"], "then")
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    feeds = [{"x": x} for x in _HAZARDOUS]
    ran = on_chip(with_rewrites(tmp_path / "model", source).rewrite["all"], feeds, tmp_path / "chip")
    assert not ran.cpu_ops
    for feed, given in zip(feeds, ran.outputs, strict=True):
        np.testing.assert_allclose(given["y"], _run(source.SerializeToString(), feed["x"]), rtol=1e-3)


_HAZARDOUS = [
    np.array(given, np.float32).reshape(2, 4)
    for given in ([1, -1, 1, 1, 1, 0, 1, 0], [1, -1, 1, 1, 1, 1, 1, 1], [0] * 8, [-9] * 8)
]


def _guarded_by_an_if(text: str, which: str) -> onnx.ModelProto:
    """A branch that asks for what may not be there, in an If that only chooses it where it is."""
    branch, other = f"=> (float[n,4] p) {{ {text} }}", "=> (float[n,4] q) { q = Neg (x) }"
    first, second = (branch, other) if which == "then" else (other, branch)
    asked = "c" if which == "then" else "m"
    choice = f"y = If ({asked}) <then_branch = t0 () {first}, else_branch = e () {second}>"
    more = "d = Greater (s, five)  m = Not (c)  k = Cast <to = 7> (x)  t = Cast <to = 7> (s)  u = Cast <to = 7> (i)"
    tail = f"{TAIL}  i = ReduceSum <keepdims = 0> (x, one)  {more}"
    used = {name: values for name, values in HAZARD_TABLES.items() if name in f"{tail} {text}"}
    return model(f"g (float[n,4] x) => (float[n,4] y) {{ {tail}  {choice} }}", ZERO | used)


def test_branches_of_other_shapes_are_refused(tmp_path: Path) -> None:
    text = "y = If (c) <then_branch = t () => (float[a,b] p) { p = Relu (x) }, else_branch = e () => (float[a,b] q) {"
    source = model(f"g (float[n,4] x) => (float[a,b] y) {{ {TAIL}  {text} q = Concat <axis = 0> (x, x) }}> }}", ZERO)
    with pytest.raises(ModelError, match="what node 'y' \\(If\\) runs depends on data") as caught:
        shaped(tmp_path, source, n=2)
    assert "so that both give values of the same shapes" in caught.value.remedy


def test_a_flag_is_to_be_fixed_and_not_to_be_exported_otherwise(tmp_path: Path) -> None:
    text = "y = If (c) <then_branch = t () => (float[2,4] p) { p = Relu (x) }, else_branch = e () => (float[2,4] q) {"
    source = model(f"g (bool c, float[n,4] x) => (float[n,4] y) {{ {text} q = Neg (x) }}> }}", {})
    with pytest.raises(ModelError, match="what node 'y' \\(If\\) runs depends on data") as caught:
        shaped(tmp_path, source, n=2)
    assert "constants: {c: <its value>}; else export each branch as a model of its own" in caught.value.remedy
    assert "same shapes" not in caught.value.remedy


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
