from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.resizes import resize_by_products
from tests.support.graphs import operators, outputs
from tests.support.resizes import on_htp, ramp, resizing

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "symmetric": ((1, 3, 8, 6), (1, 3, 12, 9), {"coordinate_transformation_mode": "half_pixel_symmetric"}),
    "symmetric, by scales": (
        (1, 3, 8, 6), (1, 3, 9, 8),
        {"scales": [1, 1, 1.2, 1.4], "coordinate_transformation_mode": "half_pixel_symmetric"},
    ),
    "scales": ((1, 3, 8, 6), (1, 3, 13, 7), {"scales": [1, 1, 1.7, 1.3]}),
    "scales, asymmetric": (
        (1, 3, 8, 6), (1, 3, 13, 7), {"scales": [1, 1, 1.7, 1.3], "coordinate_transformation_mode": "asymmetric"},
    ),
    "one element": ((1, 3, 8, 6), (1, 3, 3, 1), {"coordinate_transformation_mode": "pytorch_half_pixel"}),
    "antialias": ((1, 3, 8, 6), (1, 3, 3, 4), {"antialias": 1}),
    "antialias, by scales": ((1, 3, 8, 6), (1, 3, 5, 4), {"scales": [1, 1, 0.7, 0.7], "antialias": 1}),
    "antialias, larger": ((1, 3, 8, 6), (1, 3, 11, 4), {"antialias": 1}),
    "not larger": (
        (1, 3, 8, 6), (1, 3, 13, 10), {"keep_aspect_ratio_policy": "not_larger", "sizes": [13, 11], "axes": [2, 3]},
    ),
    "not smaller": (
        (1, 3, 8, 6), (1, 3, 15, 11), {"keep_aspect_ratio_policy": "not_smaller", "sizes": [12, 11], "axes": [2, 3]},
    ),
    "crop": (
        (1, 3, 8, 6), (1, 3, 5, 9),
        {"roi": [0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9], "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    "crop beyond": (
        (1, 3, 8, 6), (1, 3, 5, 9),
        {"roi": [0, 0, -0.2, 0.1, 1, 1, 0.8, 1.3], "coordinate_transformation_mode": "tf_crop_and_resize",
         "extrapolation_value": 2.5},
    ),
    "crop to one": (
        (1, 3, 8, 6), (1, 3, 1, 4),
        {"roi": [0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9], "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    "crop, antialias": (
        (1, 3, 8, 8), (1, 3, 3, 3),
        {"roi": [0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9], "coordinate_transformation_mode": "tf_crop_and_resize",
         "antialias": 1},
    ),
    "crop beyond, antialias": (
        (1, 3, 8, 6), (1, 3, 5, 9),
        {"roi": [0, 0, -0.2, 0.1, 1, 1, 0.8, 1.3], "coordinate_transformation_mode": "tf_crop_and_resize",
         "extrapolation_value": 8.0, "antialias": 1},
    ),
    "crop outside, antialias": (
        (1, 3, 8, 6), (1, 3, 3, 4),
        {"roi": [0, 0, 1.2, 0.1, 1, 1, 2.1, 0.9], "coordinate_transformation_mode": "tf_crop_and_resize",
         "extrapolation_value": 8.0, "antialias": 1},
    ),
    "crop of what stays": (
        (2, 3, 8, 6), (2, 3, 5, 6),
        {"roi": [0.4, 0, 0.2, -0.3, 1, 1, 0.8, 0.9], "coordinate_transformation_mode": "tf_crop_and_resize",
         "extrapolation_value": 8.0},
    ),
    "corners, antialias, by scales": (
        (1, 3, 8, 5), (1, 3, 3, 5),
        {"scales": [1, 1, 0.4, 1.1], "antialias": 1, "coordinate_transformation_mode": "align_corners"},
    ),
    "corners, antialias, not larger": (
        (1, 3, 16, 10), (1, 3, 5, 3),
        {"keep_aspect_ratio_policy": "not_larger", "sizes": [5, 9], "axes": [2, 3], "antialias": 1,
         "coordinate_transformation_mode": "align_corners"},
    ),
    "antialias, excludes": ((1, 3, 8, 6), (1, 3, 11, 4), {"antialias": 1, "exclude_outside": 1}),
    "5 dims": ((1, 3, 4, 8, 6), (1, 3, 6, 12, 9), {"coordinate_transformation_mode": "half_pixel_symmetric"}),
}  # fmt: skip
CUBIC: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "excludes": ((1, 3, 8, 6), (1, 3, 12, 18), {"exclude_outside": 1}),
    "excludes, shrinks": ((1, 3, 8, 6), (1, 3, 3, 4), {"exclude_outside": 1, "cubic_coeff_a": -0.5}),
}
LINEAR_TOO = (
    "antialias, by scales",
    "symmetric",
    "one element",
    "antialias",
    "antialias, larger",
    "not larger",
    "crop",
    "crop beyond",
    "crop, antialias",
    "crop beyond, antialias",
    "crop outside, antialias",
    "crop of what stays",
    "corners, antialias, by scales",
    "corners, antialias, not larger",
    "antialias, excludes",
)


