"""Builds of models that take a logarithm of a spectrum: what is right for loud samples alone does not ship."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import net_project
from tests.support.graphs import graph
from tests.support.net_project import CONFIG
from tests.support.project import Project, shipped

pytestmark = pytest.mark.slow

FRAMES, FRAME, BINS = 16, 64, 33
EXPLICIT = "quantization: {activations: uint16, weights: int16}\n"
SPECTRUM = f"""g (float[1,{FRAMES * FRAME}] x) => (float[1,{FRAMES},8] y) {{
    rows = Reshape (x, frames)
    a = MatMul (rows, cosines)
    b = MatMul (rows, sines)
    aa = Mul (a, a)
    bb = Mul (b, b)
    power = Add (aa, bb)
    floored = Max (power, floor)
    logs = Log (floored)
    y = MatMul (logs, head)
}}"""
PLAIN = f"""g (float[1,{FRAMES * FRAME}] x) => (float[1,{FRAMES},{BINS}] y) {{
    rows = Reshape (x, frames)
    y = MatMul (rows, sines)
}}"""


def constants() -> dict[str, NDArray[Any]]:
    angles = 2 * np.pi * np.outer(np.arange(FRAME), np.arange(BINS)) / FRAME
    window = np.hanning(FRAME)[:, None]
    return {
        "frames": np.array([1, FRAMES, FRAME], np.int64),
        "cosines": (np.cos(angles) * window).astype(np.float32),
        "sines": (np.sin(angles) * window).astype(np.float32),
        "floor": np.array(1e-12, np.float32),
        "head": np.random.default_rng(2).standard_normal((BINS, 8)).astype(np.float32),
    }


def loud(seed: int) -> NDArray[np.float32]:
    """Noise, as loud throughout."""
    return (0.3 * np.random.default_rng(seed).standard_normal((1, FRAMES * FRAME))).clip(-1, 1).astype(np.float32)


def project_of(root: Path, text: str, config: str) -> Project:
    model = graph(text, {name: each for name, each in constants().items() if name in text})
    return net_project.create(root, model, [{"x": loud(number)} for number in range(16)], config)


def test_what_is_right_on_loud_samples_alone_is_refused(tmp_path: Path) -> None:
    run = project_of(tmp_path, SPECTRUM, CONFIG + EXPLICIT).doit("build", check=False)

    assert run.status == 16, run.text
    assert "the worst of quieter samples misses its threshold: output 'y' is" in run.text
    assert "verification: {quiet: false}" in run.text
    assert re.search(r"^net/net +quiet_logarithm +1 ", run.text, re.MULTILINE), run.text
    quantization = re.search(r"^net/net +all +sm8650 +exact +exact +exact +([\d.]+)", run.text, re.MULTILINE)
    assert quantization, run.text
    assert float(quantization[1]) > 20, "the samples that were given say nothing of it"


def test_who_never_hears_quiet_may_say_so(tmp_path: Path) -> None:
    project = project_of(tmp_path, SPECTRUM, CONFIG + EXPLICIT + "verification: {quiet: false}\n")
    project.doit("build")
    assert shipped(project)["verification"]["cpu"]["quiet"] == {}


def test_the_default_keeps_the_spectrum_in_float(tmp_path: Path) -> None:
    project = project_of(tmp_path, SPECTRUM, CONFIG)
    run = project.doit("build")

    bucket = shipped(project)
    labels = [each["label"] for each in bucket["quantization"]["climb"]]
    assert labels[0] == "w8a16 in blocks of 32", run.text
    assert "nodes fp16" in labels[1], run.text
    emulated = bucket["verification"]["emulator"]["sm8650"]
    assert emulated["quiet_samples"] == 7
    assert emulated["quiet"]["y"]["sqnr_db"] > 30
    assert not [each for each in bucket["forecasts"] if each["rule"] == "quiet_logarithm"], "it is in float now"


def test_a_model_without_a_logarithm_is_judged_as_before(tmp_path: Path) -> None:
    project = project_of(tmp_path, PLAIN, CONFIG)
    project.doit("build")
    assert shipped(project)["verification"]["cpu"]["quiet"] == {}
