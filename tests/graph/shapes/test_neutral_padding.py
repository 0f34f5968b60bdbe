"""Padding within a model that copies the end of a value: in a bucket it copies the end of the valid part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.model import Json, StageInput
from tests.support.on_htp import on_chip, on_cpu, sqnr_db
from tests.support.sources import ingested, model
from tests.support.stage_runs import Component, run_stage

LENGTH, VALID = 12, 7
WEIGHTS = np.random.default_rng(0).normal(0, 0.5, (4, 4, 4)).astype(np.float32)
CONSTANTS: dict[str, NDArray[Any]] = {
    "w": WEIGHTS, "first": np.array([1]), "last": np.array([-1]), "zero": np.zeros((), np.float32),
    "one": np.ones((), np.float32), "none": np.array(0),
}  # fmt: skip
MASKS = {
    "a mask of integers": "m0 = Cast <to = 1> (mask)  m = Unsqueeze (m0, first)",
    "1 where there is padding": "c = Cast <to = 1> (mask)  m0 = Sub (one, c)  m = Unsqueeze (m0, first)",
    "compared with 0": "b = Equal (mask, none)  n = Not (b)  m0 = Cast <to = 1> (n)  m = Unsqueeze (m0, first)",
}
BLOCK = """
    x0 = Mul (x, m)
    p = Pad <mode = "MODE"> (x0, pads)
    h = Conv <dilations = [1]> (p, w)
    y0 = Tanh (h)
    y = Mul (y0, m)
