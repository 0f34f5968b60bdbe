from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import operators
from tests.support.sources import fetched, ingested, model, shaped
from tests.support.stage_runs import run_stage

NOISE = """g (float[1,4] x, float scale) => (float[1,4] y, float[1,4] mean) {
    mean = Relu (x) noise = RandomNormalLike (mean) some = Mul (noise, scale) y = Add (mean, some) }"""


def test_the_node_is_named_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as told:
        shaped(tmp_path, ingested(tmp_path / "in", model(NOISE)))
    assert told.value.what == "node 'noise' (RandomNormalLike) draws random numbers"
    assert told.value.remedy == (
        "say begin: ['noise'] in the component's config, beside what is there already, and what it draws is an input,"
        " for the application to draw; or end the component before it with cut: ['mean'] in the config, and do the rest"
        " in the application; or where a factor of the noise is an input, constants: {its name: 0} builds the model"
        " without any"
    )


def test_what_is_drawn_may_be_an_input(tmp_path: Path) -> None:
    given = {"fetch": fetched(tmp_path / "in", model(NOISE))}
    drawn = run_stage("ingest", tmp_path / "drawn", {"file": MODEL, "begin": ["noise"]}, given)
    made = load_graph(shaped(tmp_path, drawn).folder / MODEL)
    assert [value.name for value in made.graph.input] == ["x", "scale", "noise"]
    assert [value.name for value in made.graph.output] == ["y"]


def test_noise_that_counts_nothing_is_no_reason(tmp_path: Path) -> None:
    given = {"fetch": fetched(tmp_path / "in", model(NOISE))}
    silent = run_stage("ingest", tmp_path / "silent", {"file": MODEL, "constants": {"scale": 0}}, given)
    made = load_graph(shaped(tmp_path, silent).folder / MODEL)
    assert operators(made) == {"Relu": 1, "Add": 1}, "calibration would see noise"
    (zeros,) = made.graph.initializer
    assert zeros.name == "some"
    np.testing.assert_array_equal(numpy_helper.to_array(zeros), np.zeros((1, 4), np.float32), strict=True)


def test_noise_that_another_reads_is_refused(tmp_path: Path) -> None:
    both = NOISE.replace("y = Add (mean, some)", "all = Add (mean, some) y = Add (all, noise)")
    given = {"fetch": fetched(tmp_path / "in", model(both))}
    silent = run_stage("ingest", tmp_path / "silent", {"file": MODEL, "constants": {"scale": 0}}, given)
    with pytest.raises(ModelError, match="draws random numbers"):
        shaped(tmp_path, silent)
