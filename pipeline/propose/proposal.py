"""The parts of a first configuration, with the comments that go with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Said:
    """A value and the comment that goes with it."""

    value: Any
    comment: str = ""


@dataclass
class Choices:
    """The parts of a config, each with its comments. `missing` is what the user has to bring before it builds.

    `reader` has the keys of `calibration`; `notes` are lines above it. `padding` is by component. `guessed_picture`: no
    file says how large pictures are, and the graph leaves both sides free. `lengths` are the buckets' axes that count
    tokens, steps, and the like.
    """

    fixed: dict[str, Said] = field(default_factory=dict)
    buckets: dict[str, Said] = field(default_factory=dict)
    constants: dict[str, Said] = field(default_factory=dict)
    reader: dict[str, Said] = field(default_factory=dict)
    padding: dict[str, Said] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    guessed_picture: bool = False
    lengths: list[str] = field(default_factory=list)

    @property
    def length(self) -> str | None:
        """The axis of all buckets, if there is one alone and it is a length."""
        return self.lengths[0] if self.lengths == list(self.buckets) and len(self.lengths) == 1 else None

    def up_to(self, longest: int, *, alone: bool = False) -> Choices:
        """The same with buckets of one axis up to the longest that the model takes, or with a bucket of that alone."""
        ((axis, said),) = self.buckets.items()
        shorter = [size for size in said.value if size < longest] or [longest // 2][: longest > 1]
        sizes = [longest] if alone else [*shorter, longest]
        return replace(self, buckets={axis: Said(sizes, f"{said.comment}; the model takes {longest} at most")})

    def leaving_out(self, refused: Sequence[Mapping[str, int]]) -> Choices:
        """The same without buckets that the model has no shapes for."""
        count = max((len(said.value) for said in self.buckets.values()), default=0)
        each = [{axis: said.value[place] for axis, said in self.buckets.items()} for place in range(count)]
        kept = [sizes for sizes in each if sizes not in refused]
        if not kept or len(kept) == count:
            return self
        shorter = dict(self.buckets)
        for axis, said in self.buckets.items():
            gone = ", ".join(str(sizes[axis]) for sizes in each if sizes in refused)
            values = [sizes[axis] for sizes in kept]
            shorter[axis] = Said(values, f"{said.comment}; the model can't be {gone} long")
        return replace(self, buckets=shorter)
