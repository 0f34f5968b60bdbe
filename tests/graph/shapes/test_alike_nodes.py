"""Nodes that compute the same of the same are evaluated once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from pipeline.graph.ir.inference import Opsets, one_node_session
from pipeline.graph.shapes import folding
from pipeline.graph.shapes.folding import Constants


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that onnxruntime was asked of."""
    names: list[str] = []

    def session(node: NodeProto, *given: Any) -> Any:
        names.append(node.output[0])
        return one_node_session(node, *given)

    monkeypatch.setattr(folding, "one_node_session", session)
    return names


def constants(**arrays: np.ndarray) -> Constants:
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return Constants(tensors, Path(), Opsets({"": 17}, 8))


def gather(data: str, out: str, axis: int = 0) -> NodeProto:
    return helper.make_node("Gather", [data, "place"], [out], f"of_{out}", axis=axis)


def test_the_same_of_equal_values_is_evaluated_once(evaluated: list[str]) -> None:
    shape = np.array([3, 5], np.int64)
    known = constants(a=shape, b=shape.copy(), place=np.array(1, np.int64))

    assert all(known.fold(gather(name, f"{name}{turn}")) for name in "ab" for turn in range(2))

    assert evaluated == ["a0"]
    assert [known.value(name).tolist() for name in ("a0", "a1", "b0", "b1")] == [5, 5, 5, 5]


def test_other_values_types_dims_and_attributes_are_evaluated(evaluated: list[str]) -> None:
    square = np.array([[1, 2], [3, 4]], np.int64)
    known = constants(
        a=square,
        larger=square + 1,
        narrow=square.astype(np.int32),
        bits=np.frombuffer(square.tobytes(), np.uint64).reshape(2, 2),
        row=square.reshape(1, 4),
        place=np.array(1, np.int64),
    )
    for name, axis in (("a", 0), ("a", 1), ("larger", 0), ("narrow", 0), ("bits", 0), ("row", 1)):
        assert known.fold(gather(name, f"{name}{axis}", axis))

    assert evaluated == ["a0", "a1", "larger0", "narrow0", "bits0", "row1"]
    assert known.value("a0").tolist() == [3, 4]
    assert known.value("a1").tolist() == [2, 4]
    assert known.value("bits0").dtype == np.uint64


def test_a_value_is_that_of_its_place(evaluated: list[str]) -> None:
    known = constants(a=np.array([7], np.int64), b=np.array([2], np.int64))

    assert known.fold(helper.make_node("Sub", ["a", "b"], ["one"]))
    assert known.fold(helper.make_node("Sub", ["b", "a"], ["other"]))

    assert known.fold(helper.make_node("Concat", ["a", "a", "b"], ["twice"], axis=0))
    assert known.fold(helper.make_node("Concat", ["a", "b", "b"], ["then"], axis=0))

    assert (known.value("one").item(), known.value("other").item()) == (5, -5)
    assert (known.value("twice").tolist(), known.value("then").tolist()) == ([7, 7, 2], [7, 2, 2])
    assert evaluated == ["one", "other", "twice", "then"]


def test_what_is_large_is_not_kept(evaluated: list[str]) -> None:
    known = constants(a=np.arange(1000, dtype=np.float32))

    for out in ("one", "other"):
        assert known.fold(helper.make_node("Abs", ["a"], [out]))

    assert evaluated == ["one", "other"]
