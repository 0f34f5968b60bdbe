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
"""What the cheapest choice has least of: bytes of weights, or what they and the work take together."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """Thresholds in dB, what may be left to the CPU, and how much may be tried.

    Of `targets` the lowest architecture is emulated. `prefer` orders what keeps to the thresholds. `fp16`: nodes may
    stay in float. `max_emulations` 0: the CPU decides. `outputs` has what the config says of single ones, by label, as
    verify's. `method` and `percentile` are calibrate's, for the record.
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
    """A trial. `db_cpu` is of the QDQ model, or of the float model `rounded` instead; None for no number.

    `db_emulator` is None where it was not emulated, or `failure` says why it could not be.
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
    """The name of the scheme that was found, the scheme, its point of the `curve`, and all that was tried.

    The curve goes from cheap to dear.
    """

    scheme: str
    quantization: Scheme
    curve: tuple[CurvePoint, ...]
    trials: int
    emulations: int


@dataclass(frozen=True)
class Found(Contract):
    """What precision.json holds: the scheme, and what was tried."""

    scheme: Scheme
    curve: tuple[CurvePoint, ...]
