from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import prune
from pipeline.graph.rewrites import apply_all, make_masks_finite
from tests.support.graphs import constant, graph, operators, outputs, save

LOWEST = np.finfo(np.float32).min
SCORES = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32) * 5
MASK = np.array([[1, 1, 1, 0]], np.int64)

SELECTED = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    keep = Cast <to: int = 9> (mask)
    masked = Where (keep, scores, fill)
    y = Softmax (masked)
}"""
SELECTED_AND_ADDED = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    keep = Cast <to: int = 9> (mask)
    additive = Where (keep, zero, fill)
    square = Expand (additive, shape)
    masked = Add (scores, square)
    y = Softmax (masked)
}"""
SCALED = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    kept = Cast <to: int = 1> (mask)
    wide = Unsqueeze (kept, axes)
    dropped = Sub (one, wide)
    additive = Mul (dropped, fill)
    masked = Add (scores, additive)
    y = Softmax (masked)
}"""
SUBTRACTED = """g (float[1,2,4,4] scores, float[1,4] mask) => (float[1,2,4,4] y) {
    wide = Unsqueeze (mask, axes)
    dropped = Sub (one, wide)
    penalty = Mul (fill, dropped)
    masked = Sub (scores, penalty)
    y = Softmax (masked)
}"""
CAUSAL = """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
    masked = Add (scores, fill)
    y = Softmax (masked)
}"""
PADDED = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    kept = Cast <to: int = 1> (mask)
    cut = Slice (kept, first, last, along)
    around = Pad <mode = "MODE"> (cut, beside, FILL)
    dropped = Sub (one, around)
    additive = Mul (dropped, fill)
    masked = Add (scores, additive)
    y = Softmax (masked)
}"""
BOUNDED = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    keep = Cast <to: int = 9> (mask)
    additive = Where (keep, zero, minus_hundred)
    summed = Add (scores, additive)
    masked = Max (summed, fill)
    y = Softmax (masked)
}"""
INTEGERS = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    wide = Unsqueeze (mask, axes)
    dropped = Sub (whole, wide)
    penalty = Mul (dropped, fill)
    additive = Cast <to: int = 1> (penalty)
    masked = Add (scores, additive)
    y = Softmax (masked)
}"""
CLIPPED = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    kept = Cast <to: int = 1> (mask)
    dropped = Sub (one, kept)
    additive = Mul (dropped, fill)
    masked = Add (scores, additive)
    bounded = Clip (masked, below)
    y = Softmax (bounded)
}"""
LOOKED_UP = """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
    bias = Gather (fill, mask)
    rows = Transpose <perm: ints = [0, 2, 1]> (bias)
    masked = Add (scores, rows)
    y = Softmax (masked)
}"""
JOINED = """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
    bias = Concat <axis: int = 0> (zeros, fill)
    masked = Add (scores, bias)
    y = Softmax (masked)
}"""
AROUND = """g (float[1,2,4,4] scores) => (float[1,2,4,3] y) {
    around = Pad (scores, ends, fill)
    best = ArgMax <axis: int = -1> (scores)
    places = Add (best, window)
    near = GatherElements <axis: int = -1> (around, places)
    y = Softmax (near)
}"""
CONSTANTS: dict[str, ArrayLike] = {
    "ends": np.array([0, 0, 0, 1, 0, 0, 0, 1]), "window": np.array([0, 1, 2]),
    "zeros": np.zeros((2, 4), np.float32), "pick": np.arange(4),
    "first": np.array([1]), "last": np.array([3]), "along": np.array([1]), "beside": np.array([0, 1, 0, 1]),
    "zero": np.float32(0), "one": np.float32(1), "minus_hundred": np.float32(-100), "whole": np.int64(1),
    "below": np.float32(LOWEST), "shape": np.array([1, 2, 4, 4]), "axes": np.array([1, 2]),
}  # fmt: skip
TRIANGLE = np.triu(np.full((4, 4), -np.inf, np.float32), 1)

MASKS: dict[str, tuple[str, ArrayLike]] = {
    "where": (SELECTED, np.float32(-np.inf)),
    "where lowest": (SELECTED, np.float32(LOWEST)),
    "where, then add": (SELECTED_AND_ADDED, np.float32(LOWEST)),
    "bert": (SCALED, np.float32(-10000)),
    "1 - mask, float mask": (SUBTRACTED, np.float32(1e9)),
    "bert, padded with ones": (PADDED.replace("MODE", "constant").replace("FILL", "one"), np.float32(-10000)),
    "bert, padded with zeros": (PADDED.replace("MODE", "constant").replace(", FILL", ""), np.float32(-10000)),
    "bert, padded with copies": (PADDED.replace("MODE", "edge").replace(", FILL", ""), np.float32(-10000)),
    "causal constant": (CAUSAL, TRIANGLE),
    "bound": (BOUNDED, np.float32(LOWEST)),
    "bert, in integers": (INTEGERS, np.int64(-10000)),
    "the least integer": (INTEGERS, np.int64(-(2**63))),
    "clipped": (CLIPPED, np.float32(LOWEST)),
    "a row of a table": (LOOKED_UP, np.array([[-np.inf] * 4, [0.5, -1, 2, 0]], np.float32)),
    "a part of a constant": (JOINED, TRIANGLE[:2]),
    "what stands beside the first and the last": (AROUND, np.float32(-np.inf)),
}


def build(text: str, fill: ArrayLike, **more: ArrayLike) -> ModelProto:
    used = {name: value for name, value in {**CONSTANTS, **more}.items() if name in text}
    return graph(text, {**used, "fill": fill})


def feeds(model: ModelProto) -> dict[str, NDArray[Any]]:
    given: dict[str, NDArray[Any]] = {"scores": SCORES}
    for value in model.graph.input:
        if value.name == "mask":
            given["mask"] = MASK if value.type.tensor_type.elem_type == 7 else MASK.astype(np.float32)
    return given


@pytest.mark.parametrize("name", MASKS)
def test_a_huge_filler_becomes_100_and_the_result_stays(name: str, tmp_path: Path) -> None:
    model = build(*MASKS[name])
    before = outputs(model, feeds(model))["y"]

    assert make_masks_finite.apply(model, tmp_path) == 1 + (name == "clipped")
    prune(model)

    assert "Clip" not in operators(model)
    assert [tensor.name for tensor in model.graph.initializer if tensor.name.startswith("fill")] == ["fill_finite"]
    finite = constant(model, "fill_finite")
    assert np.isfinite(finite).all()
    assert np.abs(finite).max() == 100
    np.testing.assert_allclose(outputs(model, feeds(model))["y"], before, rtol=1e-6, atol=1e-30)
    assert make_masks_finite.apply(model, tmp_path) == 0, "a second run finds nothing to do"


def test_a_table_that_ends_elsewhere_is_not_read(tmp_path: Path) -> None:
    text = "g (int64[1,8] ids) => (float[1,8,64] y) { rows = Gather (fill, ids) y = Tanh (rows) }"
    model = load_graph(save(build(text, np.zeros((1024, 64), np.float32)), tmp_path))
    (tmp_path / "weights.bin").unlink()  # to read it fails
    assert make_masks_finite.apply(model, tmp_path) == 0


def test_a_table_is_read_in_pieces(tmp_path: Path) -> None:
    text = "g (int64[1,8] ids) => (float[1,8,64] y) { rows = Gather (fill, ids) y = Softmax (rows) }"
    table = np.zeros((1 << 16, 64), np.float32)
    model = load_graph(save(build(text, table), tmp_path))
    tracemalloc.start()
    assert make_masks_finite.apply(model, tmp_path) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < table.nbytes / 2


def test_the_sign_and_the_small_elements_of_a_constant_stay(tmp_path: Path) -> None:
    bias = np.array([[0, 0.5, -3.25, -np.inf], [1e30, 9999, -9999, -1e4]], np.float32).repeat(2, axis=0)
    model = build(CAUSAL, bias)

    make_masks_finite.apply(model, tmp_path)

    expected = [[0, 0.5, -3.25, -100], [100, 9999, -9999, -100]]
    np.testing.assert_array_equal(constant(model, "fill_finite"), np.array(expected, np.float32).repeat(2, axis=0))


def test_a_filler_that_is_scaled_down_later_still_arrives_as_100(tmp_path: Path) -> None:
    model = build(
        """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y) {
            keep = Cast <to: int = 9> (mask)
            masked = Where (keep, scores, fill)
            scaled = Div (masked, eight)
            y = Softmax (scaled)
        }""",
        np.float32(LOWEST),
        eight=np.float32(8),
    )
    before = outputs(model, feeds(model))["y"]

    assert make_masks_finite.apply(model, tmp_path) == 1

    assert constant(model, "fill_finite") == -800
    np.testing.assert_allclose(outputs(model, feeds(model))["y"], before, rtol=1e-6, atol=1e-30)


def test_one_constant_for_a_mask_and_for_something_else_is_split(tmp_path: Path) -> None:
    model = build(
        """g (float[1,2,4,4] scores, int64[1,4] mask) => (float[1,2,4,4] y, float[1,2,4,4] lowest) {
            keep = Cast <to: int = 9> (mask)
            masked = Where (keep, scores, fill)
            y = Softmax (masked)
            lowest = Max (scores, fill)
        }""",
        np.float32(-20000),
    )
    before = outputs(model, feeds(model))["lowest"]

    assert make_masks_finite.apply(model, tmp_path) == 1

    assert constant(model, "fill") == -20000
    np.testing.assert_array_equal(outputs(model, feeds(model))["lowest"], before)


LEFT_ALONE = {
    "no softmax after it": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
        y = Add (scores, fill)
    }""",
    "a table that is looked up for something else": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
        rows = Gather (triangle, pick)
        y = Add (scores, rows)
    }""",
    "a pool over what is padded": """g (float[1,2,4,4] scores) => (float[1,2,3,3] y) {
        around = Pad (scores, ends, fill)
        y = MaxPool <kernel_shape: ints = [4, 4]> (around)
    }""",
    "a nonlinear node in between": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
        sum = Add (scores, fill)
        squashed = Tanh (sum)
        y = Softmax (squashed)
    }""",
    "something else reads the masked scores": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y, bool[1,2,4,4] hidden) {
        sum = Add (scores, fill)
        hidden = Equal (sum, fill)
        y = Softmax (sum)
    }""",
    "the masked scores are an output": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y, float[1,2,4,4] sum) {
        sum = Add (scores, fill)
        y = Softmax (sum)
    }""",
    "a temperature, not a mask": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
        small = Sigmoid (scores)
        sharp = Mul (small, fill)
        y = Softmax (sharp)
    }""",
    "a clip that bounds the scores": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
        sum = Add (scores, fill)
        bounded = Clip (sum, thousandth)
        y = Softmax (bounded)
    }""",
    "a filler that is scaled away": """g (float[1,2,4,4] scores) => (float[1,2,4,4] y) {
        sum = Add (scores, fill)
        cold = Mul (sum, thousandth)
        y = Softmax (cold)
    }""",
    "a runtime temperature of masked scores": """g (float[1,2,4,4] scores, float[1] temperature) => (float[1,2,4,4] y) {
        sum = Add (scores, fill)
        scaled = Mul (sum, temperature)
        y = Softmax (scaled)
    }""",
    "a runtime scale for each key": """g (float[1,2,4,4] scores, float[1,1,1,4] weights) => (float[1,2,4,4] y) {
        sum = Add (scores, fill)
        scaled = Mul (sum, weights)
        y = Softmax (scaled)
    }""",
    "a runtime temperature of a mask": """g (float[1,2,4,4] scores, float[1,1,1,4] weights) => (float[1,2,4,4] y) {
        scaled = Mul (triangle, weights)
        sum = Add (scores, scaled)
        y = Softmax (sum)
    }""",
    "a runtime temperature of a filler": """g (float[1,2,4,4] scores, bool[1,4] keep, float[1] temperature)
            => (float[1,2,4,4] y) {
        scaled = Mul (temperature, fill)
        masked = Where (keep, scores, scaled)
        y = Softmax (masked)
    }""",
    "a mask with a temperature put around it": """g (float[1,2,4,4] scores, int64[1,2] mask) => (float[1,2,4,4] y) {
        kept = Cast <to: int = 1> (mask)
        around = Pad (kept, beside, thousandth)
        bias = Mul (around, fill)
        masked = Add (scores, bias)
        y = Softmax (masked)
    }""",
    "a mask with a temperature joined to it": """g (float[1,2,4,4] scores, int64[1,3] mask) => (float[1,2,4,4] y) {
        kept = Cast <to: int = 1> (mask)
        joined = Concat <axis: int = 1> (kept, temperatures)
        bias = Mul (joined, fill)
        masked = Add (scores, bias)
        y = Softmax (masked)
    }""",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_mask_is_left_alone(name: str, tmp_path: Path) -> None:
    model = build(
        LEFT_ALONE[name],
        np.float32(-20000),
        thousandth=np.float32(0.001),
        ends=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        temperatures=np.array([[0.0005]], np.float32),
        triangle=np.triu(np.full((4, 4), -2e4, "f4"), 1),
    )
    before = model.SerializeToString()

    assert make_masks_finite.apply(model, tmp_path) == 0

    assert model.SerializeToString() == before


def test_ordinary_constants_in_front_of_softmax_are_left_alone(tmp_path: Path) -> None:
    model = build(CAUSAL, np.linspace(-9999, 9999, 16, dtype=np.float32).reshape(4, 4))
    assert make_masks_finite.apply(model, tmp_path) == 0


def test_fp16_masks(tmp_path: Path) -> None:
    text = SELECTED.replace("float[", "float16[")
    model = graph(text, {"fill": np.array(np.finfo(np.float16).min)})

    assert make_masks_finite.apply(model, tmp_path) == 1

    finite = constant(model, "fill_finite")
    assert finite.dtype == np.float16
    assert finite == -100


def test_apply_all_drops_what_a_rewrite_no_longer_needs(tmp_path: Path) -> None:
    model = build(*MASKS["where, then add"])

    applied = apply_all(model, tmp_path)

    assert applied["make_masks_finite"] == 1

    names = {tensor.name for tensor in model.graph.initializer}
    assert names == {"zero", "shape", "fill_finite", "keep_constant"}
