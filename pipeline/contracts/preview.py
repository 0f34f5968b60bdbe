"""What a sample and what became of it look like: small enough to be shown on a page, and true to what was measured."""

from __future__ import annotations

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

PREVIEW = "worst.json"
"""The file of `verify` and `emulate` that shows the worst sample: a :class:`Preview`."""


@dataclass(frozen=True)
class Picture(Contract):
    """Pixels row by row, 8 bits each, in base64; `channels` is 1 (grey) or 3 (red, green, blue)."""

    width: int
    height: int
    channels: int
    pixels: str


@dataclass(frozen=True)
class Curve(Contract):
    """A long row of numbers in as many pieces as there are values: the least and the largest of each piece."""

    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Shown(Contract):
    """An array: its range, and one of a picture, a curve and its first values.

    `low` and `high` are of its finite numbers, None if it has none; `bad` of them are not finite. `part` says in words
    which part is shown, if it is not all.
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
    """An output of the original and of what was made of it, in one scale; `error` is their difference.

    `sqnr_db` is None for no finite number.
    """

    expected: Shown
    got: Shown
    error: Shown
    sqnr_db: float | None


@dataclass(frozen=True, kw_only=True)
class Preview(Contract):
    """The worst sample: its name, its text and label if its reader has them, what went in and what came out.

    `more_inputs` and `more_outputs` are not shown.
    """

    sample: str
    text: str | None = left_out()
    label: str | None = left_out()
    inputs: tuple[Shown, ...]
    outputs: tuple[Pair, ...]
    more_inputs: int = 0
    more_outputs: int = 0
