"""Weights of 16 bits: HTP drops the lower byte of some convolutions', which get 8 bits, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.quantization.qdq import assignment
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db
from tests.support.stage_runs import Component

WIDE = {
    "8 taps": ("Conv <kernel_shape = [1, 8]>", (1, 16, 6, 40), (16, 16, 1, 8)),
    "7 x 7": ("Conv <kernel_shape = [7, 7]>", (1, 16, 16, 16), (16, 16, 7, 7)),
    "16 taps, every second place": ("Conv <kernel_shape = [1, 16], strides = [1, 2]>", (1, 16, 6, 46), (16, 16, 1, 16)),
    "dilations of each channel": (
        "Conv <kernel_shape = [3, 3], dilations = [2, 2], group = 16>", (1, 16, 16, 16), (16, 1, 3, 3),
    ),
    "dilations of each channel of sound": (
        "Conv <kernel_shape = [7], dilations = [2], group = 16>", (1, 16, 40), (16, 1, 7),
    ),
    "16 taps that make 8 places": ("ConvTranspose <kernel_shape = [16], strides = [8]>", (1, 16, 20), (16, 8, 16)),
}  # fmt: skip
NARROW = {
    "9 taps": ("Conv <kernel_shape = [1, 9]>", (1, 16, 6, 40), (16, 16, 1, 9)),
    "9 taps of sound": ("Conv <kernel_shape = [9]>", (1, 16, 40), (16, 16, 9)),
    "9 taps of each channel": ("Conv <kernel_shape = [1, 9], group = 16>", (1, 16, 6, 40), (16, 1, 1, 9)),
    "17 taps, every second place": ("Conv <kernel_shape = [1, 17], strides = [1, 2]>", (1, 16, 6, 47), (16, 16, 1, 17)),
    "dilations": ("Conv <kernel_shape = [3, 3], dilations = [2, 2]>", (1, 16, 16, 16), (16, 16, 3, 3)),
    "dilations in groups": (
        "Conv <kernel_shape = [3, 3], dilations = [2, 2], group = 4>", (1, 16, 16, 16), (16, 4, 3, 3),
    ),
    "dilations of each channel that makes two": (
        "Conv <kernel_shape = [3, 3], dilations = [2, 2], group = 16>", (1, 16, 16, 16), (32, 1, 3, 3),
    ),
    "dilations of 3 of each channel": (
        "Conv <kernel_shape = [3, 3], dilations = [3, 3], group = 16>", (1, 16, 32, 32), (16, 1, 3, 3),
    ),
    "9 taps that make a place": ("ConvTranspose <kernel_shape = [9]>", (1, 16, 20), (16, 8, 9)),
}  # fmt: skip

VOLUMES = {
    "of a volume": ("Conv <kernel_shape = [3, 3, 3]>", (1, 4, 6, 8, 8), (8, 4, 3, 3, 3)),
    "to a volume": ("ConvTranspose <kernel_shape = [2, 2, 2], strides = [2, 2, 2]>", (1, 4, 3, 4, 4), (4, 8, 2, 2, 2)),
}  # fmt: skip
"""QNN takes these with 8 bits alone."""
CASES = WIDE | NARROW | VOLUMES
Case = tuple[str, tuple[int, ...], tuple[int, ...]]


def convolution(case: Case) -> ModelProto:
    operator, given, taps = case
    weight = np.random.default_rng(0).normal(size=taps) / np.sqrt(np.prod(taps[1:]))
    given_dims, made_dims = ",".join(map(str, given)), ",".join("?" * len(given))
    text = f"g (float[{given_dims}] x) => (float[{made_dims}] y) {{ y = {operator} (x, w) }}"
    return graph(text, {"w": weight.astype(np.float32)})


def wide(case: Case, root: Path) -> tuple[StageInput, list[dict[str, NDArray[np.float32]]]]:
    """The QDQ model with weights of 16 bits, and two calls."""
    calls = [{"x": np.random.default_rng(seed).normal(size=case[1]).astype(np.float32)} for seed in (1, 2)]
    component = Component(root, convolution(case), {"all": {}})
    return component.quantize("all", component.calibrate(calls), weights="int16"), calls


@pytest.mark.parametrize("name", CASES)
def test_what_htp_multiplies_wrongly_has_eight_bits(name: str, tmp_path: Path) -> None:
    quantized, _ = wide(CASES[name], tmp_path)
    constants = load_graph(quantized.folder / MODEL).graph.initializer
    (kind,) = {tensor.data_type for tensor in constants if len(tensor.dims) > 2}
    assert kind == TensorProto.INT16 if name in WIDE else kind in (TensorProto.INT8, TensorProto.UINT8)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_chip_gives_what_the_cpu_does(name: str, tmp_path: Path) -> None:
    quantized, calls = wide(CASES[name], tmp_path)
    assert sqnr_db(on_cpu(quantized, calls), on_chip(quantized, calls, tmp_path / "out").outputs, "y") > 65


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_sixteen_bits_would_be_eight_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, HTP computes with all bits, and `takes_sixteen_bits` can go."""
    monkeypatch.setattr(assignment, "takes_sixteen_bits", lambda _index, _node: True)
    quantized, calls = wide(NARROW[name], tmp_path)
    assert sqnr_db(on_cpu(quantized, calls), on_chip(quantized, calls, tmp_path / "out").outputs, "y") < 45
