"""A reversed sequence is taken by its places: on onnxruntime and on the emulator, of lengths known and computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites.recurrent import reverse_sequences
from tests.conformance.batches import run_batch
from tests.conformance.cases import Arrays, single
from tests.support.graphs import operators, outputs

RANDOM = np.random.default_rng(0)


def case(lengths: list[int], *, known: bool, time: int = 0) -> tuple[ModelProto, Arrays]:
    """A model of one ReverseSequence, and what it is run on: its lengths a constant or an input."""
    dims = [5, len(lengths)] if time == 0 else [len(lengths), 5]
    x = RANDOM.normal(size=(*dims, 3)).astype(np.float32)
    lens = np.array(lengths, np.int64)
    return single("ReverseSequence", [x, lens], constants=[1] if known else [], time_axis=time, batch_axis=1 - time)


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("lengths", [[5], [3], [1], [5, 5], [5, 3, 1]])
def test_the_same_steps(lengths: list[int], known: bool, time: int, tmp_path: Path) -> None:
    model, feeds = case(lengths, known=known, time=time)
    before = outputs(model, feeds)["y0"]

    assert reverse_sequences.apply(model, tmp_path) == 1

    assert "ReverseSequence" not in operators(model)
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert reverse_sequences.apply(model, tmp_path) == 0


def test_all_steps_are_one_slice(tmp_path: Path) -> None:
    model, _ = case([5, 5], known=True)
    reverse_sequences.apply(model, tmp_path)
    assert operators(model) == {"Slice": 1}


def test_on_the_chip(tmp_path: Path) -> None:
    models, feeds, expected = [], [], []
    for lengths, known in (([5], True), ([3], True), ([3], False), ([5, 3, 1], False)):
        model, given = case(lengths, known=known)
        expected.append(outputs(model, given)["y0"])
        raw = ModelProto()
        raw.CopyFrom(model)
        reverse_sequences.apply(model, tmp_path)
        models += [raw, model]
        feeds += [given, given]

    found = run_batch(models, feeds, tmp_path / "work")

    for before, after, right in zip(found[::2], found[1::2], expected, strict=True):
        assert before.on_cpu or before.refused, "QNN takes ReverseSequence now: drop reverse_sequences"
        assert not after.on_cpu
        np.testing.assert_allclose(after.outputs[0], right, rtol=1e-3)
