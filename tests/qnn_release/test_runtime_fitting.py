"""Which bucket, how padded, how cut: the runtime's arithmetic, without any session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.qnn_release.errors import FormatError, InputError, RunError, TooLongError
from pipeline.qnn_release.fitting import Fitting
from pipeline.qnn_release.index import Component, Index
from tests.support.runtime_releases import SHA, SM8650, index


def bucket(**axes: int) -> dict[str, Any]:
    return {"axes": axes, "contexts": {}, "qdq": {"model": "a.onnx", "files": []}}


def component(inputs: dict[str, Any], outputs: dict[str, Any], *buckets: dict[str, Any], **padding: float) -> Component:
    def listed(tensors: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"name": name, "dtype": dtype, "dims": dims, "padding": padding.get(name, 0)}
            for name, (dtype, dims) in tensors.items()
        ]

    return index({"inputs": listed(inputs), "outputs": listed(outputs), "buckets": list(buckets)}).components["c"]


IDS = {"ids": ("int64", [1, "sequence"]), "mask": ("float32", [1, {"axis": "sequence"}, 2])}
OUT = {"y": ("float32", [{"size": 1}, {"axis": "sequence"}, 3]), "pooled": ("float32", [1, 5])}


def ids(length: int, other: int | None = None) -> dict[str, Any]:
    return {
        "ids": np.arange(1, length + 1, dtype=np.int64)[None],
        "mask": np.ones((1, length if other is None else other, 2), np.float32),
    }


def fixed(value: Any, dtype: str = "int64", shape: Sequence[int] = ()) -> Component:
    listed = [{"name": "x", "dtype": "float32", "dims": [2], "padding": 0}]
    constants = {"sr": {"dtype": dtype, "shape": [*shape], "value": value}}
    raw = {"inputs": listed, "constants": constants, "outputs": [], "buckets": [bucket()]}
    return index(raw).components["c"]


def test_an_input_that_is_fixed_may_be_given_with_its_value_alone() -> None:
    fitting, x = Fitting(fixed(16000)), np.zeros(2, np.float32)
    for sr in (np.array(16000), np.array([16000.0]), np.array(16000, np.int32)):
        assert fitting.pad({"x": x, "sr": sr}, fitting.bucket(fitting.lengths({"x": x, "sr": sr}))).keys() == {"x"}
    assert fitting.lengths({"x": x}) == {}
    with pytest.raises(InputError, match="input sr of c is fixed to 16000") as caught:
        fitting.lengths({"x": x, "sr": np.array(8000)})
    assert "leave sr out" in caught.value.next
    with pytest.raises(InputError, match="these are not the inputs of c") as caught:
        fitting.lengths({"sr": np.array(16000), "rate": x})
    assert caught.value.why == "x missing; rate unknown"


@pytest.mark.parametrize(
    "wrong",
    [("fast",), (None,), ([1, [2]],), ([1, 2], "int64", (3,)), (1, "object"), (1, "int64", (-1,)), (300, "int8")],
)
def test_fixed_values_that_no_release_would_have(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(FormatError):
        fixed(*wrong)


def test_the_smallest_bucket_that_holds_the_input() -> None:
    fitting = Fitting(component(IDS, OUT, bucket(sequence=64), bucket(sequence=16), bucket(sequence=32)))
    chosen = [fitting.bucket(fitting.lengths(ids(length))) for length in (1, 16, 17, 32, 33, 64)]
    assert chosen == [0, 0, 1, 1, 2, 2]


def test_with_two_axes_both_must_fit() -> None:
    inputs = {"x": ("float32", [1, "text"]), "z": ("float32", [1, 4, "latent"])}
    buckets = [bucket(text=8, latent=64), bucket(text=64, latent=16), bucket(text=64, latent=64)]
    fitting = Fitting(component(inputs, {}, *buckets))
    assert fitting.bucket({"text": 8, "latent": 17}) == 0
    assert fitting.bucket({"text": 9, "latent": 16}) == 1
    assert fitting.bucket({"text": 9, "latent": 17}) == 2


def test_padding_is_at_the_end_and_by_the_rules() -> None:
    fitting = Fitting(component(IDS, OUT, bucket(sequence=4), ids=7))
    given_ids = ids(3)
    padded = fitting.pad(given_ids, 0)
    assert padded["ids"].tolist() == [[1, 2, 3, 7]]
    assert padded["mask"].tolist() == [[[1, 1], [1, 1], [1, 1], [0, 0]]]
    assert {name: array.dtype for name, array in padded.items()} == {
        "ids": np.dtype("int64"),
        "mask": np.dtype("float32"),
    }
    assert given_ids["ids"].shape == (1, 3)


def test_an_input_of_the_buckets_size_is_not_copied() -> None:
    fitting = Fitting(component(IDS, OUT, bucket(sequence=4)))
    given_ids = ids(4)
    assert fitting.pad(given_ids, 0)["ids"] is given_ids["ids"]


@given(st.integers(1, 40), st.integers(0, 24), st.integers(1, 5), st.integers(1, 5), st.integers(-4, 9))
def test_outputs_are_cut_to_what_the_lengths_say(length: int, room: int, times: int, per: int, offset: int) -> None:
    dims = [1, {"axis": "n", "times": times, "per": per, "offset": offset}, {"unknown": True}]
    fitting = Fitting(component({"x": ("float32", ["n"])}, {"y": ("float32", dims)}, bucket(n=length + room)))
    whole = max(0, (times * (length + room) + offset) // per)
    computed = np.arange(whole * 2, dtype=np.float32).reshape(1, whole, 2)
    lengths = fitting.lengths({"x": np.zeros(length, np.float32)})
    cut = fitting.crop([computed], lengths, 0)["y"]
    valid = max(0, (times * length + offset) // per)
    assert cut.shape == (1, valid, 2)
    assert np.array_equal(cut, computed[:, :valid])


def test_a_dim_that_is_a_multiple_of_an_axis_is_padded_and_checked() -> None:
    inputs = {"x": ("float32", [{"axis": "n", "times": 2, "offset": 1}]), "z": ("float32", ["n"])}
    fitting = Fitting(component(inputs, {}, bucket(n=8)))
    arrays = {"x": np.ones(7, np.float32), "z": np.ones(3, np.float32)}
    assert fitting.lengths(arrays) == {"n": 3}
    assert [array.shape for array in fitting.pad(arrays, 0).values()] == [(17,), (8,)]
    with pytest.raises(InputError, match="disagree about axis n"):
        fitting.lengths({**arrays, "x": np.ones(8, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": None}, "ids missing"),
        ({"idz": np.zeros((1, 3))}, "idz unknown"),
        ({"ids": np.zeros((1, 3), np.int32)}, "its type is int32, not int64"),
        ({"ids": np.zeros((1, 3), ">i8")}, "its type is >i8, not int64"),
        ({"ids": np.zeros(3, np.int64)}, "its rank is 1, not 2"),
        ({"ids": np.zeros((2, 3), np.int64)}, "dim 0 is 2, not 1"),
        ({"ids": np.zeros((1, 4), np.int64)}, "ids has 4 on dim 1; mask has 3 on dim 1"),
        ({"ids": np.zeros((1, 0), np.int64), "mask": np.zeros((1, 0, 2), np.float32)}, "the input is empty"),
    ],
)
def test_what_is_no_input_is_refused(change: dict[str, Any], message: str) -> None:
    fitting = Fitting(component(IDS, OUT, bucket(sequence=4)))
    arrays = {name: array for name, array in (ids(3) | change).items() if array is not None}
    with pytest.raises(InputError) as raised:
        fitting.lengths(arrays)
    assert message in str(raised.value)
    assert "next: " in str(raised.value)


def looking_up(least: int = 0, most: int = 49) -> Fitting:
    raw = {"name": "ids", "dtype": "int64", "dims": [1, "sequence"], "padding": 0, "range": [least, most]}
    return Fitting(index({"inputs": [raw], "outputs": [], "buckets": [bucket(sequence=4)]}).components["c"])


@pytest.mark.parametrize(
    ("given_ids", "why", "remedy"),
    [
        (
            [3, -1, 2],
            "-1 at [0, 1] is beyond 0 to 49, the rows of its table",
            "; ONNX counts a negative one from the end: that is 49",
        ),
        ([3, 50, 2], "50 at [0, 1] is beyond 0 to 49, the rows of its table", ""),
        ([-51], "-51 at [0, 0] is beyond 0 to 49, the rows of its table", ""),
        ([2**40, 0, -7], "1099511627776 at [0, 0] is beyond 0 to 49, the rows of its table; so are 1 more", ""),
    ],
)  # fmt: skip
def test_ids_that_no_row_is_for_are_refused(given_ids: list[int], why: str, remedy: str) -> None:
    with pytest.raises(InputError) as raised:
        looking_up().lengths({"ids": np.array([given_ids])})
    assert raised.value.what == "input ids is not as c takes it"
    assert (raised.value.why, raised.value.next) == (why, f"give ids from 0 to 49{remedy}")


def test_ids_from_either_end_of_a_table_are_taken() -> None:
    assert looking_up().lengths({"ids": np.array([[0, 49]])}) == {"sequence": 2}
    assert looking_up(-50).lengths({"ids": np.array([[-50, -1, 49]])}) == {"sequence": 3}
    with pytest.raises(InputError, match="the input is empty"):
        looking_up().lengths({"ids": np.zeros((1, 0), np.int64)})


@pytest.mark.parametrize("ends", [[0], [3, 2], "0-9", [0, 1.5], [0, None]])
def test_ranges_that_no_release_would_have(ends: Any) -> None:
    raw = {"name": "ids", "dtype": "int64", "dims": [2], "padding": 0, "range": ends}
    with pytest.raises(FormatError):
        index({"inputs": [raw], "outputs": [], "buckets": [bucket()]})


def test_too_long_says_the_limits() -> None:
    fitting = Fitting(component(IDS, OUT, bucket(sequence=4), bucket(sequence=16)))
    with pytest.raises(TooLongError) as raised:
        fitting.bucket({"sequence": 17})
    assert str(raised.value) == (
        "the input is too long for every bucket of c: sequence 17\n"
        "  where: c\n"
        "  why: the largest bucket is sequence 16\n"
        "  next: shorten it, give a splitter=, or build a release with a bucket that holds it"
    )
    assert (raised.value.lengths, raised.value.limits) == ({"sequence": 17}, {"sequence": 16})


def test_an_output_that_is_too_short_is_an_error() -> None:
    fitting = Fitting(component(IDS, OUT, bucket(sequence=8)))
    with pytest.raises(RunError, match="returned something else than the release says"):
        fitting.crop([np.zeros((1, 2, 3)), np.zeros((1, 5))], {"sequence": 3}, 0)


def test_the_share_that_is_valid() -> None:
    inputs = {"x": ("float32", ["a", "b"])}
    fitting = Fitting(component(inputs, {}, bucket(a=4, b=10)))
    assert fitting.valid_share({"a": 2, "b": 5}, 0) == 0.25


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"files": {"../a.onnx": {"sha256": SHA, "bytes": 1}}}, "files.../a.onnx"),
        ({"files": {"/a.onnx": {"sha256": SHA, "bytes": 1}}}, "files./a.onnx"),
        ({"files": {"c:a.onnx": {"sha256": SHA, "bytes": 1}}}, "files.c:a.onnx"),
        ({"files": {"a\\b": {"sha256": SHA, "bytes": 1}}}, "files.a\\b"),
        ({"files": {"a/.. /b": {"sha256": SHA, "bytes": 1}}}, "files.a/.. /b"),
        ({"files": {"a.onnx": {"sha256": "x", "bytes": 1}}}, "files.a.onnx.sha256"),
        ({"files": {"a.onnx": {"sha256": SHA, "bytes": -1}}}, "files.a.onnx.bytes"),
        ({"files": {}}, "components.c.buckets[0].qdq.model"),
        ({"targets": {}}, "targets"),
        ({"targets": [{**SM8650, "runtime_options": {"a": 1}}]}, "targets[0].runtime_options.a"),
        ({"model": ""}, "model"),
        ({"components": []}, "components"),
    ],
)
def test_an_index_that_is_wrong_names_the_field(wrong: dict[str, Any], where: str) -> None:
    with pytest.raises(FormatError) as raised:
        index({"inputs": [], "outputs": [], "buckets": [bucket()]}, **wrong)
    assert raised.value.where == where


@pytest.mark.parametrize(
    ("tensor", "where"),
    [
        ({"dims": ["rows"]}, "components.c.inputs[0].dims[0]"),
        ({"dims": [{"unknown": True}, "n"]}, "components.c.inputs[0].dims"),
        ({"dims": [{"axis": "n", "per": 2}]}, "components.c.inputs"),
        ({"dims": [{"axis": "n", "per": 0}]}, "components.c.inputs[0].dims[0].per"),
        ({"dims": [{}]}, "components.c.inputs[0].dims[0].axis"),
        ({"dtype": "words"}, "components.c.inputs[0].dtype"),
        ({"dtype": "U3"}, "components.c.inputs[0].dtype"),
        ({"padding": 0.5}, "components.c.inputs[0].padding"),
        ({"padding": 300}, "components.c.inputs[0].padding"),
        ({"padding": float("nan")}, "components.c.inputs[0].padding"),
    ],
)
def test_an_input_that_can_not_be_padded_is_refused(tensor: dict[str, Any], where: str) -> None:
    given_input = {"name": "x", "dtype": "uint8", "dims": ["n"]} | tensor
    with pytest.raises(FormatError) as raised:
        index({"inputs": [given_input], "outputs": [], "buckets": [bucket(n=4)]})
    assert raised.value.where == where


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in parsed JSON."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield from places(member, (*path, name))


@pytest.mark.parametrize("odd", [None, True, -1, 1.5, 10**30, "", "x", "a.onnx", [], {}, [1], {"a": 1}, [[]], [{}]])
def test_any_value_in_any_place_is_read_or_refused(odd: Any) -> None:
    context = {"model": "a.onnx", "binaries": ["a.onnx"], "packing": "separate", "compatibility": "v2"}
    tensor = {"name": "x", "dtype": "uint8", "padding": 1, "dims": [1, {"axis": "n", "times": 2}, {"size": 3}, "n"]}
    one = {**bucket(n=4), "contexts": {"sm8650": context}}
    given_component = {"inputs": [tensor], "outputs": [tensor], "buckets": [one, bucket(n=8)]}
    whole = {
        "schema_version": 1,
        "model": "m",
        "version": "1",
        "files": {"a.onnx": {"sha256": SHA, "bytes": 3}},
        "targets": [{"name": "sm8650", "soc_model": 57, "htp_arch": 75, "vtcm_mb": 8}],
        "components": {"c": given_component},
    }
    refused = 0
    for *path, last in [path for path in places(whole) if path]:
        raw = json.loads(json.dumps(whole))
        place = raw
        for name in path:
            place = place[name]
        place[last] = odd
        try:
            index_read = Index.parse(json.dumps(raw).encode())
        except FormatError:
            refused += 1
            continue
        for each in index_read.components.values():
            Fitting(each)
    assert refused > 10


def test_what_is_no_json_is_refused() -> None:
    for text in (b"", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(FormatError, match="can't be read"):
            Index.parse(text)
