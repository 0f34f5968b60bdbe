from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.resizes import gather_neighbours
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.random.default_rng(0).normal(size=(1, 3, 4, 6)).astype(np.float32)
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
PAIRS = list(itertools.product(COORDINATES, ROUNDINGS))
SIZES = ([8, 12], [7, 9], [2, 3], [4, 9])


def build(coordinates: str, rounding: str, sizes: list[int], *, mode: str = "nearest") -> ModelProto:
    how = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}"'
    body = f"y = Resize <{how}> (x, , , sizes)"
    dims = ",".join(map(str, sizes))
    return graph(f"g (float[1,3,4,6] x) => (float[1,3,{dims}] y) {{ {body} }}", {"sizes": np.array([1, 3, *sizes])})


@pytest.mark.parametrize(("coordinates", "rounding"), PAIRS)
def test_the_same_neighbours_are_taken(coordinates: str, rounding: str, tmp_path: Path) -> None:
    for sizes in SIZES:
        model = build(coordinates, rounding, sizes)
        before = outputs(model, {"x": X})["y"]
        gather_neighbours.apply(model, tmp_path)
        np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
        assert gather_neighbours.apply(model, tmp_path) == 0


def test_each_axis_that_changes_is_looked_up(tmp_path: Path) -> None:
    model = build("half_pixel", "floor", [8, 6])
    assert apply_all(model, tmp_path)["gather_neighbours"] == 1
    assert operators(model) == {"Gather": 1}


def test_repeated_elements_stay_a_resize(tmp_path: Path) -> None:
    model = build("half_pixel", "round_prefer_floor", [8, 12])
    assert gather_neighbours.apply(model, tmp_path) == 1
    assert operators(model) == {"Resize": 1}


def test_scales_that_are_not_the_ratio_of_sizes(tmp_path: Path) -> None:
    body = 'y = Resize <mode = "nearest", nearest_mode = "floor"> (x, , scales)'
    scales = np.array([1, 1, 1.2, 1.7], np.float32)
    model = graph(f"g (float[1,3,4,6] x) => (float[1,3,4,10] y) {{ {body} }}", {"scales": scales})
    before = outputs(model, {"x": X})["y"]
    assert gather_neighbours.apply(model, tmp_path) == 1
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
    assert operators(model) == {"Gather": 2}, "also along the axis that keeps its size"


@pytest.mark.parametrize(("coordinates", "rounding"), PAIRS)
def test_scales_and_ratios_that_are_kept(coordinates: str, rounding: str, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(1, 2, 11, 11)).astype(np.float32)
    how = f'mode = "nearest", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}"'
    scales = graph(
        f"g (float[1,2,11,11] x) => (float[1,2,14,18] y) {{ y = Resize <{how}> (x, , scales) }}",
        {"scales": np.array([1, 1, 1.3, 1.7], np.float32)},
        opset=18,
    )
    policy = graph(
        f"g (float[1,2,11,11] x) => (float[1,2,14,14] y) {{ y = Resize <{how}, axes = [2, 3],"
        ' keep_aspect_ratio_policy = "not_larger"> (x, , , sizes) }',
        {"sizes": np.array([14, 19])},
        opset=18,
    )
    rounded_up = graph(
        f"g (float[1,2,11,9] x) => (float[1,2,8,7] y) {{ y = Resize <{how}, axes = [2, 3],"
        ' keep_aspect_ratio_policy = "not_larger"> (x, , , sizes) }',
        {"sizes": np.array([8, 8])},
        opset=18,
    )
    for model, width in ((scales, 11), (policy, 11), (rounded_up, 9)):
        feeds = {"x": x[..., :width]}
        before = outputs(model, feeds)["y"]
        gather_neighbours.apply(model, tmp_path)
        np.testing.assert_array_equal(outputs(model, feeds)["y"], before)
        assert gather_neighbours.apply(model, tmp_path) == 0
    assert "Resize" not in operators(scales) or coordinates == "align_corners", "HTP goes by sizes"


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_tie_of_float32_is_one(rounding: str, tmp_path: Path) -> None:
    """The middle one of 13 lies in that of 7, 3: in float64 below it, by a scale of 11 / 6 that was rounded up."""
    how = f'nearest_mode = "{rounding}", coordinate_transformation_mode = "half_pixel_symmetric", axes = [0, 1]'
    model = graph(
        'g (float[6,7] x) => (float[11,13] y) { y = Resize <mode = "nearest",'
        f' keep_aspect_ratio_policy = "not_larger", {how}> (x, , , sizes) }}',
        {"sizes": np.array([11, 13])},
        opset=18,
    )
    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    before = outputs(model, {"x": x})["y"]
    assert gather_neighbours.apply(model, tmp_path) == 1
    np.testing.assert_array_equal(outputs(model, {"x": x})["y"], before)


@pytest.mark.slow
def test_the_chip_goes_by_sizes(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(1, 2, 11, 11)).astype(np.float32)
    how = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    text = f"g (float[1,2,11,11] x) => (float[1,2,14,18] y) {{ y = Resize <{how}> (x, , scales) }}"
    raw, cured = (graph(text, {"scales": np.array([1, 1, 1.3, 1.7], np.float32)}, opset=18) for _ in range(2))
    assert gather_neighbours.apply(cured, tmp_path) == 1
    right = outputs(raw, {"x": x})["y"]
    as_is, found = run_batch([raw, cured], [{"x": x}] * 2, tmp_path / "chip")
    assert np.abs(as_is.outputs[0] - right).max() > 0.1, "QNN goes by scales now: look at gather_neighbours"
    np.testing.assert_allclose(found.outputs[0], right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("coordinates", "rounding", "mode"),
    [
        ("asymmetric", "floor", "nearest"),
        ("half_pixel", "round_prefer_ceil", "nearest"),
        ("half_pixel", "floor", "linear"),
        ("tf_crop_and_resize", "floor", "nearest"),
    ],
)
def test_others_are_left_alone(coordinates: str, rounding: str, mode: str, tmp_path: Path) -> None:
    if coordinates == "tf_crop_and_resize":
        body = f'y = Resize <mode = "nearest", coordinate_transformation_mode = "{coordinates}"> (x, roi, , sizes)'
        constants = {"sizes": np.array([1, 3, 7, 9]), "roi": np.array([0, 0, 0, 0, 1, 1, 1, 0.5], np.float32)}
        model = graph(f"g (float[1,3,4,6] x) => (float[1,3,7,9] y) {{ {body} }}", constants)
    else:
        model = build(coordinates, rounding, [7, 9], mode=mode)
    assert gather_neighbours.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_the_chip_takes_other_neighbours(tmp_path: Path) -> None:
    cases = [(*pair, sizes) for pair in PAIRS for sizes in SIZES]
    raw, cured = [build(*case) for case in cases], [build(*case) for case in cases]
    for model in cured:
        gather_neighbours.apply(model, tmp_path)
    right = [outputs(model, {"x": X})["y"] for model in raw]
    as_is = run_batch(raw[:1] + raw[9:10], [{"x": X}] * 2, tmp_path / "raw")
    found = run_batch(cured, [{"x": X}] * len(cured), tmp_path / "cured")

    assert np.abs(as_is[1].outputs[0] - right[9]).max() > 0.1, "QNN resizes rightly now: drop gather_neighbours"
    for case, on_chip, expected in zip(cases, found, right, strict=True):
        assert not on_chip.on_cpu, case
        np.testing.assert_allclose(on_chip.outputs[0], expected, rtol=1e-3, atol=1e-5, err_msg=str(case))
