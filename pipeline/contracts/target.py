"""The target that a context is compiled for, in QNN's terms."""

from __future__ import annotations

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class HtpTarget(Contract):
    """A SoC by its id in the SDK, and its HTP architecture. With `vtcm_mb` None, the compiler takes its default, 4 MB.

    `options` are further provider options for the compile, sorted by name; None if there are none.
    """

    soc_model: int
    htp_arch: int
    vtcm_mb: int | None = None
    options: tuple[tuple[str, str], ...] | None = left_out()

    def __str__(self) -> str:
        return f"SoC {self.soc_model} (HTP v{self.htp_arch})"
