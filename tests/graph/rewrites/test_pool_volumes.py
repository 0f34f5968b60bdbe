from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.ir.axis_groups import MOST_DIMS
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.pools import pool_volumes
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

HEAD = "g (float[1,4,5,8,7] x) => (float[a,b,c,d,e] y)"
X = {"x": np.random.default_rng(0).normal(size=(1, 4, 5, 8, 7)).astype(np.float32)}
CONSTANTS: dict[str, NDArray[Any]] = {
    "gain": np.linspace(0.5, 2, 4, dtype=np.float32),
    "bias": np.linspace(-1, 1, 4, dtype=np.float32),
}  # fmt: skip
POOLS = {
    "plain": "MaxPool <kernel_shape = [2, 3, 2]> (x)",
    "padded": "MaxPool <kernel_shape = [2, 3, 2], strides = [2, 1, 2], pads = [1, 0, 1, 0, 2, 0]> (x)",
    "dilated": "MaxPool <kernel_shape = [2, 3, 2], dilations = [2, 2, 1]> (x)",
    "ceil": "MaxPool <kernel_shape = [2, 2, 2], strides = [2, 3, 2], ceil_mode = 1> (x)",
}
ALONE = {
    "a norm": "InstanceNormalization (x, gain, bias)",
    "the largest of all": "GlobalMaxPool (x)",
    "the largest along three": "ReduceMax <axes = [2, 3, 4]> (x)",
}


@pytest.mark.parametrize("case", POOLS)
def test_it_is_the_same_over_two_axes_and_then_one(case: str, tmp_path: Path) -> None:
    model = graph(f"{HEAD} {{ y = {POOLS[case]} }}", CONSTANTS)
    before = outputs(model, X)["y"]
    assert apply_all(model, tmp_path)["pool_volumes"] == 1
    assert pool_volumes.apply(model, tmp_path) == 0
    assert operators(model)["MaxPool"] == 2
    np.testing.assert_allclose(outputs(model, X)["y"], before, rtol=1e-5, atol=1e-5)


LEFT = {
    "places": (
        "float[1,4,5,8,7] x) => (float[a,b,c,d,e] y, int64[a,b,c,d,e] i", "y, i = MaxPool <kernel_shape = [2,2,2]> (x)",
    ),
    "planes": ("float[4,5,8,7] x) => (float[b,c,d,e] y", "y = MaxPool <kernel_shape = [2,2]> (x)"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case: str, tmp_path: Path) -> None:
    head, body = LEFT[case]
    assert pool_volumes.apply(graph(f"g ({head}) {{ {body} }}", CONSTANTS), tmp_path) == 0


def test_the_chip_takes_volumes(tmp_path: Path) -> None:
    cases = {**POOLS, **ALONE}
    del cases["dilated"]  # which QNN takes over two axes neither
    raw = [graph(f"{HEAD} {{ y = {cases[case]} }}", CONSTANTS) for case in ("plain", *ALONE)]
    cured = [graph(f"{HEAD} {{ y = {body} }}", CONSTANTS) for body in cases.values()]
    truth = [outputs(model, X)["y"] for model in cured]
    for model in cured:
        apply_all(model, tmp_path)
        index = GraphIndex(model, tmp_path)
        assert max(len(shape_of(kind)) for kind in index.types.values()) <= MOST_DIMS
    before = run_batch(raw, [X] * len(raw), tmp_path / "raw")
    assert before[0].on_cpu or before[0].refused, "QNN pools volumes now: drop pool_volumes"
    for case, found in zip(ALONE, before[1:], strict=True):
        assert found.on_cpu or found.refused, f"QNN takes {case} of 5 dims now: drop it from merge_dims"
    for case, expected, made in zip(cases, truth, run_batch(cured, [X] * len(cured), tmp_path / "cured"), strict=True):
        assert not made.refused, (case, made.refused)
        assert not made.on_cpu, (case, made.on_cpu)
        np.testing.assert_allclose(made.outputs[0], expected, atol=0.02, err_msg=case)
