"""The contract of `export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass

ExportKind = Literal["pte", "dlc"]
"""What is made beside contexts: an ExecuTorch program that holds them, or the graphs that they were compiled of."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`performance_mode` is what an application of the other engine asks for, by the name that QNN's EP has for it."""

    kind: ExportKind
    target: HtpTarget
    performance_mode: str


@dataclass(frozen=True)
class EncodedTensor(Contract):
    """An input or output as the binary has it; `scale * (q - zero_point)` is its value where it is encoded."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = left_out()
    zero_point: int | None = left_out()


@dataclass(frozen=True, kw_only=True)
class ExportedGraph(Contract):
    """The method or graph that a bucket is in the `file`; its inputs and outputs in order.

    `emulated` is of a graph: whether it ran on the emulator, composed for the target, and gave what the context gives.
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
