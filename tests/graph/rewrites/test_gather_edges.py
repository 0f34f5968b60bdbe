from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.pads import gather_edges
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.random.default_rng(0).normal(size=(1, 4, 16)).astype(np.float32)


def build(pads: list[int], mode: str = "edge") -> ModelProto:
    dims = ",".join(str(size + pads[at] + pads[3 + at]) for at, size in enumerate(X.shape))
    body = f'y = Pad <mode = "{mode}"> (x, pads)'
    return graph(f"g (float[1,4,16] x) => (float[{dims}] y) {{ {body} }}", {"pads": np.array(pads)})


@pytest.mark.parametrize(
    ("pads", "gathers"), [([0, 0, 2, 0, 0, 3], 1), ([0, 1, 0, 0, 0, 2], 2), ([0, 0, 0, 0, 2, 1], 2)]
)
def test_edges_are_looked_up(pads: list[int], gathers: int, tmp_path: Path) -> None:
    model = build(pads)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["gather_edges"] == 1

    assert operators(model) == {"Gather": gathers}
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
    assert gather_edges.apply(model, tmp_path) == 0


def test_axes_of_their_own(tmp_path: Path) -> None:
    constants = {"pads": np.array([1, 1]), "axes": np.array([-1])}
    body = 'y = Pad <mode = "edge"> (x, pads, , axes)'
    model = graph(f"g (float[1,4,16] x) => (float[1,4,18] y) {{ {body} }}", constants, opset=18)
    before = outputs(model, {"x": X})["y"]
    assert gather_edges.apply(model, tmp_path) == 1
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


DEEP = np.random.default_rng(1).normal(size=(2, 3, 2, 3, 4)).astype(np.float32)


def deep(axes: tuple[int, ...], mode: str) -> ModelProto:
    pads = [1 if axis % 5 in axes else 0 for axis in range(10)]
    x, y = (",".join(str(size + 2 * by * (at in axes)) for at, size in enumerate(DEEP.shape)) for by in (0, 1))
    body = f'y = Pad <mode = "{mode}"> (x, pads)'
    return graph(f"g (float[{x}] x) => (float[{y}] y) {{ {body} }}", {"pads": np.array(pads)}, opset=19)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (4,), (0, 3, 4)])
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_of_5_dims_are_looked_up(mode: str, axes: tuple[int, ...], tmp_path: Path) -> None:
    model = deep(axes, mode)
    before = outputs(model, {"x": DEEP})["y"]
    assert apply_all(model, tmp_path)["gather_edges"] == 1
    assert "Pad" not in operators(model)
    np.testing.assert_array_equal(outputs(model, {"x": DEEP})["y"], before)


@pytest.mark.parametrize("pads", [[0, 0, 2, 0, 0, 3], [0, 1, 0, 0, 1, 0], [0, 5, 0, 0, 4, 0]])
def test_what_goes_around_is_looked_up(pads: list[int], tmp_path: Path) -> None:
    dims = ",".join(str(size + pads[at] + pads[3 + at]) for at, size in enumerate(X.shape))
    text = f'g (float[1,4,16] x) => (float[{dims}] y) {{ y = Pad <mode = "wrap"> (x, pads) }}'
    model = graph(text, {"pads": np.array(pads)}, opset=19)
    before = outputs(model, {"x": X})["y"]
    assert gather_edges.apply(model, tmp_path) == 1
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


def test_the_chip_takes_pads_of_5_dims_as_lookups(tmp_path: Path) -> None:
    models = [deep(axes, mode) for mode in ("edge", "reflect", "wrap") for axes in ((0,), (2,), (3, 4))]
    right = [outputs(model, {"x": DEEP})["y"] for model in models]
    for model in models:
        apply_all(model, tmp_path)
    for found, expected in zip(run_batch(models, [{"x": DEEP}] * len(models), tmp_path / "cured"), right, strict=True):
        assert (found.refused, found.on_cpu) == ("", ())
        np.testing.assert_allclose(found.outputs[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("pads", "mode"), [([0, 1, 0, 0, 1, 0], "edge"), ([0, 0, 1, 0, 0, 1], "reflect"), ([0, 0, -1, 0, 0, 1], "edge")]
)
def test_other_pads_are_left_alone(pads: list[int], mode: str, tmp_path: Path) -> None:
    assert gather_edges.apply(build(pads, mode), tmp_path) == 0


def test_the_default_mode_is_left_alone(tmp_path: Path) -> None:
    model = graph("g (float[1,4,16] x) => (float[1,4,18] y) { y = Pad (x, p) }", {"p": np.array([0, 0, 1, 0, 0, 1])})
    assert gather_edges.apply(model, tmp_path) == 0


def test_the_chip_pads_with_zeros(tmp_path: Path) -> None:
    raw, cured = build([0, 0, 2, 0, 0, 3]), build([0, 0, 2, 0, 0, 3])
    gather_edges.apply(cured, tmp_path)
    right = outputs(raw, {"x": X})["y"]
    found = run_batch([raw, cured], [{"x": X}] * 2, tmp_path / "work")

    assert np.abs(found[0].outputs[0] - right).max() > 0.1, "QNN pads with edges rightly now: drop gather_edges"
    np.testing.assert_allclose(found[1].outputs[0], right, rtol=1e-3, atol=1e-5)