def variants() -> list[Any]:
    linear = [pytest.param(*case, "linear", id=name) for name, case in CASES.items()]
    cubic = {**{name: CASES[name] for name in LINEAR_TOO}, **CUBIC}
    return [*linear, *(pytest.param(*case, "cubic", id=f"cubic, {name}") for name, case in cubic.items())]


@pytest.mark.parametrize(("before", "after", "how", "mode"), variants())
def test_products_give_the_same_numbers(
    before: tuple[int, ...], after: tuple[int, ...], how: dict[str, Any], mode: str, tmp_path: Path
) -> None:
    model, x = resizing(before, after, mode=mode, **how), ramp(*before)
    expected = outputs(model, {"x": x})["y"]
    assert apply_all(model, tmp_path)["resize_by_products"] == 1
    assert "Resize" not in operators(model)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], expected, rtol=1e-5, atol=2e-6)
    assert resize_by_products.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("after", "how"),
    [
        ((1, 3, 16, 12), {"mode": "linear"}),
        ((1, 3, 13, 7), {"mode": "cubic"}),
        ((1, 3, 16, 12), {"mode": "linear", "exclude_outside": 1}),
        ((1, 3, 16, 12), {"mode": "linear", "scales": [1, 1, 2, 2]}),
        ((1, 3, 13, 7), {"mode": "linear", "scales": [1, 1, 1.7, 1.3],
                         "coordinate_transformation_mode": "align_corners"}),
        ((1, 3, 16, 12), {"mode": "nearest", "coordinate_transformation_mode": "half_pixel_symmetric"}),
        ((1, 3, 12, 9), {"mode": "linear", "keep_aspect_ratio_policy": "not_larger", "sizes": [12, 11],
                         "axes": [2, 3]}),
        ((1, 3, 13, 10), {"mode": "linear", "antialias": 1, "keep_aspect_ratio_policy": "not_larger",
                          "sizes": [13, 11], "axes": [2, 3]}),
        ((1, 3, 13, 10), {"mode": "linear", "antialias": 1, "keep_aspect_ratio_policy": "not_larger",
                          "sizes": [13, 11], "axes": [2, 3], "coordinate_transformation_mode": "align_corners"}),
    ],
)  # fmt: skip
def test_others_are_left_alone(after: tuple[int, ...], how: dict[str, Any], tmp_path: Path) -> None:
    assert resize_by_products.apply(resizing((1, 3, 8, 6), after, **how), tmp_path) == 0


SCHEMES: dict[str, tuple[dict[str, Any] | None, float]] = {
    "fp16": (None, 55), "w8a16": ({}, 40), "w16a16": ({"weights": "int16"}, 55), "w8a8": ({"activations": "uint8"}, 30),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [*product(("excludes", "antialias", "crop beyond", "not larger"), SCHEMES), ("one element", "fp16")],
)
def test_on_the_chip(name: str, precision: str, tmp_path: Path) -> None:
    before, after, how = {**CASES, **CUBIC}[name]
    scheme, least = SCHEMES[precision]
    model = resizing(before, after, mode="cubic" if name == "excludes" else "linear", **how)
    found = on_htp(tmp_path, model, before, scheme)
    print(name, precision, found)
    assert found["with"] > least
    assert found["without"] < 30, "QNN resizes like this now: leave it to QNN in resize_by_products"
