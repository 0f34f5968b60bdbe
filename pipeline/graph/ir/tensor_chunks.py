"""Tensors that are too large to hold: their elements a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError

_ELEMENTS = 1 << 18
"""Elements of a piece: work on them stays in the processor's cache, which is ten times as fast on a large table."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """The elements of a tensor in order, flat, a piece at a time; iterating again begins again.

    A piece may be gone when the next one is asked for.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: Callable[[], Iterator[NDArray[Any]]]

    @classmethod
    def of_array(cls, array: NDArray[Any]) -> Pieces:
        """The pieces of an array in memory."""

        def start() -> Iterator[NDArray[Any]]:
            flat = np.ascontiguousarray(array).reshape(-1)
            return (flat[at : at + _ELEMENTS] for at in range(0, flat.size, _ELEMENTS))

        return cls(array.dtype, array.shape, start)

    @classmethod
    def of_file(cls, path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Pieces:
        """The pieces of a tensor in a file, read one after another into the same memory, whatever the offset is.

        Iterating raises ModelError if the file ends before the tensor does.
        """

        def start() -> Iterator[NDArray[Any]]:
            size = math.prod(shape)
            memory = np.empty(min(size, _ELEMENTS), dtype)
            with path.open("rb") as file:
                file.seek(offset)
                for at in range(0, size, _ELEMENTS):
                    piece = memory[: size - at]
                    if file.readinto(piece.view(np.uint8).data) != piece.nbytes:
                        raise _cut_short(path)
                    yield piece

        return cls(dtype, shape, start)

    @property
    def nbytes(self) -> int:
        """What the elements take."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return self.start()

    def map(self, change: Callable[[NDArray[Any]], NDArray[Any]], dtype: np.dtype[Any]) -> Pieces:
        """The elements that `change` makes of these, as many and of type `dtype`."""
        return Pieces(dtype, self.shape, lambda: map(change, self))

    def held(self) -> Pieces:
        """The same, in memory if it is one piece: no need to make that again."""
        return Pieces.of_array(self.array()) if math.prod(self.shape) <= _ELEMENTS else self

    def array(self) -> NDArray[Any]:
        """All of them."""
        whole = np.empty(math.prod(self.shape), self.dtype)
        at = 0
        for piece in self:
            whole[at : at + piece.size] = piece
            at += piece.size
        return whole.reshape(self.shape)


def _cut_short(path: Path) -> ModelError:
    return ModelError(
        f"{path.name} is shorter than the tensors in it",
        where=str(path),
        why="it was cut short while it was read",
        remedy="run the same command again",
    )