"""
PADS = {"edge": (1, 2), "reflect": (2, 1)}


def masked(mode: str, mask: str = "a mask of integers", *, used: int = 2, dtype: str = "int64") -> ModelProto:
    """float32 [1, 4, n] to the same: masked, padded, convolved, masked again."""
    before, after = PADS[mode]
    body = MASKS[mask] + BLOCK.replace("MODE", mode)
    if used == 1:
        body = body.replace("y = Mul (y0, m)", "y = Neg (y0)")
    text = f"g (float[b,4,n] x, {dtype}[b,n] mask) => (float[b,4,n] y) {{ {body} }}"
    constants = {name: array for name, array in CONSTANTS.items() if f"{name})" in body or f"{name}," in body}
    return model(text, constants | {"pads": np.array([0, 0, before, 0, 0, after])})


def feeds(length: int, mask: str = "a mask of integers", *, seed: int = 1) -> dict[str, NDArray[Any]]:
    x = np.random.default_rng(seed).normal(size=(1, 4, length)).astype(np.float32)
    valid = np.zeros if mask == "1 where there is padding" else np.ones
    return {"x": x, "mask": valid((1, length), np.int64)}


def padded(given: dict[str, NDArray[Any]], length: int = LENGTH) -> dict[str, NDArray[Any]]:
    more = length - given["x"].shape[2]
    hidden = 1 - int(given["mask"].flat[0])
    mask = np.pad(given["mask"], ((0, 0), (0, more)), constant_values=hidden)
    return {"x": np.pad(given["x"], ((0, 0), (0, 0), (0, more)), constant_values=9), "mask": mask}


def in_bucket(root: Path, source: ModelProto, length: int = LENGTH) -> tuple[StageInput, StageInput]:
    taken = ingested(root, source)
    params: dict[str, Json] = {"axes": {"n": length}, "fixed": {"b": 1}}
    return taken, run_stage("shape", root / "shape", params, {"ingest": taken})


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("mode", PADS)
def test_the_valid_part_is_what_it_is_without_padding(mode: str, mask: str, tmp_path: Path) -> None:
    source, shape = in_bucket(tmp_path, masked(mode, mask))
    assert shape.facts["neutral_pads"] == 1
    for valid in (VALID, LENGTH - 1, LENGTH):
        given = feeds(valid, mask)
        (alone,), (fixed,) = on_cpu(source, [given]), on_cpu(shape, [padded(given)])
        np.testing.assert_allclose(fixed["y"][:, :, :valid], alone["y"], atol=1e-6)


def test_without_it_the_last_places_see_the_padding(tmp_path: Path) -> None:
    source = ingested(tmp_path, masked("edge"))
    params: dict[str, Json] = {"axes": {}, "fixed": {"b": 1, "n": LENGTH}}  # no axis that is padded
    fixed = run_stage("shape", tmp_path / "shape", params, {"ingest": source})
    assert fixed.facts["neutral_pads"] == 0
    given = feeds(VALID)
    assert sqnr_db(on_cpu(source, [given]), on_cpu(fixed, [padded(given)]), "y") < 30


@pytest.mark.parametrize("mode", PADS)
def test_places_masked_in_between_stay_as_they_are(mode: str, tmp_path: Path) -> None:
    source, shape = in_bucket(tmp_path, masked(mode))
    given = feeds(LENGTH)
    given["mask"][0, [0, 3, 4, 8]] = 0
    (before,), (after,) = on_cpu(source, [given]), on_cpu(shape, [given])
    np.testing.assert_allclose(after["y"], before["y"], atol=1e-6)


def test_a_mask_made_from_a_length_will_do(tmp_path: Path) -> None:
    text = """g (float[b,n,4] x, int64[b] length) => (float[b,n,4] y) {
        s = Shape (x)  n = Gather (s, second)  r = Range (none, n, second)
        l = Unsqueeze (length, first)  b = Less (r, l)
        m0 = Cast <to = 1> (b)  m = Unsqueeze (m0, last)
        x0 = Mul (x, m)
        p = Pad <mode = "MODE"> (x0, pads)
        t = Transpose <perm = [0, 2, 1]> (p)
        h = Conv (t, w)
        t2 = Transpose <perm = [0, 2, 1]> (h)
        y = Mul (t2, m)
    }"""
    for mode, (before, after) in PADS.items():
        constants = {name: CONSTANTS[name] for name in ("w", "first", "last", "none")} | {"second": np.array(1)}
        constants["pads"] = np.array([0, before, 0, 0, after, 0])
        source, shape = in_bucket(tmp_path / mode, model(text.replace("MODE", mode), constants))
        assert shape.facts["neutral_pads"] == 1
        x = np.random.default_rng(1).normal(size=(1, VALID, 4)).astype(np.float32)
        whole = np.pad(x, ((0, 0), (0, LENGTH - VALID), (0, 0)))
        (alone,) = on_cpu(source, [{"x": x, "length": np.array([VALID])}])
        (fixed,) = on_cpu(shape, [{"x": whole, "length": np.array([VALID])}])
        np.testing.assert_allclose(fixed["y"][:, :VALID], alone["y"], atol=1e-6)


def test_each_sample_of_a_batch_has_its_own_end(tmp_path: Path) -> None:
    for mode in PADS:
        taken = ingested(tmp_path / mode, masked(mode))
        params: dict[str, Json] = {"axes": {"n": LENGTH}, "fixed": {"b": 2}}
        shape = run_stage("shape", tmp_path / mode / "shape", params, {"ingest": taken})
        samples = [feeds(VALID, seed=1), feeds(9, seed=2)]
        both = {name: np.concatenate([padded(sample)[name] for sample in samples]) for name in ("x", "mask")}
        (fixed,) = on_cpu(shape, [both])
        for number, sample in enumerate(samples):
            (alone,) = on_cpu(taken, [sample])
            valid = sample["x"].shape[2]
            np.testing.assert_allclose(fixed["y"][number : number + 1, :, :valid], alone["y"], atol=1e-6)


def untouched(text: str, **constants: NDArray[Any]) -> ModelProto:
    return model(text, constants)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(masked("edge", used=1), id="a value that scales once may be no mask"),
        pytest.param(
            untouched(
                """g (float[b,4,n] x) => (float[b,4,k] y) { p = Pad <mode = "edge"> (x, pads)  y = Conv (p, w) }""",
                w=WEIGHTS,
                pads=np.array([0, 0, 1, 0, 0, 2]),
            ),
            id="no mask",
        ),
        pytest.param(
            untouched(
                """g (float[b,4,n] x, float[b,1,n] mask) => (float[b,4,k] y) {
                    a = Mul (x, mask)  c = Neg (a)  d = Mul (c, mask)
                    p = Pad <mode = "edge"> (d, pads)  y = Conv (p, w)
                }""",
                w=WEIGHTS,
                pads=np.array([0, 0, 3, 0, 0, 0]),
            ),
            id="in front",
        ),
        pytest.param(
            untouched(
                """g (float[b,4,n] x, float[b,1,n] mask) => (float[b,4,k] y) {
                    a = Mul (x, mask)  c = Neg (a)  d = Mul (c, mask)
                    h = MaxPool <kernel_shape = [2], strides = [2]> (d)
                    p = Pad <mode = "edge"> (h, pads)  y = Conv (p, w)
                }""",
                w=WEIGHTS,
                pads=np.array([0, 0, 1, 0, 0, 2]),
            ),
            id="behind a stride",
        ),
        pytest.param(
            untouched(
                """g (float[b,n,4] x, float[b,n,1] mask) => (float[b,n,6] y) {
                    a = Mul (x, mask)  c = Mul (a, mask)  y = Pad <mode = "edge"> (c, pads)
                }""",
                pads=np.array([0, 0, 0, 0, 0, 2]),
            ),
            id="another dim than that of the axis",
        ),
    ],
)
def test_left_alone(source: ModelProto, tmp_path: Path) -> None:
    _, shape = in_bucket(tmp_path, source)
    assert shape.facts["neutral_pads"] == 0


@pytest.mark.parametrize("mode", PADS)
def test_on_the_chip_it_is_one_partition_and_as_exact_as_on_the_cpu(mode: str, tmp_path: Path) -> None:
    source = masked(mode)
    component = Component(tmp_path / "net", _named(source), {"16": {"n": 16}})
    calls = [feeds(length, seed=length) for length in (6, 9, 12, 14, 16, 16)]
    quantized = component.quantize("16", component.calibrate(calls))
    samples = [padded(feeds(length, seed=20 + length), 16) for length in (11, 16)]

    chip = on_chip(quantized, samples, tmp_path / "out")

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(quantized, samples), chip.outputs, "y") > 50


def _named(source: ModelProto) -> ModelProto:
    """With the batch named as :class:`Component` fixes it."""
    for value in source.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return source
