"""Inputs that the config fixes: they become constants, and what they choose is all that is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.contracts.ingest import Facts
from pipeline.errors import ConfigError
from pipeline.graph.files.given_constants import constant_arrays
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.traverse import all_nodes
from pipeline.model import Json, StageInput
from tests.support.sources import fetched, model, numbers, outputs, same
from tests.support.stage_runs import run_stage

BRANCHES = """g (float[n,4] x, int64 sr) => (float[n,m] y) {
    fast = Equal (sr, rate)
    y = If (fast) <
        then_branch = a () => (float[n,m] t) { s = MatMul (x, w)  t = Relu (s) },
        else_branch = b () => (float[n,m] e) {
            slow = Less (sr, rate)
            e = If (slow) <
                then_branch = c () => (float[n,m] u) { s = MatMul (x, v)  u = Relu (s) },
                else_branch = d () => (float[n,m] f) { f = Neg (x) }>
        }>
}"""
X = numbers(3, 4)


def branches() -> ModelProto:
    return model(BRANCHES, {"rate": np.array(16000), "w": numbers(4, 300), "v": numbers(4, 200)})


def ingested(root: Path, source: ModelProto, **constants: Json) -> StageInput:
    fetch = fetched(root / "fetch", source)
    return run_stage("ingest", root / "ingest", {"file": MODEL, "constants": constants}, {"fetch": fetch})


@pytest.mark.parametrize(("rate", "kept"), [(16000, ["MatMul", "Relu"]), (8000, ["MatMul", "Relu"]), (48000, ["Neg"])])
def test_the_branch_that_a_constant_chooses_is_all_that_is_left(rate: int, kept: list[str], tmp_path: Path) -> None:
    source = branches()
    taken = ingested(tmp_path, source, sr=rate)
    graph = load_graph(taken.folder / MODEL).graph

    assert [node.op_type for node in all_nodes(graph) if node.op_type != "Identity"] == kept
    assert [value.name for value in graph.input] == ["x"]
    assert [tensor.name for tensor in graph.initializer] == {16000: ["w"], 8000: ["v"], 48000: []}[rate]
    assert taken.facts["constants"] == {"sr": {"dtype": "int64", "shape": [], "value": rate}}
    expected = outputs(source, {"x": X, "sr": np.array(rate)})
    assert same(outputs(taken.folder / MODEL, {"x": X}), expected)


def test_without_the_constant_the_branches_stay(tmp_path: Path) -> None:
    graph = load_graph(ingested(tmp_path, branches()).folder / MODEL).graph
    assert [value.name for value in graph.input] == ["x", "sr"]


def test_an_input_with_a_value_of_its_own_takes_the_one_that_is_given(tmp_path: Path) -> None:
    source = model("g (float[4] x, float gain) => (float[4] y) { y = Mul (x, gain) }", {"gain": np.float32(2)})
    taken = ingested(tmp_path, source, gain=3)
    assert same(outputs(taken.folder / MODEL, {"x": X[0]}), [X[0] * 3])


TAKES: dict[str, tuple[str, Json, object]] = {
    "a whole number": ("int64", 16000, np.array(16000)),
    "a number of one element": ("int64[1]", 5, np.array([5])),
    "a number that fills": ("float[2,3]", 1, np.ones((2, 3), np.float32)),
    "a fraction": ("float16", 0.5, np.float16(0.5)),
    "a truth value": ("bool", True, np.array(True)),
    "a list": ("int32[2]", [1, 2], np.array([1, 2], np.int32)),
    "a list of an axis": ("float[n]", [1.5, 2, 3], np.array([1.5, 2, 3], np.float32)),
    "nested lists": ("bool[1,2]", [[True, False]], np.array([[True, False]])),
}
REFUSES: dict[str, tuple[str, Json, str]] = {
    "a fraction for whole numbers": ("int64", 0.5, "takes int64 [], and it takes whole numbers"),
    "a number for a truth value": ("bool", 1, "takes bool [], and it takes true or false"),
    "a truth value for a number": ("float", True, "takes float32 [], and it takes numbers"),
    "too large": ("int8", 200, "beyond what int8 holds"),
    "negative": ("uint8", -1, "beyond what uint8 holds"),
    "too large for halves": ("float16", 70000, "beyond what float16 holds"),
    "too large for singles": ("float", 1e39, "beyond what float32 holds"),
    "another shape": ("int64[2]", [1, 2, 3], "takes int64 [2], and the shape of what is given is [3]"),
    "another rank": ("int64[2]", [[1, 2]], "the shape of what is given is [1, 2]"),
    "no shape": ("int64[n]", 1, "takes int64 [n], and a single value fills an input whose dims are all numbers"),
    "ragged": ("int64[2,2]", [[1, 2], [3]], "its lists are of different lengths"),
    "text": ("string", 1, "only numbers and truth values"),
}


def one_more(kind: str) -> ModelProto:
    return model(f"g (float[4] x, {kind} k) => (float[4] y) {{ y = Relu (x) }}")


@pytest.mark.parametrize("case", TAKES)
def test_what_an_input_can_be_fixed_to(case: str, tmp_path: Path) -> None:
    kind, value, expected = TAKES[case]
    found = constant_arrays(Facts.from_json(ingested(tmp_path, one_more(kind), k=value).facts).constants)["k"]
    assert found.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(found, np.asarray(expected), strict=True)


@pytest.mark.parametrize("case", REFUSES)
def test_what_it_can_not_be_fixed_to(case: str, tmp_path: Path) -> None:
    kind, value, said = REFUSES[case]
    with pytest.raises(ConfigError, match="input 'k' can't be fixed to") as caught:
        ingested(tmp_path, one_more(kind), k=value)
    assert said in caught.value.why
    assert caught.value.where == "constants.k"


def test_a_single_value_for_open_dims_is_told_how_to_be_written(tmp_path: Path) -> None:
    """`constants: {k: 0}` is what an input that never varies is advised; its dims may be open."""
    with pytest.raises(ConfigError, match="input 'k' can't be fixed to 0") as caught:
        ingested(tmp_path, one_more("float[n,1]"), k=0)
    assert caught.value.remedy == "write it as often as 'fixed' has it, in lists: [[0], [0]] where each open dim is 2"
