"""The stand-in of a three-part text-to-speech model, down to the emulator: what docs/accuracy.md promises."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from tests.support.models import supertonic
from tests.support.on_htp import on_chip, on_cpu, sqnr_db
from tests.support.stage_runs import Component

pytestmark = pytest.mark.slow

Arrays = dict[str, NDArray[Any]]
BUCKET = 24
LENGTHS = [(24, 22), (16, 18), (20, 24), (12, 14), (19, 17)]


def text_feeds(random: np.random.Generator, text: int) -> Arrays:
    return {
        "input_ids": random.integers(0, supertonic.VOCABULARY, (1, text)),
        "attention_mask": np.ones((1, text), np.int64),
        "style": random.normal(0, 0.5, (1, 101, 128)).astype(np.float32),
    }


def denoiser_feeds(random: np.random.Generator, text: int, latent: int, step: int) -> Arrays:
    return {
        "noisy_latents": random.normal(size=(1, supertonic.LATENTS, latent)).astype(np.float32),
        "latent_mask": np.ones((1, latent), np.int64),
        "style": random.normal(0, 0.5, (1, 101, 128)).astype(np.float32),
        "encoder_outputs": random.normal(size=(1, text, supertonic.WIDTH)).astype(np.float32),
        "attention_mask": np.ones((1, text), np.int64),
        "timestep": np.array([step], np.float32),
        "num_inference_steps": np.array([5], np.float32),
    }


def decoder_feeds(random: np.random.Generator, latent: int) -> Arrays:
    return {"latents": random.normal(size=(1, supertonic.LATENTS, latent)).astype(np.float32)}


def calls(name: str, seed: int) -> list[Arrays]:
    random = np.random.default_rng(seed)
    if name == "text_encoder":
        return [text_feeds(random, text) for text, _ in LENGTHS]
    if name == "latent_denoiser":
        return [denoiser_feeds(random, text, latent, step) for step, (text, latent) in enumerate(LENGTHS)]
    return [decoder_feeds(random, latent) for _, latent in LENGTHS]


def padded(given: Mapping[str, NDArray[Any]], source: ModelProto) -> Arrays:
    lengths = {"text_length", "latent_length"}
    result = {}
    for value in source.graph.input:
        array = given[value.name]
        dims = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        widths = [(0, BUCKET - size if dim in lengths else 0) for dim, size in zip(dims, array.shape, strict=True)]
        result[value.name] = np.pad(array, widths)
    return result


@pytest.mark.parametrize("name", supertonic.COMPONENTS)
def test_a_component_is_right_at_every_rung(name: str, tmp_path: Path) -> None:
    source = supertonic.COMPONENTS[name]()
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    axes = {"text_length": BUCKET, "latent_length": BUCKET}
    component = Component(tmp_path / "net", source, {"24": axes if name == "latent_denoiser" else _own(name)})
    samples = calls(name, seed=1)[1:3]
    inputs = [padded(sample, source) for sample in samples]
    truth = on_cpu(component.ingest, samples)

    for rung in (component.shape, component.rewrite):
        tested = on_cpu(rung["24"], inputs)
        assert min(sqnr_db(truth, tested, output) for output in truth[0]) > 60

    quantized = component.quantize("24", component.calibrate(calls(name, seed=0)))
    chip = on_chip(quantized, inputs[:1], tmp_path / "out")
    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert min(sqnr_db(truth[:1], chip.outputs, output) for output in truth[0]) > 25


def _own(name: str) -> dict[str, int]:
    return {"text_length" if name == "text_encoder" else "latent_length": BUCKET}
