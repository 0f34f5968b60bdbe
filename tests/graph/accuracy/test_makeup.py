from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import shape_inference

from pipeline.graph.accuracy.choices import argmax_outputs
from pipeline.graph.accuracy.makeup import NOTHING_KNOWN, Makeup, Part, makeup_of_outputs
from pipeline.graph.ir.index import GraphIndex
from tests.support.graphs import graph

ALL = Makeup(bounded=True)
CONSTANTS = {"lo": np.float32(0), "hi": np.float32(1), "top": np.float32(6)}


def index_of(body: str, result: str = "float[a,b,c] y") -> GraphIndex:
    model = graph(f"g (float[1,4,5] x, float[1,2,5] z) => ({result}) {{ {body} }}", CONSTANTS)
    return GraphIndex(shape_inference.infer_shapes(model), Path())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Sigmoid (x)", ALL),
        (
            "s = HardSigmoid (x) m = ReduceMax <axes = [2]> (s) y = Transpose <perm = [2, 0, 1]> (m)",
            Makeup(bounded=True),
        ),
        ("y = Softmax <axis = 1> (x)", Makeup(bounded=True, shares=True)),
        ("y = Clip (x, lo, hi)", ALL),
        ("a = Sigmoid (x) b = Sigmoid (z) y = Concat <axis = 1> (a, b)", ALL),
        ("a = Sigmoid (x) b = Softmax (x) y = Mul (a, b)", ALL),
        ("b = Sigmoid (z) y = Concat <axis = 1> (x, b)", Makeup(axis=1, parts=(Part(0, 4, False), Part(4, 6, True)))),
        (
            "a = Sigmoid (x) c = Concat <axis = 1> (a, z) y = Transpose <perm = [0, 2, 1]> (c)",
            Makeup(axis=2, parts=(Part(0, 4, True), Part(4, 6, False))),
        ),
        ("c = Clip (x, lo, top) y = Sqrt (c)", NOTHING_KNOWN),
        ("a = Sigmoid (x) y = Add (a, a)", NOTHING_KNOWN),
        ("y = Concat <axis = 1> (x, z)", Makeup(axis=1, parts=(Part(0, 4, False), Part(4, 6, False)))),
        (
            "b = Sigmoid (z) c = Concat <axis = -2> (z, b) y = Concat <axis = 1> (x, c)",
            Makeup(axis=1, parts=(Part(0, 4, False), Part(4, 6, False), Part(6, 8, True))),
        ),
        ("a = Sigmoid (x) b = Concat <axis = 1> (a, z) y = Exp (b)", NOTHING_KNOWN),
    ],
)
def test_what_is_known_of_an_output_by_construction(body: str, expected: Makeup) -> None:
    assert makeup_of_outputs(index_of(body))["y"] == expected


def test_what_an_argmax_chose_from() -> None:
    found = argmax_outputs(index_of("a = ArgMax <axis = 1, keepdims = 0> (x) y = Cast <to = 6> (a)", "int32[1,5] y"))
    assert found == {"y": ("x", 1)}
    assert not argmax_outputs(index_of("y = Relu (x)"))
