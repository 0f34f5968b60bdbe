"""What it takes to compute a context, as far as its graph and its binary tell without the chip."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class CostFacts(Contract):
    """The cost of one run of a context in operations and bytes; nothing here is a time.

    `macs` has the multiply-accumulates of matrix products and convolutions by the format of their numbers, such as
    `w8a16`, `a16a16` for a product of two activations, or `fp16`; `elements` is how many numbers all other operators
    make. `weight_bytes` counts each constant once, `activation_bytes` each value between operators once, and
    `edge_bytes` the inputs and outputs of the graph.

    `operators` has for each kind of the compiler's own operators how many came from which ONNX operators; empty if the
    compiler gave no list. `vtcm_bytes` of the chip's fast memory are used, and `spill_bytes` is the buffer in DRAM for
    what does not fit there, both as the binary says of its largest graph. `dram_read_bytes` and `dram_write_bytes` are
    the traffic that the compiler plans; None if it gives none.
    """

    macs: Mapping[str, int]
    elements: int
    weight_bytes: int
    activation_bytes: int
    edge_bytes: int
    operators: Mapping[str, Mapping[str, int]]
    vtcm_bytes: int
    spill_bytes: int
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None

    @property
    def all_macs(self) -> int:
        """Multiply-accumulates of all formats."""
        return sum(self.macs.values())

    @property
    def least_traffic_bytes(self) -> int:
        """Bytes between chip and DRAM: what the compiler plans to move or, if unknown, weights, inputs and outputs."""
        if self.dram_read_bytes is not None and self.dram_write_bytes is not None:
            return self.dram_read_bytes + self.dram_write_bytes
        return self.weight_bytes + self.edge_bytes
