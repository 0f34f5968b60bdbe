"""What can't be given static shapes is refused by name: the axis, the node, the input that decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, ModelError
from tests.support import graphs
from tests.support.sources import model, shaped


def test_axes_without_a_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an axis has no value: 'sequence' \(of 'input_ids', 'attention_mask'\)"):
        shaped(tmp_path, graphs.attention(), batch=1)


def test_axes_that_contradict_each_other(tmp_path: Path) -> None:
    source = model("g (float[b,text] x, float[b,latent] z) => (float[b,n] y) { [mix] y = Add (x, z) }")
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, source, b=1, text=64, latent=32)
    assert caught.value.exit_code == 12
    assert str(caught.value) == (
        "with these axis values node 'mix' (Add) gets inputs that contradict each other\n"
        "  where: 'x' float32 [1, 64], 'z' float32 [1, 32]\n"
        "  why: Incompatible dimensions; the axes are b = 1, text = 64, latent = 32\n"
        "  next: if some of these axes belong together, choose values that the model allows as a set; if it allows none"
        " but those it was exported with, the exporter wrote these into it: export it again, say with torch's"
        " dynamo=True"
    )


def test_a_list_that_is_asked_for_more_than_it_holds(tmp_path: Path) -> None:
    source = model(
        "g (float[2] x, float[2] z) => (float[2] y) <int64 first = {0}, int64 second = {1}>"
        " { s = SequenceConstruct (x, z) t = SequenceErase (s, first) [at] y = SequenceAt (t, second) }"
    )
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, source)
    assert "node 'at' (SequenceAt) gets inputs that contradict each other\n" in str(caught.value)
    assert "where: 't' no tensor, 'second' int64 []\n" in str(caught.value)
    assert "why: the list holds 1 tensors, and place 1 is asked for\n" in str(caught.value)


def test_a_model_without_axes_that_contradicts_itself(tmp_path: Path) -> None:
    source = model("g (float[b,64] x, float[c,32] z) => (float[b,n] y) { [mix] y = Add (x, z) }")
    for value in source.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, source)
    assert str(caught.value) == (
        "node 'mix' (Add) gets inputs that contradict each other\n"
        "  where: 'x' float32 [1, 64], 'z' float32 [1, 32]\n"
        "  why: Incompatible dimensions\n"
        "  next: no engine runs the model as it is: export it again, say with torch's dynamo=True, or mend what the"
        " config's 'constants' give it"
    )


X = "g (float[n,4] x, int64[1] k) => (float[a,b] y)"
DATA: list[tuple[str, list[str]]] = [
    ("{ r = Relu (x)  i = NonZero (r)  t = Transpose (i)  y = GatherND (x, t) }",
     ["the output shape of node 'i' (NonZero) depends on data",
      "where: its input 'r', computed from 'x'",
      "why: output 'i' is int64 [2, ?]: only the values at run time say how large, and HTP runs fixed shapes",
      "next: end the component before it with cut: ['r'] in the config, and do the rest in the application, or in a"
      " component of its own for what is behind it, with begin: ['i']; or keep all"
      " elements and mask those you don't want, with Where or a multiplication"]),
    ("{ c = Cast <to = 9> (x)  f = Flatten <axis = 0> (c)  s = Squeeze (f)  y = Compress (x, s) }",
     ["node 'y' (Compress) depends on data", "its input 's', computed from 'x'"]),
    ("{ y, i = TopK (x, k) }",
     ["node 'y' (TopK) depends on data", "its input 'k'", "export the model with a constant k"]),
    ("{ u = Unique (x)  y = Relu (u) }", ["node 'u' (Unique) depends on data", "its input 'x'"]),
    ("{ h = Shape <end = 1> (x)  s = Concat <axis = 0> (h, k)  y = Reshape (x, s) }",
     ["node 'y' (Reshape) depends on data", "its input 's', computed from 'k'"]),
    ("{ y = Slice (x, k, k) }", ["node 'y' (Slice) depends on data", "its input 'k'\n"]),
    ("{ s = SplitToSequence <axis = 0> (x)  y = SequenceAt (s, k) }",
     ["what node 'y' (SequenceAt) does to a list depends on data", "its input 'k'", "don't split them"]),
    ("{ s = ReduceSum <keepdims = 0> (x)  c = Cast <to = 9> (s)  y = If (c) <"
     "then_branch = t () => (float[a,b] p) { p = Relu (x) }, else_branch = e () => (float[a,b] q) {"
     " q = Concat <axis = 0> (x, x) }> }",
     ["what node 'y' (If) runs depends on data", "its input 'c', computed from 'x'", "unmerged files beside it"]),
    ("{ c = Constant <value_int = 1> ()  t = Cast <to = 9> (c)  q = Squeeze (k)  y = Loop (q, t, x) <"
     "body = l (int64 i, bool m, float[n,4] v) => (bool o, float[n,4] w) { o = Identity (m)  w = Relu (v) }> }",
     ["what node 'y' (Loop) runs depends on data", "its input 'q', computed from 'k'", "constants: {k: <its value>}",
      "then it is unrolled here"]),
    ("{ y = ai.onnx.ml.Normalizer (x) }",
     ["the output shape of node 'y' (ai.onnx.ml::Normalizer) can't be told", "neither ONNX nor onnxruntime"]),
    ("{ y = com.microsoft.Unknown (x) }", ["node 'y' (com.microsoft::Unknown)"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), DATA)
def test_shapes_that_depend_on_data(text: str, expected: list[str], tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, model(X + text), n=8)
    for part in expected:
        assert part in str(caught.value)


def test_reshapes_to_another_number_of_elements(tmp_path: Path) -> None:
    source = model("g (float[n,4] x) => (float[a,b] y) { y = Reshape (x, s) }", {"s": np.array([16, 4])})
    with pytest.raises(ModelError, match=r"'y' \(Reshape\) gets inputs that contradict each other") as caught:
        shaped(tmp_path, source, n=8)
    assert caught.value.why == "[8, 4] has 32 elements, [16, 4] has 64; the axes are n = 8"


def test_outputs_of_another_type_than_the_model_declares(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="output 'y' is not what the model declares") as caught:
        shaped(tmp_path, model("g (float[n,4] x) => (int32[n,4] y) { y = Relu (x) }"), n=8)
    assert caught.value.where.endswith("computed float32 [8, 4]")


def test_constants_that_nothing_can_compute(tmp_path: Path) -> None:
    source = model(
        """g (float[n] x) => (float[n] y) {
            s = Shape (x)  z = Sub (s, s)  d = Div (s, z)  f = Cast <to = 1> (d)  y = Add (x, f)
        }"""
    )
    with pytest.raises(ModelError, match=r"node 'd' \(Div\) is constant, and onnxruntime can't evaluate it") as caught:
        shaped(tmp_path, source, n=8)
    assert caught.value.where == "'s': int64 [1], 'z': int64 [1]"
    assert "division by zero" in caught.value.why


def test_a_bucket_that_leaves_nothing_of_a_value(tmp_path: Path) -> None:
    source = model(
        """g (float[1,1,n] x, float[1,1,2] w) => (float[1,1,m] y, float[1,1,n] z) {
            from = Constant <value = int64[1] {4}> ()  to = Constant <value = int64[1] {1000}> ()
            axis = Constant <value = int64[1] {2}> ()  rest = Slice (x, from, to, axis)
            k = Constant <value = float[1,1,2] {1, 1}> ()  y = Conv (rest, k)  z = Neg (x) }"""
    )
    with pytest.raises(ModelError, match="can't evaluate it") as caught:
        shaped(tmp_path, source, n=4)
    assert caught.value.remedy.startswith("take larger sizes in the config")
    assert caught.value.remedy.endswith("nothing is left of 'rest'")
