"""What a context is compiled for, as QNN sees it."""

from __future__ import annotations

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class HtpTarget(Contract):
    """A SoC by the SDK's id, with what to compile for. `vtcm_mb` None leaves it to the compiler, which takes 4 MB.

    `options` are further provider options to compile with, in the order of their names; None if there are none.
    """

    soc_model: int
    htp_arch: int
    vtcm_mb: int | None = None
    options: tuple[tuple[str, str], ...] | None = left_out()

    def __str__(self) -> str:
        return f"SoC {self.soc_model} (HTP v{self.htp_arch})"
