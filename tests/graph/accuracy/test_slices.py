from __future__ import annotations

import re

import numpy as np
import pytest

from pipeline.graph.accuracy.figures.slices import PATTERN, parse_slice, parts_of, spelled

ARRAY = np.arange(2 * 6 * 5).reshape(2, 6, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":, :4", ARRAY[:, :4]),
        (":, 4:", ARRAY[:, 4:]),
        ("...", ARRAY),
        ("..., 0", ARRAY[..., 0]),
        ("1, ..., -2:", ARRAY[1, ..., -2:]),
        (" -1 ,1 : 5 : 2 , ::2", ARRAY[-1, 1:5:2, ::2]),
        ("0", ARRAY[0]),
    ],
)
def test_a_slice_takes_what_numpy_takes(text: str, expected: np.ndarray) -> None:
    assert re.fullmatch(PATTERN, text)
    parts = parts_of(text, ARRAY.shape)
    assert np.array_equal(ARRAY[parts], expected)
    assert np.array_equal(ARRAY[parts_of(spelled(parts), ARRAY.shape)], expected)


NO_SLICES = ["", ":,", "a", "1:2:0", "1:2:-1", "..., ...", "1;2", "[0]", ":::", "1e3", "None", "- 1"]


@pytest.mark.parametrize("text", NO_SLICES)
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no index or range|may stand there once"):
        parse_slice(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (":, :, :, 0", "has 4 entries, the output 3 dims"),
        (":, 6", "takes nothing of dim 1, which has 6 entries"),
        ("-3", "takes nothing of dim 0"),
        (":, 4:4", "takes nothing of dim 1"),
        (":, :, 5:", "takes nothing of dim 2"),
    ],
)
def test_a_slice_must_fit_its_output(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parts_of(text, ARRAY.shape)
