"""Tensors a piece at a time: the same numbers as all at once, from memory and from any place in a file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import ALIGNMENT, tensor_array, tensor_pieces
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.weights.weight_encodings import asymmetric, symmetric
from tests.support.sources import numbers

LARGE = numbers(700, 1000)  # more than one piece


@pytest.mark.parametrize("offset", [0, 1, 7, 4096])
def test_pieces_of_a_file_are_the_tensor(offset: int, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"\xff" * offset + LARGE.tobytes() + b"rest")
    pieces = Pieces.of_file(tmp_path / "w", offset, LARGE.dtype, LARGE.shape)
    assert len([None for _ in pieces]) > 1
    assert all(piece.flags.aligned for piece in pieces)
    assert np.array_equal(pieces.array(), LARGE)
    assert np.array_equal(pieces.array(), LARGE), "iterating again begins again"
    assert pieces.nbytes == LARGE.nbytes
    assert Range.of_pieces(pieces) == Range.of(LARGE)


def test_a_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(LARGE.tobytes()[:-8])
    with pytest.raises(ModelError, match="w is shorter than the tensors in it"):
        Pieces.of_file(tmp_path / "w", 0, LARGE.dtype, LARGE.shape).array()


def test_nothing_has_no_pieces() -> None:
    assert Range.of_pieces(Pieces.of_array(np.empty((0, 3), np.float32))) == Range(0.0, 0.0)


def test_a_mapped_tensor_is_written_without_being_held(tmp_path: Path) -> None:
    size = 64 << 20
    (tmp_path / "w").write_bytes(b"")
    with (tmp_path / "w").open("r+b") as file:
        file.truncate(size)
    numbers_of_file = Pieces.of_file(tmp_path / "w", 0, np.dtype(np.float32), (size // 4,))
    tracemalloc.start()
    with BlobWriter(tmp_path / "out.bin") as blob:
        made = asymmetric(numbers_of_file, Range(-1, 1), "uint16")
        tensor = blob.tensor("w", made.values)
        again = blob.tensor("v", made.values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size // 8
    assert tensor.external_data == again.external_data, "equal ones are stored once"
    assert (tmp_path / "out.bin").stat().st_size == size // 2
    assert (tensor_array(tensor, tmp_path) == made.zero_point).all()
    assert tensor_pieces(tensor, tmp_path).shape == (size // 4,)


def test_small_tensors_follow_each_other_aligned(tmp_path: Path) -> None:
    with BlobWriter(tmp_path / "out.bin") as blob:
        places = [blob.add(Pieces.of_array(numbers(300))), blob.add(numbers(300))]
    assert [offset % ALIGNMENT for offset, _ in places] == [0, 0]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_channel_gets_the_scale_it_gets_alone(axis: int) -> None:
    """However many channels a scale is looked for at once."""
    weights = numbers(300, 260, 5) * np.geomspace(0.1, 1, 260)[:, None].astype(np.float32)
    together = symmetric(weights, "int8", axis)
    for channel in (0, 1, weights.shape[axis] - 1):
        alone = symmetric(np.take(weights, [channel], axis), "int8", axis)
        assert alone.scale[0] == together.scale[channel]
        assert np.array_equal(alone.array(), np.take(together.array(), [channel], axis))
