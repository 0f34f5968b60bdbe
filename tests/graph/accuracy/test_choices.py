"""Places that another would do for as well: those of ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.graph.accuracy.figures.choices import ChosenFrom, as_good, chosen_outputs
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.accuracy.figures.subjects import choose
from pipeline.graph.ir.index import GraphIndex
from pipeline.ladder import EXACT_DB
from tests.support.graphs import graph

ROW = np.array([[5.0, 3.0, 3.0, 3.01, -9.0]])


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([0, 3, 1], [True, True, True]),
        ([0, 1, 3], [True, True, True]),
        ([0, 2, 1], [True, True, True]),
        ([1, 0, 3], [False, False, True]),
        ([0, 3, 3], [True, True, False]),
        ([0, 4, 2], [True, False, True]),
        ([0, 3, 5], [True, True, False]),
        ([0, -1, 1], [True, False, True]),
    ],
)
def test_a_place_of_a_tie_is_as_good_once(actual: list[int], expected: list[bool]) -> None:
    right = np.array([[0, 3, 1]])
    for axis, turn in ((1, np.asarray), (0, np.transpose)):
        found = as_good(turn(ROW), axis, 0.1, turn(right), turn(np.array([actual])))
        assert turn(found).tolist() == [expected]


def test_places_without_the_axis_and_in_another_shape() -> None:
    values = np.array([[[1.0, 2.0, 2.0], [3.0, 0.0, 1.0]]])
    assert as_good(values, -1, 0.1, np.array([[1, 0]]), np.array([[2, 2]])).tolist() == [[True, False]]
    flat = as_good(values, -1, 0.1, np.array([1, 2, 0, 2]), np.array([2, 1, 0, 1]))
    assert flat.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("body", "of"),
    [
        ("v, y = TopK <axis = 0> (x, k)", ChosenFrom("x", 0, places=True)),
        ("v, t = TopK (x, k) c = Cast <to = 6> (t) y = Cast <to = 7> (c)", ChosenFrom("x", -1, places=True)),
        ("y = ArgMin <axis = 1> (x)", ChosenFrom("x", 1, places=True)),
        ("y = ArgMax <axis = 1, select_last_index = 1> (x)", ChosenFrom("x", 1, places=True)),
        ("y = ArgMax <axis = 1> (x)", ChosenFrom("x", 1)),
        ("v, t = TopK (x, k) y = Cast <to = 7> (v)", None),
    ],
)
def test_what_an_output_was_chosen_from(body: str, of: ChosenFrom | None) -> None:
    model = graph(f"g (float[4,5] x) => (int64[a,b] y) {{ {body} }}", {"k": np.array([2])} if "k)" in body else {})
    assert chosen_outputs(GraphIndex(model, Path())).get("y") == of


def test_ties_of_a_topk_are_no_miss() -> None:
    values = np.round(np.random.default_rng(0).normal(size=(4, 8)) * 2) / 2
    right: Any = [{"i": np.argsort(-values, -1, kind="stable")[:, :3]}]
    other = [{"i": 7 - np.argsort(-values[:, ::-1], -1, kind="stable")[:, :3]}]
    assert (right[0]["i"] != other[0]["i"]).any()
    from_x = {"i": ChosenFrom("x", -1, places=True)}
    subjects = choose(right, {}, {}, "net.yaml", choices=from_x, chosen_from=[{"x": values}])
    found = measure(subjects, ["a"], right, other, chosen_from=[{"x": values}])["i"]
    assert found.sqnr_db == EXACT_DB
    wrong = [{"i": right[0]["i"][:, ::-1]}]
    least = measure(subjects, ["a"], right, wrong, chosen_from=[{"x": values}])["i"].sqnr_db
    assert least is not None
    assert least < 10
