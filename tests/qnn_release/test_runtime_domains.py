"""What a release says of numbers that it was not built for."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.qnn_release.domains import Domains
from pipeline.qnn_release.errors import FormatError, InputError, RangeWarning
from tests.support.runtime_releases import index


def domains(**said: Any) -> Domains:
    listed = [{"name": "x", "dtype": "float32", "dims": [1, 4], "padding": 0, **said}]
    bucket = {"axes": {}, "contexts": {}, "qdq": {"model": "a.onnx", "files": []}}
    return Domains(index({"inputs": listed, "outputs": [], "buckets": [bucket]}).components["c"])


def x(*values: float) -> dict[str, NDArray[Any]]:
    return {"x": np.array([values], np.float32)}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_by_its_place(value: float) -> None:
    with pytest.raises(InputError, match=f"input x of c holds {value}") as caught:
        domains(seen=[-1, 1], nan=False).check(x(0, 0, value, value))
    assert caught.value.where == "c, x at [0, 2], and 1 more"
    assert "take it for a number" in str(caught.value)


def test_a_nan_is_taken_where_the_model_replaces_it() -> None:
    watched = domains(seen=[-1, 1], nan=True)
    watched.check(x(0, np.nan, 1, -1))
    watched.check(x(np.nan, np.nan, np.nan, np.nan))
    assert watched.report() == []
    with pytest.raises(InputError, match="holds inf") as caught:
        watched.check(x(np.nan, np.inf, 0, 0))
    assert "no infinities" in caught.value.why


def test_numbers_beyond_the_range_are_counted_and_said_once() -> None:
    watched = domains(seen=[-1, 1], nan=True)
    with pytest.warns(RangeWarning, match="input x of c has numbers from -3 to 0, the build saw -1 to 1"):
        watched.check(x(0, np.nan, -3, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched.check(x(0, 1, 2, -1))
        watched.check(x(0, 1, -1, 0))
    (found,) = watched.report()
    assert (found.component, found.name, found.seen, found.runs, found.range) == ("c", "x", (-1, 1), 2, (-3, 2))


def test_an_older_release_says_nothing_of_its_inputs() -> None:
    watched = domains()
    watched.check(x(np.nan, np.inf, 1e9, 0))
    assert watched.report() == []


@pytest.mark.parametrize(
    "said", [{"seen": [1]}, {"seen": [2, 1]}, {"seen": ["a", 1]}, {"seen": [0, float("nan")]}, {"nan": 1}]
)
def test_a_domain_that_no_release_says_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        domains(**said)
