from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.resizes import resize_axes_apart
from tests.support.graphs import operators, outputs
from tests.support.resizes import PLAIN, on_htp, ramp, resizing

COORDINATES = "coordinate_transformation_mode"
DIMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "5, all": ((1, 2, 3, 4, 6), (1, 2, 6, 8, 9), {"Resize": 2, "Reshape": 4}),
    "5, the last two": ((1, 2, 3, 4, 6), (1, 2, 3, 8, 9), {"Resize": 1, "Reshape": 2}),
    "5, the third": ((1, 2, 3, 4, 6), (1, 2, 5, 4, 6), {"Resize": 1, "Reshape": 2}),
    "5, the last": ((1, 2, 3, 4, 6), (1, 2, 3, 4, 9), {"Resize": 1, "Reshape": 2}),
    "2": ((4, 6), (8, 9), {"Resize": 2, "Reshape": 4}),
    "channels last": ((1, 4, 6, 3), (1, 8, 9, 3), {"Resize": 2, "Reshape": 4}),
    "channels": ((1, 4, 5, 6), (1, 8, 5, 6), {"Resize": 1, "Reshape": 2}),
    "3, first and last": ((4, 5, 6), (8, 5, 9), {"Resize": 2, "Reshape": 4}),
}


@pytest.mark.parametrize("coordinates", PLAIN)
@pytest.mark.parametrize("name", DIMS)
def test_axes_in_other_places_are_resized_in_planes(name: str, coordinates: str, tmp_path: Path) -> None:
    before, after, expected = DIMS[name]
    how: dict[str, Any] = {COORDINATES: coordinates}
    model, x = resizing(before, after, mode="linear", **how), ramp(*before)
    truth = outputs(model, {"x": x})["y"]
    assert apply_all(model, tmp_path)["resize_axes_apart"] == 1
    assert operators(model) == expected
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], truth, rtol=1e-5, atol=1e-6)
    assert resize_axes_apart.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("height", "width", "coordinates"),
    [(8, 12, "align_corners"), (16, 24, "align_corners"), *((16, 12, each) for each in PLAIN), (8, 24, "asymmetric")],
)
def test_a_cubic_resize_is_one_of_each_axis(height: int, width: int, coordinates: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {COORDINATES: coordinates, "cubic_coeff_a": -0.5}
    model, x = resizing((1, 2, 4, 6), (1, 2, height, width), mode="cubic", **how), ramp(1, 2, 4, 6)
    truth = outputs(model, {"x": x})["y"]
    assert resize_axes_apart.apply(model, tmp_path) == 1
    assert operators(model) == {"Resize": 2}
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], truth, rtol=1e-5, atol=1e-6)
    assert resize_axes_apart.apply(model, tmp_path) == 0


def test_a_cubic_resize_that_goes_by_sizes_gets_sizes(tmp_path: Path) -> None:
    how: dict[str, Any] = {COORDINATES: "align_corners", "scales": [1, 1, 0.8, 1.4]}
    model, x = resizing((1, 2, 4, 6), (1, 2, 3, 8), mode="cubic", **how), ramp(1, 2, 4, 6)
    truth = outputs(model, {"x": x})["y"]
    assert resize_axes_apart.apply(model, tmp_path) == 1
    assert operators(model) == {"Resize": 1}
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], truth, rtol=1e-5, atol=1e-6)
    assert resize_axes_apart.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        ((1, 2, 4, 6), (1, 2, 8, 12), {"mode": "linear"}),
        ((1, 2, 4, 6), (1, 2, 6, 9), {"mode": "cubic", COORDINATES: "align_corners"}),
        ((1, 2, 4, 6), (1, 2, 8, 18), {"mode": "cubic", COORDINATES: "align_corners"}),
        ((1, 2, 4, 6), (1, 2, 8, 12), {"mode": "cubic"}),
        ((1, 2, 4, 6), (1, 2, 8, 6), {"mode": "cubic"}),
        ((1, 4, 6), (1, 4, 12), {"mode": "linear"}),
        ((1, 2, 4, 6), (1, 2, 8, 12), {"mode": "cubic", "exclude_outside": 1}),
        ((1, 2, 3, 4, 6), (1, 2, 3, 8, 12), {"mode": "nearest"}),
        ((4, 6), (8, 12), {"mode": "linear", COORDINATES: "half_pixel_symmetric"}),
    ],
)
def test_others_are_left_alone(
    before: tuple[int, ...], after: tuple[int, ...], how: dict[str, Any], tmp_path: Path
) -> None:
    assert resize_axes_apart.apply(resizing(before, after, **how), tmp_path) == 0


ON_CHIP: dict[str, tuple[dict[str, Any] | None, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "cubic by 2 and 2": ({}, (1, 8, 4, 6), (1, 8, 8, 12), {"mode": "cubic", COORDINATES: "align_corners"}),
    "cubic by 2 and 4": ({}, (1, 8, 4, 6), (1, 8, 8, 24), {"mode": "cubic"}),
    "5 dims": (None, (1, 3, 4, 4, 6), (1, 3, 8, 8, 12), {"mode": "linear"}),
    "2 dims": ({}, (8, 6), (16, 12), {"mode": "linear"}),
    "by scales": (
        {},
        (1, 2, 4, 6),
        (1, 2, 3, 8),
        {"mode": "cubic", COORDINATES: "align_corners", "scales": [1, 1, 0.8, 1.4]},
    ),
    "channels last": (None, (1, 4, 6, 8), (1, 8, 12, 8), {"mode": "linear"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_CHIP)
def test_the_chip_resizes_one_axis_rightly(name: str, tmp_path: Path) -> None:
    scheme, before, after, how = ON_CHIP[name]
    found = on_htp(tmp_path, resizing(before, after, **how), before, scheme)
    assert found["with"] > 60
    assert found["without"] < 30, "QNN resizes like this now: leave it to QNN in resize_axes_apart"
