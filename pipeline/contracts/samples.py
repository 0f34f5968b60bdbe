"""The contract of `samples`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Buckets
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Reading(Contract):
    """How a set of samples is read, without where it is; `run` is the function's name in the code file."""

    reader: Literal["text", "npz", "python", "record"]
    max_samples: int | None = None
    tokenizer: str | None = left_out()
    max_length: int | None = left_out()
    run: str | None = left_out()


@dataclass(frozen=True)
class Params(Contract):
    """`buckets` and `fixed` axes are of each component."""

    calibration: Reading
    buckets: Mapping[str, Buckets]
    fixed: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Facts(Contract):
    """How many `samples`, how many calls they make of each component, how many were `cut`.

    `lengths` has the shortest and longest of each component's axes.
    """

    count: Mapping[str, int]
    samples: int
    cut: int
    lengths: Mapping[str, Mapping[str, tuple[int, int]]]
