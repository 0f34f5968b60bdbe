"""A model is ended before its outputs where the config says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from pipeline.errors import ConfigError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import Json, StageInput
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


@pytest.mark.parametrize("name", ["rr", "w"])
def test_names_that_no_node_makes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the model makes no value '{name}'") as caught:
        cut_at(tmp_path, name)
    assert "netron" in str(caught.value.remedy)


def test_an_input_is_no_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model makes no value 'x': it is one of its inputs"):
        cut_at(tmp_path, "x")


def test_a_value_is_no_end_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'r' is there twice"):
        cut_at(tmp_path, "r", "m", "r")


MIDDLE = """g (float[1,len] x, float[1] speed, float[1,1] voice) => (float[1,m] y, float[1,len] z) {
    e = Exp (x)  d = Mul (e, speed)  z = Neg (d)
    total = ReduceSum <keepdims = 0> (d)  n = Cast <to = 7> (total)  frames = Range (zero, n, one)
    f = Cast <to = 1> (frames)  wave = Sin (f)  row = Unsqueeze (wave, zero_axis)
    last = ReduceMax <keepdims = 1> (d)  louder = Mul (row, last)  y = Add (louder, voice) }"""
NUMBERS = {"zero": np.array(0), "one": np.array(1), "zero_axis": np.array([0])}


def part(root: Path, begin: list[str], cut: list[str]) -> StageInput:
    source = model(MIDDLE, NUMBERS)
    params: dict[str, Json] = {"file": MODEL, "begin": [*begin], "cut": [*cut]}
    return run_stage("ingest", root / "out", params, {"fetch": fetched(root / "in", source)})


def test_a_part_begins_at_values_that_become_inputs(tmp_path: Path) -> None:
    made = part(tmp_path, ["frames", "last"], [])
    graph = load_graph(made.folder / MODEL).graph
    assert [value.name for value in graph.input] == ["voice", "frames", "last"], "what both parts read stays"
    assert [value.name for value in graph.output] == ["y"], "and of the outputs what is computed from these values"
    assert made.facts["gone"] == ["x", "speed"]
    shapes = [value["shape"] for value in made.facts["inputs"]]  # type: ignore[index, union-attr, call-overload]
    assert shapes[1:] == [["frames[0]"], [1, 1]], "no name is one that inference made up"
    feeds = {"x": numbers(1, 5), "speed": np.array([4], np.float32), "voice": np.array([[0.5]], np.float32)}
    whole = outputs(model(MIDDLE, NUMBERS), feeds)[0]
    loud = np.exp(feeds["x"]) * 4
    given = {"frames": np.arange(int(loud.sum())), "last": loud.max(keepdims=True), "voice": feeds["voice"]}
    np.testing.assert_allclose(outputs(made.folder / MODEL, given)[0], whole, rtol=1e-5)


def test_what_the_file_declares_without_dims_is_inferred(tmp_path: Path) -> None:
    source = model(MIDDLE, NUMBERS)
    source.graph.value_info.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, None))
    params: dict[str, Json] = {"file": MODEL, "begin": ["frames", "last"]}
    made = run_stage("ingest", tmp_path / "out", params, {"fetch": fetched(tmp_path / "in", source)})
    assert [value["shape"] for value in made.facts["inputs"]][-1] == [1, 1]  # type: ignore[index, union-attr, call-overload]


def test_a_part_may_begin_and_end_in_the_middle(tmp_path: Path) -> None:
    graph = load_graph(part(tmp_path, ["d"], ["last", "n"]).folder / MODEL).graph
    assert ([value.name for value in graph.input], [value.name for value in graph.output]) == (["d"], ["last", "n"])


@pytest.mark.parametrize(
    ("begin", "cut", "told"),
    [
        (["framse"], [], "the model makes no value 'framse'; did you mean 'frames'"),
        (["x"], [], "the model makes no value 'x': it is one of its inputs"),
        (["d", "d"], [], "'d' is there twice"),
        (["frames"], ["d"], "nothing that the component ends at is computed from 'frames'"),
        (["y"], [], "none of the model's outputs is computed from 'y'"),
    ],
)
def test_what_a_part_can_not_begin_at(begin: list[str], cut: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        part(tmp_path, begin, cut)
    assert told in str(caught.value)


def test_a_value_of_which_nothing_says_what_it_is_can_not_be_an_input(tmp_path: Path) -> None:
    source = model("g (float[1,4] x) => (float[1,4] y) { c = com.acme.Choose (x) y = Neg (c) }")
    with pytest.raises(ConfigError, match="nothing says what type and how many dims the value 'c' has"):
        run_stage(
            "ingest", tmp_path / "out", {"file": MODEL, "begin": ["c"]}, {"fetch": fetched(tmp_path / "in", source)}
        )
