"""The contract of `precision`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.calibrate import MethodName
from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Declared, OverBuckets, SamplePart
from pipeline.contracts.scheme import Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass

Prefer = Literal["size", "speed"]
"""What makes a choice cheap: few bytes of weights, or a low cost of weights and operations together."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """Thresholds in dB, what may be left to the CPU, and how much may be tried.

    Only the lowest architecture of `targets` is emulated. `prefer` orders the choices that keep to the thresholds.
    `fp16` says whether nodes may stay in float. With `max_emulations` 0, figures of the CPU decide alone. `outputs` is
    as in :class:`pipeline.contracts.verify.Params`. `method` and `percentile` are those of `calibrate`; the scheme that
    is found is written down with them.
    """

    padding: Mapping[str, float]
    part: SamplePart
    quantization_db: float
    compile_db: float
    total_db: float
    max_cpu_nodes: int
    max_partitions: int
    targets: tuple[HtpTarget, ...]
    fp16: bool
    wide_products: bool = False
    prefer: Prefer
    max_trials: int
    max_emulations: int
    method: MethodName
    percentile: float | None = left_out()
    outputs: Mapping[str, Declared] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CurvePoint(Contract):
    """One choice that was tried. `share_8bit` is the share of multiply-accumulates on activations of 8 bits.

    `cost` is what `prefer` orders by, as a multiple of that of w8a16.
    `db_cpu` is the SQNR in dB of the QDQ model or, if `rounded`, of the float model with its values rounded; None if it
    is no number. `db_emulator` is None if the choice was not emulated; `failure` is the reason if it could not be.
    """

    label: str
    weight_bytes: int
    share_8bit: float
    cost: float
    db_cpu: float | None
    rounded: bool
    db_emulator: float | None
    failure: str


@dataclass(frozen=True, kw_only=True)
class Facts(CurvePoint):
    """The scheme that was found with its name and its point of the `curve`, which has all trials from cheap to dear.

    `trials` and `emulations` are how many choices were measured on the CPU and on the emulator.
    """

    scheme: str
    quantization: Scheme
    curve: tuple[CurvePoint, ...]
    trials: int
    emulations: int


@dataclass(frozen=True)
class Found(Contract):
    """The content of precision.json: the scheme that was found, and what was tried."""

    scheme: Scheme
    curve: tuple[CurvePoint, ...]
