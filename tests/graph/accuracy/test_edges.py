"""Which samples touch what, and in which order they are therefore run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, save, shape_inference

from pipeline.graph.accuracy.emulation.sample_order import by_new_rows, sample_order, spread
from pipeline.graph.accuracy.figures.edges import EDGE, EXTREME, ZERO, around_zero, criteria, margins
from pipeline.graph.quantization.calibration.observe import Observer
from tests.support.graphs import graph


def observer(folder: Path, body: str, result: str = "float[1,3] y") -> Observer:
    model: ModelProto = graph(
        f"g (float[1,3] x) => ({result}) {{ {body} }}", {"half": np.float32(0.5), "two": np.float32(2)}
    )
    save(shape_inference.infer_shapes(model), folder / "model.onnx")
    return Observer(folder / "model.onnx")


def touched(given: Observer, *values: float) -> dict[str, float]:
    return criteria(given, {"x": np.array([values], np.float32)})


def test_every_value_tells_its_ends_and_what_is_next_to_zero(tmp_path: Path) -> None:
    found = touched(observer(tmp_path, "y = Add (x, half)"), -2, 0.25, 7)
    assert found[f"{EXTREME} least x"] == -2
    assert found[f"{EXTREME} largest y"] == -7.5
    assert found[f"{ZERO} above x"] == 0.25
    assert found[f"{ZERO} below y"] == 1.5


def test_minus_zero_is_as_near_as_can_be_and_zero_is_not_counted(tmp_path: Path) -> None:
    given = observer(tmp_path, "y = Pow (x, two)")
    assert touched(given, -0.0, 1, 2)[f"{EDGE} below x"] == 0
    assert f"{EDGE} below x" not in touched(given, 0.0, 1, 2)


@pytest.mark.parametrize(
    ("body", "values", "distance"),
    [
        ("c = Greater (x, half) y = Cast <to = 1> (c)", (0.4, 0.6, 3), 0.1),
        ("y = Clip (x, half, two)", (0.7, 1.95, 5), 0.05),
        ("y = Round (x)", (0.1, 1.45, 2), 0.05),
        ("y = Floor (x)", (0.5, 1.98, 2.6), 0.02),
        ("c = ArgMax <axis = 1> (x) d = Cast <to = 1> (c) y = Add (x, d)", (1, 5, 4.5), 0.5),
        ("y = HardSwish (x)", (1, -3.2, 7), 0.2),
    ],
)
def test_operators_that_decide_tell_how_near_a_decision_was(
    tmp_path: Path, body: str, values: tuple[float, ...], distance: float
) -> None:
    found = touched(observer(tmp_path, body), *values)
    of_operators = [value for name, value in found.items() if name.startswith(f"{EDGE} ") and name[5].isdigit()]
    assert min(of_operators) == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_next_to_zero_is_so_for_every_kind_of_number(dtype: type) -> None:
    kinds = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, np.finfo(dtype).smallest_subnormal, -np.finfo(dtype).max]
    for chosen in (chosen for count in (1, 2, 3) for chosen in itertools.product(kinds, repeat=count)):
        array: NDArray[Any] = np.array(chosen, dtype)
        negative = np.signbit(array)
        for side, found in zip((array[~negative & (array != 0)], -array[negative]), around_zero(array), strict=True):
            assert (found is None) == (not side.size), chosen
            assert found is None or np.array_equal(found, float(side.min()), equal_nan=True), chosen


def test_margins_of_what_has_no_second() -> None:
    assert np.isinf(margins(np.ones((2, 1)), 1)).all()
    assert margins(np.array([[3, 1, 2]]), 1).tolist() == [[1]]


def test_every_beginning_of_the_order_has_all_kinds() -> None:
    samples = [
        {f"{EXTREME} largest x": -float(number), f"{ZERO} above x": 30 - abs(number - 20.0), f"{EDGE} 0 Log": 9.0}
        for number in range(40)
    ]
    samples[33][f"{EDGE} 0 Log"] = 1e-9
    order = sample_order(samples, [7])
    assert sorted(order) == list(range(40))
    assert order[:4] == [7, 33, 0, 39], "the worst, an edge, what is nearest to zero, what is largest"
    assert order[4:8] == [20, 10, 30, 5], "and then evenly"
    assert order == sample_order(samples, [7])


def test_the_spread_goes_over_what_is_known_of_the_errors() -> None:
    """Every fourth sample is one that loses much: by their numbers, an order of strides would have none or all."""
    errors_db = [12.0 if number % 4 == 1 else 30.0 + number for number in range(64)]
    first = sample_order([{}] * 64, errors_db=errors_db)[:16]
    assert sum(errors_db[place] == 12.0 for place in first) == 4, "as many as there are among all"


def test_who_reads_most_rows_that_none_before_reads_comes_after_the_worst() -> None:
    rows = [{"ids": np.array(sorted({*map(ord, text)}))} for text in ("abc", "abcde", "cdefgh", "a", "xyz", "abcdefgh")]
    assert [*by_new_rows(rows, [1])] == [2, 4]
    assert [*by_new_rows(rows, [3])] == [5, 4]
    assert [*by_new_rows([], [3])] == []
    assert [*by_new_rows(rows, range(6))] == []
    assert sample_order([{}] * 6, [1], rows=rows)[:2] == [1, 2]
    assert sorted(sample_order([{}] * 6, [1], rows=rows)) == [*range(6)]


def test_what_all_samples_touch_alike_says_nothing() -> None:
    samples = [{f"{EXTREME} least x": 0.0}] * 4
    assert sample_order(samples) == [0, 2, 1, 3]


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 13])
def test_the_spread_has_every_number_once(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))
