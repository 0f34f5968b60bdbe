"""Whole numbers that HTP computes otherwise: the node is named, and no precision is advised or tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike

from tests.support import net_project
from tests.support.graphs import graph
from tests.support.net_project import CONFIG
from tests.support.project import Project

pytestmark = pytest.mark.slow

HASH = """g (int64[1,8] ids) => (float[1,8,4] y) {
    far = Mul (ids, big)
    place = Mod (far, count)
    y = Gather (table, place)
}"""
SQUARES = """g (int64[1,16] i, int64[1] more) => (int64[1] y, float[1,16] z) {
    squares = Mul (i, i)
    sum = ReduceSum <keepdims = 0> (squares, axis)
    y = Add (sum, more)
    f = Cast <to = 1> (i)
    z = Mul (f, small)
}"""


def project_of(root: Path, model: onnx.ModelProto, largest: int) -> Project:
    numbers = np.random.default_rng(1)
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in model.graph.input}
    samples = [{name: numbers.integers(-largest, largest, shape) for name, shape in shapes.items()} for _ in range(8)]
    return net_project.create(root, model, samples)


@pytest.mark.parametrize("precision", ["", "quantization: {precision: fp16}\n"])
def test_what_the_application_should_compute_is_named(precision: str, tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((97, 4)).astype(np.float32)
    constants: dict[str, ArrayLike] = {"big": np.int64(2654435761), "count": np.int64(97), "table": table}
    project = project_of(tmp_path, graph(HASH, constants), 50)
    project.write("configs/net.yaml", CONFIG + precision)
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "trying" not in run.text
    assert "HTP computes integers otherwise than ONNX defines them" in run.text
    assert "| 'far' 0.0 dB, 'Mul_0' (Mul): integers: " in run.text
    (advice,) = [line for line in run.text.splitlines() if line.startswith("  next:")]
    assert advice.startswith(
        "  next: no precision changes integers: give the model smaller ones; or let the application compute 'place',"
        " and export the model with that as its input; what was made"
    )


def test_the_model_may_end_before_it_as_it_says(tmp_path: Path) -> None:
    model = graph(SQUARES, {"axis": np.array([1]), "small": np.float32(1e-3)})
    project = project_of(tmp_path, model, 3000)
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "trying" not in run.text
    assert "'sum' 0.0 dB, 'ReduceSum_1' (ReduceSum): integers: 1 of 1 differ" in run.text
    assert "end the component before it with cut: ['squares', 'z'] in the config" in run.text
    project.edit("configs/net.yaml", "model.onnx}", "model.onnx, cut: ['squares', 'z']}")
    assert project.doit("build").status == 0, "though samples have 'more', which nothing reads now"


def test_labels_of_one_bucket_do_not_hide_behind_those_of_another(tmp_path: Path) -> None:
    """The longer bucket names another class throughout, on few samples; the shorter one is right on many."""
    text = """g (float[1,S,4] x) => (int64[1,S] y) {
        length = Shape <start = 1, end = 2> (x)
        long = Equal (length, whole)
        wrong = Cast <to = 7> (long)
        scores = MatMul (x, w)
        label = ArgMax <axis = 2, keepdims = 0> (scores)
        y = Add (label, wrong)
    }"""
    numbers = np.random.default_rng(1)
    weights = numbers.standard_normal((4, 6)).astype(np.float32)
    lengths = [*numbers.integers(3, 9, 120), *numbers.integers(20, 32, 8)]
    samples = [{"x": numbers.standard_normal((1, length, 4)).astype(np.float32)} for length in lengths]
    model = graph(text, {"whole": np.array([32]), "w": weights})
    config = CONFIG + "buckets: {S: [8, 32]}\nquantization: {activations: uint16, weights: uint8}\n"
    run = net_project.create(tmp_path, model, samples, config).doit("build", check=False)
    assert run.status == 16
    assert "the padding rung misses its threshold: output 'y' is 0.0 dB against the original model" in run.text
    assert "where: net/net/32, worst of" in run.text
    assert "Not tried, as verify:net/net/32 failed" in run.text


LOOKUP = "g (int64[1,8] ids) => (float[1,8,8] y) { e = Gather (table, ids)  y = MatMul (e, w) }"
GUARDED = """g (int64[1,8] ids) => (float[1,8,8] y) {
    empty = Less (ids, zero)
    safe = Where (empty, zero, ids)
    e = Gather (table, safe)
    none = Cast <to = 1> (empty)
    some = Sub (one, none)
    kept = Unsqueeze (some, last)
    f = Mul (e, kept)
    y = MatMul (f, w)
}"""


@pytest.mark.parametrize(
    ("text", "padding", "status", "told"),
    [
        (LOOKUP, -1, 16, "negative_index: 'ids' of 'Gather_0' (Gather): -1, limit 0: a lookup in integers takes no"),
        (LOOKUP, -100, 13, "indices element out of data bounds, idx=-100"),
        (GUARDED, -100, 0, "exact    exact"),
    ],
    ids=["the last row", "no row", "masked"],
)
def test_negative_ids_are_right_or_refused(text: str, padding: int, status: int, told: str, tmp_path: Path) -> None:
    """Ids that stand for nothing, at the end of each sample."""
    numbers = np.random.default_rng(0)
    constants: dict[str, ArrayLike] = {
        "table": numbers.standard_normal((50, 16)).astype(np.float32),
        "w": numbers.standard_normal((16, 8)).astype(np.float32),
        "zero": np.int64(0),
        "one": np.float32(1),
        "last": np.array([2]),
    }
    samples = [{"ids": numbers.integers(0, 50, (1, 8))} for _ in range(16)]
    for sample in samples:
        sample["ids"][:, numbers.integers(3, 8) :] = padding
    config = CONFIG + "quantization: {activations: uint16, weights: uint8}\n"
    run = net_project.create(tmp_path, graph(text, constants), samples, config).doit("build", check=False)
    assert run.status == status, run.text
    assert told in run.text
