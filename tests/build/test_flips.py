"""Builds of models whose choices are near: what no held-out sample shows is told by margins and errors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support import net_project
from tests.support.graphs import graph
from tests.support.net_project import CONFIG
from tests.support.project import Project, shipped

pytestmark = pytest.mark.slow

STEPS, FEATURES, LETTERS, SAMPLES = 128, 32, 64, 64
READER = f"g (float[1,{STEPS},{FEATURES}] x) => (float[1,{STEPS},{LETTERS}] y) {{ y = MatMul (x, w) }}"


def project_of(root: Path, config: str) -> Project:
    """Two loud steps a sample, of which letters are read; errors grow with them, and what is a tie hardly does.

    Two equal features have opposite weights, so that 8 bits are few for the others: 1.7 % of a score, 35.5 dB.
    """
    numbers = np.random.default_rng(4)
    weight = numbers.standard_normal((FEATURES, LETTERS)).astype(np.float32)
    weight[0], weight[1] = 7, -7
    samples = []
    for number in range(SAMPLES):
        x = 1e-3 * numbers.standard_normal((1, STEPS, FEATURES)).astype(np.float32)
        x[:, number % STEPS], x[:, (number + 64) % STEPS] = numbers.standard_normal((2, FEATURES))
        x[..., 1] = x[..., 0]
        samples.append({"x": x})
    return net_project.create(root, graph(READER, {"w": weight}), samples, config)


def test_choices_that_are_all_alike_but_near_are_climbed_for(tmp_path: Path) -> None:
    project = project_of(tmp_path, CONFIG)
    run = project.doit("build")

    first = re.search(
        r"net/net: w8a16 in blocks of 32: quantization ([\d.]+) dB.*keeps to every threshold on the CPU, but", run.text
    )
    assert first, run.text
    assert float(first[1]) > 30, "nothing else is short of what a default aims at"
    assert "is expected to differ on other inputs" in run.text
    bucket = shipped(project)
    assert [each["label"] for each in bucket["quantization"]["climb"]] == ["w8a16 in blocks of 32", "w16a16"]
    read = bucket["verification"]["emulator"]["sm8650"]["outputs"]["y"]["agreement"]
    assert read["share"] == 1
    assert read["flips"] <= 0.001
    assert "will be another on other inputs" not in run.text


def test_a_scheme_that_is_written_ships_and_it_is_said(tmp_path: Path) -> None:
    written = "quantization: {weights: {dtype: int8, block: 32}, rounding: gptq, clip: hessian}\n"
    project = project_of(tmp_path, CONFIG + written)
    run = project.doit("build")

    assert shipped(project)["quantization"]["scheme"] == "w8a16 in blocks of 32"
    assert re.search(r"^y +net/net .*choices to flip +[\d.]+ %", run.text, re.MULTILINE), run.text
    assert re.search(
        r"More than a choice in a thousand will be another on other inputs, by .*: net/net/all 'y' \(", run.text
    )
