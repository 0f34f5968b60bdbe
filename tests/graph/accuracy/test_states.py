from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import shape_inference

from pipeline.config.thresholds import Thresholds
from pipeline.contracts.measures import Figures, Subject
from pipeline.graph.accuracy.figures.output_structure import Makeup, Part
from pipeline.graph.accuracy.figures.state_outputs import state_outputs
from pipeline.graph.accuracy.figures.subjects import choose
from pipeline.graph.accuracy.verdict import TOTAL, shortfalls
from pipeline.graph.ir.index import GraphIndex
from tests.support.graphs import graph

CONSTANTS: dict[str, NDArray[Any]] = {
    "w": np.zeros((1, 12, 4), np.float32),
    "r": np.zeros((1, 12, 3), np.float32),
    "zero": np.zeros((1, 1, 3), np.float32),
    "b": np.zeros((1, 24), np.float32),
    "axes": np.array([0], np.int64),
    "lw": np.zeros((1, 9, 4), np.float32),
    "lr": np.zeros((1, 9, 3), np.float32),
}
LSTM = "LSTM <hidden_size = 3> (x, w, r, b, , {h}, {c})"


def index_of(body: str) -> GraphIndex:
    text = f"g (float[5,1,4] x, float[1,1,3] h, float[1,1,3] c) => (float[a,b,d] y, float[e,f,i] s) {{ {body} }}"
    return GraphIndex(shape_inference.infer_shapes(graph(text, CONSTANTS)), Path())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"q, m, n = {LSTM.format(h='h', c='c')} y = Tanh (m) s = Concat <axis = 0> (m, n)", set()),
        (f"q, m, n = {LSTM.format(h='h', c='c')} y = Tanh (m) s = Identity (n)", {"s"}),
        (f"q, y, n = {LSTM.format(h='h', c='c')} s = Tanh (n)", {"y"}),
        (f"q, m, n = {LSTM.format(h='zero', c='zero')} y = Identity (m) s = Identity (n)", set()),
        ("q, m = GRU <hidden_size = 3> (x, lw, lr, , , h) s = Identity (m) y = Add (h, c)", {"s"}),
        ("s = Tanh (h) y = Identity (c)", set()),
    ],
)
def test_states_are_what_a_recurrent_layer_leaves_for_its_next_run(body: str, expected: set[str]) -> None:
    assert state_outputs(index_of(body)) == expected


WRITTEN_OUT = """g (float[1,4] x, float[2,1,3] s, float gain) => (float[1,3] y, float[2,1,3] t) {
    old = Gather <axis = 0> (s, first) seen = MatMul (x, m) new = Add (seen, old) y = Tanh (new)
    pair = Concat <axis = 0> (new, old) t = Reshape (pair, shape) }"""


def written_out(text: str = WRITTEN_OUT) -> GraphIndex:
    constants = {"first": np.array(0), "m": np.ones((4, 3), np.float32), "shape": np.array([2, 1, 3])}
    return GraphIndex(graph(text, constants), Path())


def test_a_state_of_a_cell_that_is_written_out_is_told_by_its_type() -> None:
    assert state_outputs(written_out()) == {"t"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("float[1,3] y, ", ""), ("float gain", "float[2,1,3] gain"), ("Add (seen, old)", "Add (old, old)")],
    ids=["the only output", "two inputs of the type", "computed from itself alone"],
)
def test_other_outputs_of_an_inputs_type_are_no_states(old: str, new: str) -> None:
    assert not state_outputs(written_out(WRITTEN_OUT.replace(old, new)))


FRAME = """g (float[1,4] {mix}, float[2,1,3] {held}{more}) => (float[1,4] y, float[2,1,3] {left}) {{
    old = Gather <axis = 0> ({held}, first) seen = MatMul ({mix}, m) new = Add (seen, old) y = MatMul (new, n)
    pair = Concat <axis = 0> (new, old) {left} = Reshape (pair, shape) }}"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"mix": "frame", "held": "cache", "left": "cache_out", "more": ""}, {"cache_out"}),
        ({"mix": "input_4", "held": "input_5", "left": "stack_2", "more": ""}, {"stack_2"}),
        ({"mix": "audio", "held": "state", "left": "new_cache", "more": ""}, {"new_cache"}),
        ({"mix": "in", "held": "s", "left": "main", "more": ""}, {"main"}),
        ({"mix": "hidden", "held": "cache", "left": "cache_out", "more": ""}, {"cache_out", "y"}),
        ({"mix": "frame", "held": "s", "left": "t", "more": ", float gain"}, {"t"}),
        ({"mix": "frame", "held": "s", "left": "t", "more": ", int64[1,1] token"}, {"t", "y"}),
    ],
    ids=[
        "named after its input",
        "the first is run on",
        "a signal named like its output",
        "a part of a name",
        "all are named states",
        "a scalar is not run on",
        "a token is run on",
    ],
)
def test_what_a_model_is_run_on_is_no_state_though_its_output_has_its_type(
    names: dict[str, str], expected: set[str]
) -> None:
    constants = {"first": np.array(0), "m": np.ones((4, 3), np.float32), "n": np.ones((3, 4), np.float32)}
    text = FRAME.format(**names)
    index = GraphIndex(graph(text, constants | {"shape": np.array([2, 1, 3])}), Path())
    assert state_outputs(index) == expected


def test_a_state_before_what_the_model_is_run_on_is_told_by_its_name() -> None:
    text = FRAME.format(mix="frame", held="cache", left="cache_out", more="")
    swapped = text.replace("(float[1,4] frame, float[2,1,3] cache)", "(float[2,1,3] cache, float[1,4] frame)")
    constants = {"first": np.array(0), "m": np.ones((4, 3), np.float32), "n": np.ones((3, 4), np.float32)}
    assert state_outputs(GraphIndex(graph(swapped, constants | {"shape": np.array([2, 1, 3])}), Path())) == {
        "cache_out"
    }


def test_more_is_asked_of_a_state() -> None:
    figures = Figures(35.0, 35.0, 33.0, "a", 0.999, 0.01, None)
    measured = {"s": figures}
    assert not shortfalls(TOTAL, measured, {"s": Subject("s")}, Thresholds())
    (missed,) = shortfalls(TOTAL, measured, {"s": Subject("s", state=True)}, Thresholds())
    assert (missed.kind, missed.asked) == ("db", 40.0)


def test_what_a_concat_joins_into_a_state_is_judged_apart() -> None:
    makeup = {"s": Makeup(state=True, parts=(Part(0, 1, bounded=False), Part(1, 2, bounded=False)))}
    subjects = choose([{"s": np.ones((2, 1, 3), np.float32)}], makeup, {}, "outputs")
    assert subjects == {"s[:1]": Subject("s", ":1", state=True), "s[1:]": Subject("s", "1:", state=True)}
