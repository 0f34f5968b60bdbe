from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import shape_inference

from pipeline.graph.accuracy.figures.output_structure import NOTHING_KNOWN, Makeup, Part, makeup_of_outputs
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
        (
            "s = Sigmoid (z) a = Concat <axis = 1> (x, s) t = Sigmoid (x) b = Concat <axis = 1> (z, t)"
            " y = Concat <axis = 2> (a, b)",
            Makeup(axis=2, parts=(Part(0, 5, False), Part(5, 10, False))),
        ),
        (
            "s = Sigmoid (z) a = Concat <axis = 1> (x, s) b = Concat <axis = 1> (x, s) c = Concat <axis = 2> (a, b)"
            " y = Transpose <perm = [0, 2, 1]> (c)",
            Makeup(axis=2, parts=(Part(0, 4, False), Part(4, 6, True))),
        ),
    ],
)
def test_what_is_known_of_an_output_by_construction(body: str, expected: Makeup) -> None:
    assert makeup_of_outputs(index_of(body))["y"] == expected


@pytest.mark.parametrize(
    ("body", "classes"),
    [
        ("m = MatMul (x, w) s = Mul (m, b) y = Add (s, b)", 3),
        ("p = MatMul (x, w) y = Add (p, b)", 3),
        ("p = MatMul (x, w) t = Transpose <perm = [0, 2, 1]> (p) y = LogSoftmax <axis = 1> (t)", 3),
        ("f = Flatten <axis = 2> (x) g = Gemm <transB = 1> (f, v) y = Unsqueeze (g, zero)", 3),
        ("p = MatMul (x, w) y = Relu (p)", 0),
        ("p = MatMul (x, w) q = Add (p, p) y = Identity (q)", 0),
    ],
)
def test_a_last_product_makes_scores_of_classes(body: str, classes: int) -> None:
    constants = {
        "w": np.ones((5, 3), np.float32),
        "v": np.ones((3, 5), np.float32),
        "b": np.ones(3, np.float32),
        "zero": np.array([0]),
    }
    model = graph(f"g (float[1,4,5] x) => (float[a,b,c] y) {{ {body} }}", constants)
    index = GraphIndex(shape_inference.infer_shapes(model), Path())
    assert makeup_of_outputs(index)["y"].classes == classes


def test_scores_of_several_scales_are_told_from_boxes_through_moves() -> None:
    """As YOLO joins them: each scale's boxes and scores, made flat, and then the scales."""
    model = graph(
        "g (float[1,3,2,2,7] big, float[1,3,1,1,7] small) => (float[a,b,c] y) {"
        " s = Sigmoid (big) box, more, rest = Split <axis = 4> (s, cut) far = Mul (box, scale)"
        " one = Concat <axis = 4> (far, more, rest) flat = Reshape (one, many)"
        " s2 = Sigmoid (small) box2, more2, rest2 = Split <axis = 4> (s2, cut) far2 = Mul (box2, scale)"
        " two = Concat <axis = 4> (far2, more2, rest2) flat2 = Reshape (two, few)"
        " y = Concat <axis = 1> (flat, flat2) }",
        {
            "cut": np.array([4, 1, 2]),
            "scale": np.float32(640),
            "many": np.array([1, 12, 7]),
            "few": np.array([1, 3, 7]),
        },
    )
    index = GraphIndex(shape_inference.infer_shapes(model, data_prop=True), Path())
    parts = (Part(0, 4, False), Part(4, 5, True), Part(5, 7, True))
    assert makeup_of_outputs(index)["y"] == Makeup(axis=2, parts=parts)


UINT8, INT64 = "uint8[a,b,c] y", "int64[a,b,c] y"


@pytest.mark.parametrize(
    ("body", "result", "zero"),
    [
        ("s = Sigmoid (x) m = Mul (s, top) r = Round (m) y = Cast <to = 2> (r)", UINT8, 0.0),
        ("e = Exp (x) c = Cast <to = 7> (e) y = Transpose <perm = [2, 0, 1]> (c)", INT64, 0.0),
        ("e = Exp (x) q = QuantizeLinear (e, hi, middle) y = Reshape (q, dims)", UINT8, 128.0),
        (
            "q = QuantizeLinear (x, hi, middle) p = Transpose (q) r = Transpose (q) y = Concat <axis = 1> (p, r)",
            UINT8,
            128.0,
        ),
        (
            "q = QuantizeLinear (x, hi, middle) r = QuantizeLinear (x, hi, nil) y = Concat <axis = 1> (q, r)",
            UINT8,
            None,
        ),
        ("y = Cast <to = 7> (x)", INT64, 0.0),
        ("a = ArgMax <axis = 1> (x) y = Cast <to = 6> (a)", "int32[a,b,c] y", None),
        ("a = ArgMax <axis = 1> (x) f = Cast <to = 1> (a) m = Mul (f, top) y = Cast <to = 2> (m)", UINT8, None),
        ("c = Greater (x, hi) y = Cast <to = 2> (c)", UINT8, None),
        ("c = Greater (x, hi) w = Where (c, hi, lo) y = Cast <to = 2> (w)", UINT8, None),
        ("v, y = TopK (x, one)", INT64, None),
        ("s = Sigmoid (x) y = Mul (s, top)", "float[a,b,c] y", None),
    ],
)
def test_integers_that_are_rounded_numbers(body: str, result: str, zero: float | None) -> None:
    constants: dict[str, Any] = CONSTANTS | {
        "middle": np.uint8(128),
        "nil": np.uint8(0),
        "dims": np.array([4, 5, 1]),
        "one": np.array([1]),
    }
    model = graph(f"g (float[1,4,5] x) => ({result}) {{ {body} }}", constants)
    index = GraphIndex(shape_inference.infer_shapes(model), Path())
    assert makeup_of_outputs(index)["y"].zero == zero
