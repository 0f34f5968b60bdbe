"""What a context is compiled for, as QNN sees it."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT16_HTP_ARCH = 69
"""The first Hexagon architecture whose HTP computes in float16.

The compiler takes float models for v68 all the same and gives a binary that the device can't run:
https://github.com/onnxruntime/onnxruntime-qnn/pull/708. On the emulator such a binary computes in float32.
"""


@dataclass(frozen=True)
class HtpTarget:
    """A SoC by the SDK's id, with what to compile for. `vtcm_mb` None leaves it to the compiler, which takes 4 MB."""

    soc_model: int
    htp_arch: int
    vtcm_mb: int | None = None

    def __str__(self) -> str:
        return f"SoC {self.soc_model} (HTP v{self.htp_arch})"
