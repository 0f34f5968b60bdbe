"""Functions of a model are written out as onnxruntime computes them: attributes, opsets, names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, helper, parser

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL
from tests.support.sources import numbers, outputs, shaped

X = "g (float[2,3] x) => (float[n,m] y)"
IMPORTS = 'opset_import: ["" : 18, "my" : 1, "com.microsoft" : 1]'
ACT = f'<domain: "my", {IMPORTS}> act <slope: float = 0.3> (a) => (b) {{ b = LeakyRelu <alpha: float = @slope> (a) }}'


def model(main: str, *functions: str) -> ModelProto:
    text = "\n".join((f"<ir_version: 10, {IMPORTS}> {X} {{ {main} }}", *functions))
    parsed: ModelProto = parser.parse_model(text)
    return parsed


def function(head: str, body: str, imports: str = IMPORTS, domain: str = "my") -> str:
    return f'<domain: "{domain}", {imports}> {head} {{ {body} }}'


BRANCHES = """b = If (c) <then_branch = t () => (float[2,3] q) { q = LeakyRelu <alpha: float = @slope> (a) },
    else_branch = e () => (float[2,3] r) { r = Elu <alpha: float = @slope> (a) }>"""
LOOP = """n = Constant <value_int = 2> () t = Constant <value = bool {1}> ()
    b = Loop (n, t, a) <body = l (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] next)
    { on = Identity (go) next = LeakyRelu <alpha: float = @slope> (s) }>"""
CHOSEN = "c = Constant <value = bool {{{}}}> () y = my.act{} (x, c)"
SAME = {
    "a default": ("y = my.act (x)", ACT),
    "a default and a value": ("a = my.act (x) y = my.act <slope = 0.5> (a)", ACT),
    "a default in a call": (
        "y = my.outer (x)", ACT, function("outer <s: float = 0.7> (a) => (b)", "b = my.act <slope: float = @s> (a)"),
    ),
    "a call without the value that it hands on": (
        "y = my.outer (x)", ACT, function("outer <s> (a) => (b)", "b = my.act <slope: float = @s> (a)"),
    ),
    "neither value nor default": (
        "y = my.act (x)", function("act <s> (a) => (b)", "b = LeakyRelu <alpha: float = @s> (a)"),
    ),
    "a default in a branch": (CHOSEN.format(1, ""), function("act <slope: float = 0.3> (a, c) => (b)", BRANCHES)),
    "a value in a branch": (
        CHOSEN.format(0, "<slope = 0.4>"), function("act <slope: float = 0.3> (a, c) => (b)", BRANCHES),
    ),
    "a default in a loop": ("y = my.act (x)", function("act <slope: float = 0.3> (a) => (b)", LOOP)),
    "a tensor": (
        "y = my.act (x)",
        function("act <v: tensor = float[3] {1, 2, 3}> (a) => (b)",
            "t = Constant <value: tensor = @v> () b = Add (a, t)"),
    ),
    "whole numbers": (
        "y = my.act (x)", function("act <p: ints = [1, 0]> (a) => (b)", "b = Transpose <perm: ints = @p> (a)"),
    ),
    "text": (
        "y = my.act (x)",
        function('act <k: string = "edge"> (a) => (b)', """p = Constant <value_ints = [1, 0, 0, 2]> ()
            b = Pad <mode: string = @k> (a, p)"""),
    ),
    "an operator of onnxruntime": (
        "y = my.act (x)",
        function("act <s: float = 0.9> (a) => (b)", "b = com.microsoft.QuickGelu <alpha: float = @s> (a)"),
    ),
    "inputs left out": ("y = my.act (x)", function("act (a, low, high) => (b)", "b = Clip (a, low, high)")),
    "outputs left out": (
        ", y = my.act (x)", function("act (a) => (b, c)", "b = Neg (a) c = Exp (a)"),
    ),
    "names that are taken": (
        "t = Relu (x) u = my.act (t) v = my.act (u) y = Add (u, v)",
        function("act (x) => (y)", "t = Neg (x) u = Exp (t) y = Add (u, t)"),
    ),
    "an older opset that means the same": (
        "y = my.act (x)", function("act (a) => (b)", "b = Add (a, a)", 'opset_import: ["" : 13]'),
    ),
    "a function that nothing calls": ("y = Relu (x)", ACT),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_a_function_computes_what_it_did(case: str, tmp_path: Path) -> None:
    main, *functions = SAME[case]
    source, feeds = model(main, *functions), {"x": numbers(2, 3)}
    made = outputs(shaped(tmp_path, source).folder / MODEL, feeds)
    np.testing.assert_allclose(made[0], outputs(source, feeds)[0], rtol=1e-6)


def test_overloads_are_functions_of_their_own(tmp_path: Path) -> None:
    """Expected by hand: onnxruntime 1.31 finds only some of them."""
    source = model("a = my.act (x) y = my.act (a)", ACT, ACT.replace("0.3", "0.5"))
    source.functions[1].overload = source.graph.node[1].overload = "other"
    made = outputs(shaped(tmp_path, source).folder / MODEL, {"x": -np.ones((2, 3), np.float32)})
    np.testing.assert_allclose(made[0], np.full((2, 3), -0.15), rtol=1e-6)


REFUSED = {
    "an opset that means something else": (
        "act' is of opset 11, the model of 18, and Softmax is another operator there",
        "y = my.act (x)", function("act (a) => (b)", "b = Softmax (a)", 'opset_import: ["" : 11]'),
    ),
    "a name of an operator": (
        "'Relu' has the name of an operator of onnxruntime",
        "y = Relu (x)", function("Relu (a) => (b)", "b = Neg (a)", domain=""),
    ),
    "a name of an operator of onnxruntime": (
        "'QuickGelu' has the name of an operator of onnxruntime",
        "y = com.microsoft.QuickGelu (x)", function("QuickGelu (a) => (b)", "b = Neg (a)", domain="com.microsoft"),
    ),
    "two functions of one name": ("function 'act' is there twice", "y = my.act (x)", ACT, ACT),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_functions_that_mean_two_things_are_refused(case: str, tmp_path: Path) -> None:
    why, main, *functions = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, model(main, *functions))
    assert caught.value.what == "the functions of the model can't be written out where they are called"
    assert why in str(caught.value.why)


def test_a_graph_that_reads_what_is_around_its_call_is_refused(tmp_path: Path) -> None:
    source = model("y = my.act (x)", function("act <b> (a, c) => (r)", "r = Neg (a)"))
    inner = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["i"])], "i", [], [helper.make_empty_tensor_value_info("i")]
    )
    source.graph.node[0].attribute.append(AttributeProto(name="b", type=AttributeProto.GRAPH, g=inner))
    with pytest.raises(ModelError, match="can't be written out") as caught:
        shaped(tmp_path, source)
    assert "is a graph that reads 'x'" in str(caught.value.why)
