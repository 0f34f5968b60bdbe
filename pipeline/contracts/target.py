"""What a context is compiled for, as QNN sees it."""

from __future__ import annotations

from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class HtpTarget(Contract):
    """A SoC by the SDK's id, with what to compile for. `vtcm_mb` None leaves it to the compiler, which takes 4 MB."""

    soc_model: int
    htp_arch: int
    vtcm_mb: int | None = None

    def __str__(self) -> str:
        return f"SoC {self.soc_model} (HTP v{self.htp_arch})"
