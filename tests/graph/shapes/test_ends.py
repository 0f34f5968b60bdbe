"""Who is refused for a part that depends on data is told where to end before it, and may follow that."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.shapes.cut_points import ends_before, handed_on
from tests.support.graphs import graph
from tests.support.sources import fetched, model, numbers, shaped
from tests.support.stage_runs import run_stage

DETECTOR = """g (float[1,n,8] x) => (float[k,4] found, float[1,n,8] all) {
    all = MatMul (x, w) b = Slice (all, zero, four, axis) s = Slice (all, four, five, axis) p = Sigmoid (s)
    t = Transpose <perm = [0, 2, 1]> (p) i = NonMaxSuppression (b, t, most, limit, limit)
    row = Slice (i, last, three, one) q = Squeeze (row, one) r = Squeeze (b, nought)
    found = Gather <axis = 0> (r, q) }"""
CONSTANTS = {
    "w": numbers(8, 8), "zero": np.array([0]), "four": np.array([4]), "five": np.array([5]), "axis": np.array([2]),
    "most": np.array([3]), "limit": np.array([0.5], np.float32), "last": np.array([2]), "three": np.array([3]),
    "one": np.array([1]), "nought": np.array([0]),
}  # fmt: skip


def test_the_advice_can_be_followed(tmp_path: Path) -> None:
    source = model(DETECTOR, CONSTANTS)
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path / "first", source, n=6)
    assert "node 'i' (NonMaxSuppression) depends on data" in caught.value.what
    advice = re.search(r"with cut: \[(.*?)\] in the config", str(caught.value.remedy))
    assert advice is not None
    ends = re.findall(r"'([^']*)'", advice[1])
    assert ends == ["b", "p", "all"]

    given = {"fetch": fetched(tmp_path / "in", source)}
    taken = run_stage("ingest", tmp_path / "second", {"file": MODEL, "cut": ends}, given)
    static = shaped(tmp_path, taken, n=6).folder / MODEL
    assert [value.name for value in load_graph(static).graph.output] == ends


SPEECH = """g (float[1,len] x, float[1] speed, float[1,1] voice) => (float[1,m] y) {
    e = Exp (x)  d = Mul (e, speed)  places = Cast <to = 1> (d)  top = ReduceMax <keepdims = 1> (places)
    total = ReduceSum <keepdims = 0> (d)  n = Cast <to = 7> (total)  frames = Range (zero, n, one)
    f = Cast <to = 1> (frames)  wave = Sin (f)  row = Unsqueeze (wave, nought)
    loud = Mul (row, top)  peak = Cast <to = 1> (top)  far = Div (loud, peak)  y = Add (far, voice) }"""


def test_both_halves_of_a_length_that_depends_on_data_can_be_built(tmp_path: Path) -> None:
    source = model(SPEECH, {**CONSTANTS, "zero": np.array(0), "one": np.array(1)})
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path / "first", source, len=6)
    remedy = str(caught.value.remedy)
    parts = [re.findall(r"'([^']*)'", names) for names in re.findall(r"(?:cut|begin): \[(.*?)\]", remedy)]
    assert parts == [["total", "top"], ["frames", "top"]]

    given = {"fetch": fetched(tmp_path / "in", source)}
    front = run_stage("ingest", tmp_path / "front", {"file": MODEL, "cut": [*parts[0]]}, given)
    back = run_stage("ingest", tmp_path / "back", {"file": MODEL, "begin": [*parts[1]]}, given)
    graphs = [load_graph(shaped(tmp_path / name, taken, **axes).folder / MODEL).graph
              for name, taken, axes in (("f", front, {"len": 6}), ("b", back, {"frames[0]": 9}))]  # fmt: skip
    assert [[value.name for value in graph.output] for graph in graphs] == [["total", "top"], ["y"]]


def test_nothing_is_advised_where_nothing_would_be_left() -> None:
    source = model("g (float[1,4] x) => (int64[2,n] y) { y = NonZero (x) }")
    assert ends_before(source.graph, source.graph.node[0], set()) == ()


def test_outputs_that_need_nothing_of_it_may_stay_where_it_reads_inputs_alone() -> None:
    source = model("g (float[1,4] x, float[1,4] z) => (int64[2,n] y, float[1,4] r) { y = NonZero (x) r = Relu (z) }")
    assert ends_before(source.graph, source.graph.node[0], set()) == ("r",)


def test_what_whole_numbers_hand_to_the_rest_is_told_and_not_what_they_give_out(tmp_path: Path) -> None:
    source = graph(
        """g (int64[1,8] ids) => (float[1,8,4] y, int64[1,8] twice) {
            far = Mul (ids, big) place = Mod (far, count) twice = Add (place, place)
            y = Gather (table, place) }""",
        {"big": np.int64(7), "count": np.int64(97), "table": numbers(97, 4)},
    )
    assert handed_on(GraphIndex(source, tmp_path), ["far"]) == ("place",)
    assert handed_on(GraphIndex(source, tmp_path), ["twice"]) == ()
