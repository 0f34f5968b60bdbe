"""Whether a graph takes bytes or fractions for pixels, told by the scale it begins with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.propose.interface import largest_pixel
from tests.support.graphs import graph

CHANNELS = (1, 3, 1, 1)
MEANS, STDS = np.full(CHANNELS, 0.45, np.float32), np.full(CHANNELS, 0.225, np.float32)
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "bytes, centered": ("a = Sub (x, m)  b = Mul (a, s)", {"m": np.float32(127.5), "s": np.float32(1 / 127.5)}, 255),
    "bytes, divided": ("a = Div (x, m)  b = Sub (a, s)", {"m": np.float32(127.5), "s": np.float32(1)}, 255),
    "bytes, then ImageNet's": (
        "c = Div (x, h)  a = Sub (c, m)  b = Div (a, s)",
        {"h": np.float32(255), "m": MEANS, "s": STDS},
        255,
    ),
    "fractions": ("a = Sub (x, m)  b = Div (a, s)", {"m": MEANS, "s": STDS}, 1),
    "fractions, behind views": (
        "c = Transpose <perm = [0, 2, 3, 1]> (x)  a = Mul (s, c)  b = Add (a, m)",
        {"m": np.float32(-1), "s": np.float32(2)},
        1,
    ),
    "a norm": (
        "b = BatchNormalization (x, s, m, m, v)",
        {"s": np.ones(3, np.float32), "m": np.zeros(3, np.float32), "v": np.full(3, 3600, np.float32)},
        255,
    ),
    "bytes, a mean and no scale": ("b = Sub (x, m)", {"m": np.full(CHANNELS, 110, np.float32)}, 255),
    "an offset that either may have": ("b = Sub (x, m)", {"m": MEANS}, 0),
    "of neither": ("b = Mul (x, m)", {"m": np.float32(0.2)}, 0),
    "computed": ("m = ReduceMax (x)  b = Div (x, m)", {}, 0),
    "of a weight for each place": ("b = Mul (x, m)", {"m": np.full((1, 3, 8, 8), 0.01, np.float32)}, 0),
    "nothing": ("b = Relu (x)", {}, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_largest_pixel(case: str) -> None:
    body, constants, largest = CASES[case]
    text = f"net (float[1, 3, 8, 8] x) => (float[a, b, c, d] y) {{ {body}  y = Relu (b) }}"
    assert (largest_pixel(graph(text, constants).graph, "x") or 0) == largest


def test_another_reader_may_want_the_pixels_themselves() -> None:
    text = "net (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { b = Mul (x, m)  y = Add (x, b) }"
    assert largest_pixel(graph(text, {"m": np.float32(0.01)}).graph, "x") is None


def test_a_damaged_constant_says_nothing() -> None:
    model = graph("net (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { y = Mul (x, m) }", {"m": np.float32(0.01)})
    assert largest_pixel(model.graph, "x") == 255
    model.graph.initializer[0].raw_data = b"\0\0"
    assert largest_pixel(model.graph, "x") is None
