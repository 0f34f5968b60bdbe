"""What differs between the architectures that contexts are compiled for."""

from __future__ import annotations

FLOAT16_HTP_ARCH = 73
"""The first Hexagon architecture that float models are compiled for.

The compiler takes them for v68 all the same and gives a binary that the device can't run:
https://github.com/onnxruntime/onnxruntime-qnn/pull/708. For v69 public accounts differ
(https://github.com/microsoft/onnxruntime/issues/21848 says v73), and no v69 device was at hand: it is left out.
"""


ON_DEVICE_HTP_ARCH = 68
"""The Hexagon architecture whose contexts are compiled on the device unless the config says otherwise.

Contexts that the QNN EP makes on x86_64 for it compile and then fail on the device, those made on the device run
(https://github.com/microsoft/onnxruntime/issues/26686, where v73 and later do either way).
"""

BLOCKS_HTP_ARCH = 69
"""The first Hexagon architecture with scales of weights in blocks. QNN 2.51 compiles none before (emulated to v81)."""
WIDE_PRODUCTS_HTP_ARCH = 73
"""The first Hexagon architecture that multiplies 16 bit activations with each other at full width.

Older ones refuse the int16 operand that it takes ("16bit Activation and 16bit Weight require minimum arch V73" in the
HTP operator definitions, quoted in https://github.com/microsoft/onnxruntime/issues/21848).
"""

SHARED_WEIGHTS_HTP_ARCH = 73
"""The first Hexagon architecture that contexts with shared weights are for, by QNN EP's documentation.

https://github.com/onnxruntime/onnxruntime-qnn/blob/main/docs/execution_providers/QNN-ExecutionProvider.md
"""
