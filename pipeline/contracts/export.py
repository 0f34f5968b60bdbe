"""The contract of `export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass

ExportKind = Literal["pte", "dlc"]
"""A file beside contexts: an ExecuTorch program that holds them (pte), or the graphs they were compiled from (dlc)."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`performance_mode` is the one that the file asks the other engine for, by its name in QNN's EP."""

    kind: ExportKind
    target: HtpTarget
    performance_mode: str


@dataclass(frozen=True)
class EncodedTensor(Contract):
    """An input or output as the binary has it. If it is encoded, its value is `scale * (q - zero_point)`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = left_out()
    zero_point: int | None = left_out()


@dataclass(frozen=True, kw_only=True)
class ExportedGraph(Contract):
    """The method (pte) or graph (dlc) in `file` that computes a bucket, with its inputs and outputs in order.

    `emulated` says whether a graph was composed for the target and gave on the emulator what the context gives.
    """

    file: str
    method: str
    inputs: tuple[EncodedTensor, ...]
    outputs: tuple[EncodedTensor, ...]
    emulated: bool | None = left_out()


@dataclass(frozen=True)
class Facts(Contract):
    """The graph of each bucket, by the bucket's name."""

    graphs: Mapping[str, ExportedGraph]
