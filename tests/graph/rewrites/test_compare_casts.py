from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import compare_casts
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import Arrays, on_chip, on_cpu, with_rewrites, without_rewrites

NUMBERS = np.resize(np.array([-70001, -256, -2, -1, 0, 1, 2, 255, 256, -(2**31), 0]), (1, 64))
CHOICE = "g (int64[1,64] x) => (float[1,64] y) { b = Cast <to = 9> (x) y = Where (b, one, two) }"
CONSTANTS = {"one": np.float32(1), "two": np.float32(2)}


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_integers_are_compared_with_zero(kind: type[np.integer], tmp_path: Path) -> None:
    model = graph(CHOICE.replace("int64", np.dtype(kind).name), CONSTANTS)
    feeds = {"x": NUMBERS.astype(kind)}
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["compare_casts"] == 1

    assert operators(model)["Cast"] == 0
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)


@pytest.mark.parametrize(
    "text",
    [
        "g (uint8[1,64] x) => (bool[1,64] y) { y = Cast <to = 9> (x) }",
        "g (float[1,64] x) => (bool[1,64] y) { y = Cast <to = 9> (x) }",
        "g (bool[1,64] x) => (bool[1,64] y) { i = Cast <to = 7> (x) y = Cast <to = 9> (i) }",
        "g (int32[1,64] x) => (float[1,64] y) { y = Cast <to = 1> (x) }",
    ],
)
def test_other_casts_are_left_alone(text: str, tmp_path: Path) -> None:
    assert compare_casts.apply(graph(text), tmp_path) == 0


def test_the_chip_takes_negative_integers_for_false(tmp_path: Path) -> None:
    feeds = [{"x": NUMBERS.astype(np.int64)}]
    right = np.where(NUMBERS != 0, 1, 2)
    raw = without_rewrites(tmp_path / "raw", graph(CHOICE, CONSTANTS))
    cured = with_rewrites(tmp_path / "cured", graph(CHOICE, CONSTANTS))
    (before,), (after,) = (
        on_chip(each.quantize("all", each.calibrate(feeds)), feeds, tmp_path / name).outputs
        for name, each in (("a", raw), ("b", cured))
    )
    assert (np.round(before["y"]) != right).any(), "QNN casts negative integers rightly now: drop compare_casts"
    np.testing.assert_array_equal(np.round(after["y"]), right)


def test_no_mask_is_left_to_the_cpu(tmp_path: Path) -> None:
    model = graph(
        "g (int64[1,64] m, float[1,4,64] x) => (float[1,4,64] y)"
        " { b = Cast <to = 9> (m) u = Unsqueeze (b, one) s = Where (u, x, low) y = Softmax (s) }",
        {"one": np.array([1]), "low": np.float32(-100)},
    )
    mask, x = np.arange(64)[None] % 3 - 1, np.linspace(-4, 4, 256, dtype=np.float32).reshape(1, 4, 64)
    feeds: list[Arrays] = [{"m": mask, "x": x}]
    made = with_rewrites(tmp_path, model)
    quantized = made.quantize("all", made.calibrate(feeds))
    on = on_chip(quantized, feeds, tmp_path / "chip")
    assert on.cpu_ops == set()
    assert np.abs(on.outputs[0]["y"] - on_cpu(quantized, feeds)[0]["y"]).max() < 1e-3
