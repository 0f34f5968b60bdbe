from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites.choices import replace_dropouts
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

X = np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)
ALONE = "g (float[1,4,6] x) => (float[1,4,6] y) { y = Dropout (x) }"
MASKED = "g (float[1,4,6] x) => (float[1,4,6] y, bool[1,4,6] mask) { a = Mul (x, x) y, mask = Dropout (a, half) }"
TRAINED = "g (float[1,4,6] x) => (float[1,4,6] y) { y = Dropout (x, half, training) }"


@pytest.mark.parametrize("text", [ALONE, MASKED], ids=["alone", "with a mask"])
def test_nothing_is_dropped(text: str, tmp_path: Path) -> None:
    model = graph(text, {"half": np.float32(0.5)})
    before = outputs(model, {"x": X})

    assert replace_dropouts.apply(model, tmp_path) == 1

    assert operators(model)["Dropout"] == 0
    for name, values in outputs(model, {"x": X}).items():
        np.testing.assert_array_equal(values, before[name])
    assert replace_dropouts.apply(model, tmp_path) == 0


@pytest.mark.parametrize("training", [True, None], ids=["a constant", "computed"])
def test_training_is_left_alone(training: bool | None, tmp_path: Path) -> None:
    text = TRAINED if training else TRAINED.replace("(float[1,4,6] x)", "(float[1,4,6] x, bool training)")
    constants = {"half": np.float32(0.5)} | ({"training": np.array(training)} if training else {})
    assert replace_dropouts.apply(graph(text, constants), tmp_path) == 0


def test_the_chip_takes_a_mask_that_is_read(tmp_path: Path) -> None:
    calls, half = [{"x": X}], {"half": np.float32(0.5)}
    raw = on_chip(without_rewrites(tmp_path / "raw", graph(MASKED, half)).rewrite["all"], calls, tmp_path / "a")
    assert "Dropout" in raw.cpu_ops, "QNN takes Dropout now: drop replace_dropouts"
    for name, text in (("alone", ALONE), ("masked", MASKED)):
        component = with_rewrites(tmp_path / name, graph(text, half if text == MASKED else {}))
        chip = on_chip(component.rewrite["all"], calls, tmp_path / f"{name} on chip")
        assert not chip.cpu_ops
        np.testing.assert_allclose(chip.outputs[0]["y"], X * X if text == MASKED else X, rtol=2e-3, atol=1e-6)
        assert text == ALONE or chip.outputs[0]["mask"].all()
