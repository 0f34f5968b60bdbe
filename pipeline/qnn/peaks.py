"""Peak figures that Qualcomm publishes for SoCs, and the bound that follows from them: no run can be faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.contracts.cost import CostFacts

_OPS_PER_MAC = 2
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Peak:
    """The peaks of a SoC: `tops`, 10^12 operations a second in 8 bit integers, and `dram_gb_s`, 10^9 bytes a second.

    None where nothing is published. `source` is where it is.
    """

    tops: float | None
    dram_gb_s: float | None
    source: str


# DRAM of phones: transfers a second are twice the clock that is published, and the bus is 64 bits wide.
PEAKS: Mapping[str, Peak] = {
    "snapdragon-x-elite": Peak(45, 135, "Snapdragon X Elite product brief, 2023: NPU 45 TOPS, LPDDR5x 135 GB/s"),
    "sm8550": Peak(None, 67.2, "Snapdragon 8 Gen 2 product brief, 2022: LPDDR5x up to 4200 MHz"),
    "sm8650": Peak(None, 76.8, "Snapdragon 8 Gen 3 product brief, 2023: LPDDR5x up to 4800 MHz"),
    "sm8750": Peak(None, 84.8, "Snapdragon 8 Elite product brief, 2024: LPDDR5x up to 5300 MHz"),
}
"""By the name of the target."""


@dataclass(frozen=True)
class Bound:
    """The least that a run takes by a peak: to compute, and to move what has to cross the chip's edge, in seconds.

    Either is None where its peak is not published.
    """

    compute_s: float | None
    move_s: float | None
    source: str


def bound(target: str, cost: CostFacts) -> Bound | None:
    """What a run of a context takes at least on a target; None where nothing is published of it.

    Every product counts as one of 8 bits: wider ones take longer.
    """
    peak = PEAKS.get(target)
    if peak is None:
        return None
    compute = cost.all_macs * _OPS_PER_MAC / (peak.tops * _TERA) if peak.tops else None
    move = cost.least_traffic_bytes / (peak.dram_gb_s * _GIGA) if peak.dram_gb_s else None
    return Bound(compute, move, peak.source)
