"""Weights of 16 bits at the end of their range, on the real compiler and emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.quantization.chip_limits import LARGEST_OF_16_BITS
from pipeline.graph.quantization.weights import weight_encodings
from pipeline.graph.quantization.weights.weight_encodings import symmetric
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, without_rewrites


def test_no_weight_has_an_upper_byte_beyond_127() -> None:
    weights = np.abs(np.random.default_rng(0).normal(size=(4, 64))).astype(np.float32)
    made = symmetric(weights, "int16", axis=0).array()
    assert made.max(axis=1).tolist() == [LARGEST_OF_16_BITS] * 4
    assert (LARGEST_OF_16_BITS + 128) >> 8 == 127


def test_eight_bits_end_where_they_did() -> None:
    assert symmetric(np.array([[1.0, -1.0]], np.float32), "int8", axis=0).array().max() == 127


@pytest.mark.slow
def test_the_largest_weights_are_multiplied_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.abs(np.random.default_rng(0).normal(size=(16, 16, 1, 1))).astype(np.float32)
    model = graph("g (float[1,16,12,12] x) => (float[1,16,12,12] y) { y = Conv (x, w) }", {"w": weight})
    component = without_rewrites(tmp_path / "net", model)
    shape = (1, 16, 12, 12)
    feeds = [{"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)} for seed in range(2)]
    ranges = component.calibrate(feeds)
    figures = []
    for end in (0x7FFF, LARGEST_OF_16_BITS):
        monkeypatch.setattr(weight_encodings, "LARGEST_OF_16_BITS", end)
        quantized = component.quantize("all", ranges, weights="int16")
        chip = on_chip(quantized, feeds, tmp_path / str(end)).outputs
        figures.append(sqnr_db(on_cpu(quantized, feeds), chip, "y"))
    assert figures[0] < 60, f"HTP multiplies 32767 right now ({figures}): the end is not needed any more"
    assert figures[1] > 70, figures
