"""Outputs of two binaries are compared bit by bit, whatever their shape."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.qnn.compiling.composed import _bits


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8, np.bool_])
def test_equal_bits_are_equal_and_one_that_differs_is_found(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    array = np.zeros(shape, dtype)
    assert not np.count_nonzero(_bits(array) != _bits(array.copy()))
    if array.size:
        other = array.copy()
        other.reshape(-1)[0] = 1
        assert np.count_nonzero(_bits(array) != _bits(other)) == 1


def test_zeros_of_both_signs_are_no_equal_bits() -> None:
    assert np.count_nonzero(_bits(np.array([0.0], np.float32)) != _bits(np.array([-0.0], np.float32))) == 1
