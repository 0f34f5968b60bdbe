"""Builds of a model whose rewrites themselves cost accuracy: the end decides, and what they cost is remarked on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.build import gates
from pipeline.config.thresholds import Thresholds
from pipeline.graph.files.model_file import MODEL
from pipeline.model import Manifest
from tests.support import net_project
from tests.support.graphs import graph
from tests.support.net_project import CONFIG
from tests.support.project import shipped
from tests.support.stage_runs import Component

pytestmark = pytest.mark.slow

SOUND, FRAME, STEP, BINS, MELS = 2048, 128, 64, 65, 20
FRAMES = (SOUND - FRAME) // STEP + 1


def speech() -> ModelProto:
    """The logarithm of a spectrum in bands, in front of a convolution, as a small speech model has it."""
    angles = 2 * np.pi * np.outer(np.arange(BINS), np.arange(FRAME)) / FRAME
    basis = np.concatenate([np.cos(angles), -np.sin(angles)]) * np.hanning(FRAME)
    bands = np.maximum(0, 1 - np.abs(np.arange(BINS) - 3.0 * np.arange(1, MELS + 1)[:, None]) / 3)
    return graph(
        f"""g (float[1,1,{SOUND}] x) => (float[1,8,{FRAMES}] y) {{
            spectrum = Conv <strides = [{STEP}]> (x, basis)
            real = Slice (spectrum, first, half, axis)
            imaginary = Slice (spectrum, half, all, axis)
            squared = Mul (real, real)
            turned = Mul (imaginary, imaginary)
            power = Add (squared, turned)
            heard = MatMul (bands, power)
            floored = Max (heard, floor)
            logs = Log (floored)
            y = Conv <pads = [1, 1]> (logs, head)
        }}""",
        {
            "basis": basis.astype(np.float32)[:, None], "bands": bands.astype(np.float32),
            "floor": np.float32(1e-10), "first": np.array([0]), "half": np.array([BINS]),
            "all": np.array([2 * BINS]), "axis": np.array([1]),
            "head": np.random.default_rng(0).normal(size=(8, MELS, 3)).astype(np.float32) / 8,
        },
    )  # fmt: skip


def tone(seed: int) -> NDArray[np.float32]:
    """A tone in noise. In one held-out sample, a frame has none: its quiet bands are float32's own rounding."""
    numbers = np.random.default_rng(seed)
    wave = 0.5 * np.sin(2 * np.pi * numbers.uniform(3, 20) * np.arange(SOUND) / FRAME)
    noise = 1e-2 * numbers.standard_normal(SOUND)
    if seed == 5:
        noise[10 * STEP : 10 * STEP + FRAME] *= 1e-4
    return (wave + noise).astype(np.float32)[None, None]


QUIET = "verification: {quiet: false}\n"


def test_what_a_rewrite_costs_is_judged_by_the_end(tmp_path: Path) -> None:
    project = net_project.create(tmp_path, speech(), [{"x": tone(number)} for number in range(48)], CONFIG + QUIET)
    run = project.doit("build")

    rung = re.search(r"^net/net +all +sm8650 +exact +([\d.]+) ", run.text, re.MULTILINE)
    assert rung, run.text
    assert 25 < float(rung[1]) < 60, "no rewrite costs anything here, so this shows nothing"
    assert (
        f"Judged by the end, as rewrites for HTP are a means and cost accuracy themselves: net/net/all 'y' ({rung[1]}"
        in (run.text)
    )
    assert "dB after scale_spectra)" in run.text
    assert shipped(project)["verification"]["cpu"]["rungs"]["rewrite"]["y"]["sqnr_db"] < 60

    project.write("configs/net.yaml", CONFIG + QUIET + "thresholds: {rewrite_db: 60}\n")
    run = project.doit("build", check=False)
    assert run.status == 16, run.text
    assert "the rewrite rung misses its threshold: output 'y' is" in run.text


@pytest.mark.parametrize("fault", ["transposed", "left out", "another base"])
def test_a_rewrite_that_computes_something_else_is_refused(fault: str, tmp_path: Path) -> None:
    component = Component(tmp_path, speech(), {"all": {}})
    path = component.rewrite["all"].folder / MODEL
    model = onnx.load(path)
    log = next(node for node in model.graph.node if node.op_type == "Log")
    if fault == "another base":
        log.op_type = "Sqrt"
    elif fault == "left out":
        reader = next(node for node in model.graph.node if log.output[0] in node.input)
        reader.input[[*reader.input].index(log.output[0])] = log.input[0]
    else:
        head = next(each for each in model.graph.initializer if each.dims == [8, MELS, 3])
        head.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(head)[::-1].copy(), head.name))
    onnx.save(model, path)

    verified = component.verify("all", component.samples([{"x": tone(number)} for number in range(4)]), quiet=False)
    miss = gates.check("net/net/all", Manifest("verify", "", {}, verified.facts), Thresholds())
    assert miss is not None
    assert miss.rung == "rewrite"
