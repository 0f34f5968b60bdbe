"""What a context is compiled for, as QNN sees it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.graph.scheme import FP16, Scheme

FLOAT16_HTP_ARCH = 73
"""The first Hexagon architecture that float models are compiled for.

The compiler takes them for v68 all the same and gives a binary that the device can't run:
https://github.com/onnxruntime/onnxruntime-qnn/pull/708. For v69 public accounts differ
(https://github.com/microsoft/onnxruntime/issues/21848 says v73), and no v69 device was at hand: it is left out.
"""


@dataclass(frozen=True)
class HtpTarget:
    """A SoC by the SDK's id, with what to compile for. `vtcm_mb` None leaves it to the compiler, which takes 4 MB."""

    soc_model: int
    htp_arch: int
    vtcm_mb: int | None = None

    def __str__(self) -> str:
        return f"SoC {self.soc_model} (HTP v{self.htp_arch})"


WIDE_PRODUCTS_HTP_ARCH = 73
"""The first Hexagon architecture that multiplies 16 bit activations with each other at full width.

Older ones refuse the int16 operand that it takes ("16bit Activation and 16bit Weight require minimum arch V73" in the
HTP operator definitions, quoted in https://github.com/microsoft/onnxruntime/issues/21848).
"""


def check_scheme(scheme: Scheme, htp_arch: int) -> str | None:
    """Why a scheme can't be used on an architecture, None if it can. Asks nothing of the model.

    What was found by compiling MatMul, Gemm, Conv (plain, depthwise, in groups) and ConvTranspose for every
    architecture from v68 to v81, and running the result on the emulator: activations of 8 and 16 bits take weights of
    4 and 8 bits on all of them.
    """
    if scheme.wide_products and htp_arch < WIDE_PRODUCTS_HTP_ARCH:
        return f"the HTP multiplies 16 by 16 bits from v{WIDE_PRODUCTS_HTP_ARCH} on, not on v{htp_arch}"
    for number, rule in enumerate(scheme.overrides, 1):
        if rule.precision == FP16 and htp_arch < FLOAT16_HTP_ARCH:
            return (
                f"rule {number} of 'overrides' keeps {', '.join(rule.places)} in fp16, and the HTP computes in float16"
                f" from v{FLOAT16_HTP_ARCH} on, not on v{htp_arch}"
            )
    return None
