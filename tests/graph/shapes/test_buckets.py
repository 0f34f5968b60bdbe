from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.shapes.buckets import Arrays, axis_lengths, fits_no_bucket, pad, smallest_bucket

IDS = TensorSpec("ids", "int64", ("batch", "sequence"))
MASK = TensorSpec("mask", "int64", ("batch", "sequence"))
STYLE = TensorSpec("style", "float32", ("batch", 3))
POINTS = {"64x64": {"text": 64, "latent": 64}, "128x128": {"text": 128, "latent": 128}}


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, "32"), (32, "32"), (33, "64"), (64, "64"), (65, "128"), (128, "128"), (129, None)]
)
def test_a_sample_goes_to_the_smallest_bucket_that_holds_it(length: int, bucket: str | None) -> None:
    buckets = {str(size): {"sequence": size} for size in (128, 32, 64)}
    assert smallest_bucket({"batch": 1, "sequence": length}, buckets) == bucket


@pytest.mark.parametrize(
    ("text", "latent", "bucket"), [(10, 64, "64x64"), (10, 65, "128x128"), (65, 10, "128x128"), (10, 129, None)]
)
def test_every_axis_has_to_fit(text: int, latent: int, bucket: str | None) -> None:
    assert smallest_bucket({"text": text, "latent": latent}, POINTS) == bucket


def test_a_component_without_axes_has_one_bucket_for_all() -> None:
    assert smallest_bucket({"batch": 1}, {"all": {}}) == "all"


@given(
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6, unique=True),
)
def test_no_smaller_bucket_holds_the_sample(lengths: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    buckets = {f"{a}x{b}": {"a": a, "b": b} for a, b in sizes}
    chosen = smallest_bucket({"a": lengths[0], "b": lengths[1]}, buckets)
    holding = [size for size in sizes if size[0] >= lengths[0] and size[1] >= lengths[1]]
    if not holding:
        assert chosen is None
    else:
        assert chosen is not None
        assert math.prod(buckets[chosen].values()) == min(map(math.prod, holding))
        assert tuple(buckets[chosen].values()) in holding


def test_the_error_for_a_sample_that_fits_nowhere_names_it_and_the_lengths() -> None:
    text = str(fits_no_bucket("texts.txt:3", {"batch": 1, "text": 60, "latent": 140}, POINTS))
    assert "texts.txt:3 fits no bucket: text 60, latent 140" in text
    assert "the largest bucket is text 128, latent 128" in text
    assert "shorten this sample" in text


def test_inputs_are_padded_at_the_end_by_their_own_rule() -> None:
    sample = {"ids": np.array([[5, 6]]), "mask": np.array([[1, 1]]), "style": np.ones((1, 3), np.float32)}
    padded = pad(sample, (IDS, MASK, STYLE), {"sequence": 4}, {"ids": 9})
    assert padded["ids"].tolist() == [[5, 6, 9, 9]]
    assert padded["mask"].tolist() == [[1, 1, 0, 0]]
    assert padded["ids"].dtype == np.int64
    assert padded["style"] is sample["style"]


def test_a_float_is_padded_in_its_own_dtype() -> None:
    spec = TensorSpec("x", "float16", ("length",))
    padded = pad({"x": np.ones(1, np.float16)}, (spec,), {"length": 2}, {"x": -100.0})["x"]
    assert padded.dtype == np.float16
    assert padded.tolist() == [1.0, -100.0]


def test_a_dim_that_is_an_expression_follows_its_axes() -> None:
    inputs = (IDS, TensorSpec("wave", "float32", ("batch", "2*sequence + 1")))
    sample: Arrays = {"ids": np.ones((1, 3), np.int64), "wave": np.ones((1, 7), np.float32)}
    assert axis_lengths(sample, inputs) == {"batch": 1, "sequence": 3}
    assert pad(sample, inputs, {"sequence": 5}, {})["wave"].shape == (1, 11)
    with pytest.raises(CalibrationError, match=r"disagree about axis '2\*sequence \+ 1'"):
        axis_lengths({**sample, "wave": np.ones((1, 8), np.float32)}, inputs)


def test_inputs_that_disagree_about_an_axis_are_named() -> None:
    with pytest.raises(CalibrationError) as caught:
        axis_lengths({"ids": np.ones((1, 3)), "mask": np.ones((1, 4))}, (IDS, MASK))
    assert "disagree about axis 'sequence'" in str(caught.value)
    assert "3 in 'ids' and 4 in 'mask'" in str(caught.value)
    assert "give one a name of its own" in caught.value.remedy


def test_a_sample_longer_than_the_bucket_is_refused() -> None:
    with pytest.raises(CalibrationError, match="'ids' is 5 long on axis 'sequence', the bucket has 4"):
        pad({"ids": np.ones((1, 5), np.int64)}, (IDS,), {"sequence": 4}, {})


@pytest.mark.parametrize("value", [0.5, math.inf, math.nan])
def test_a_padding_value_of_another_type_is_refused(value: float) -> None:
    with pytest.raises(CalibrationError, match=r"padding value .* of input 'ids' is not a int64 value"):
        pad({"ids": np.ones((1, 2), np.int64)}, (IDS,), {"sequence": 4}, {"ids": value})
