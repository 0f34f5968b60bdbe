"""A model is ended before its outputs where the config says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import StageInput
from tests.support.sources import fetched, model, numbers, outputs
from tests.support.stage_runs import run_stage

TEXT = """g (float[1,4] x, float[1] limit) => (int64[1,n] y, float[1,4] z) {
    m = MatMul (x, w) r = Relu (m) z = Neg (r) k = Greater (r, limit) c = com.acme.Choose (k) y = NonZero (c) }"""
WEIGHTS = {"w": numbers(4, 4)}


def cut_at(root: Path, *ends: str) -> StageInput:
    source = model(TEXT, WEIGHTS)
    return run_stage("ingest", root / "out", {"file": MODEL, "cut": [*ends]}, {"fetch": fetched(root / "in", source)})


def test_a_model_ends_at_the_values_that_are_named(tmp_path: Path) -> None:
    made = cut_at(tmp_path, "r", "m")
    graph = load_graph(made.folder / MODEL).graph
    assert [value.name for value in graph.output] == ["r", "m"]
    assert [value.name for value in graph.input] == ["x"], "what only the rest reads is no input any more"
    assert [node.op_type for node in graph.node] == ["MatMul", "Relu"], "and no operator that is unknown is left"
    given = numbers(1, 4)
    found = outputs(made.folder / MODEL, {"x": given})
    np.testing.assert_allclose(found[0], np.maximum(found[1], 0))
    np.testing.assert_allclose(found[1], given @ WEIGHTS["w"], rtol=1e-5)


def test_outputs_of_the_file_may_be_among_them(tmp_path: Path) -> None:
    made = cut_at(tmp_path, "z")
    assert [value["name"] for value in made.facts["outputs"]] == ["z"]  # type: ignore[index, union-attr, call-overload]


@pytest.mark.parametrize("name", ["rr", "x", "w"])
def test_names_that_no_node_makes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the model makes no value '{name}'") as caught:
        cut_at(tmp_path, name)
    assert "netron" in str(caught.value.remedy)
