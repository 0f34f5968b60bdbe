"""A sample and its outputs in a form that is small enough for a page, made from the arrays that were measured."""

from __future__ import annotations

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

PREVIEW = "worst.json"
"""The file of `verify` and `emulate` that shows the worst sample: a :class:`Preview`."""


@dataclass(frozen=True)
class Picture(Contract):
    """`pixels` in base64, row by row, 8 bits for each of the `channels`: 1 (grey) or 3 (red, green, blue)."""

    width: int
    height: int
    channels: int
    pixels: str


@dataclass(frozen=True)
class Curve(Contract):
    """A long row of numbers that was divided into pieces: the least (`low`) and the largest number of each piece."""

    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Shown(Contract):
    """An array: its range, and either a picture, a curve or its first values.

    `low` and `high` are the range of its finite numbers, None if there are none; `bad` counts the others. `part` says
    in words which part of the array is shown, "" for all of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    high: float | None
    bad: int = 0
    part: str = ""
    picture: Picture | None = None
    curve: Curve | None = None
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Pair(Contract):
    """An output of the original and of the model that was made of it, in one scale, and their difference, `error`.

    `sqnr_db` is None if it is no finite number.
    """

    expected: Shown
    got: Shown
    error: Shown
    sqnr_db: float | None


@dataclass(frozen=True, kw_only=True)
class Preview(Contract):
    """The worst sample: its name, its text and label if its reader has them, its inputs and its outputs.

    `more_inputs` and `more_outputs` count those that are not shown.
    """

    sample: str
    text: str | None = left_out()
    label: str | None = left_out()
    inputs: tuple[Shown, ...]
    outputs: tuple[Pair, ...]
    more_inputs: int = 0
    more_outputs: int = 0
