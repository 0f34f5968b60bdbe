"""What scikit-learn's pipelines do around a network, in the domain ``ai.onnx.ml``.

Operators: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from pipeline.graph.fused.unfused import Unfused


def write_scaler(made: Unfused) -> None:
    """Scaler: ``(x - offset) scale`` in float32, either of them one number, or one for each feature."""
    x = made.given(0)
    if made.element_type(x) != TensorProto.FLOAT:
        x = made.op("Cast", x, to=TensorProto.FLOAT)
    for kind, name in (("Sub", "offset"), ("Mul", "scale")):
        if values := made.numbers(name):
            x = made.op(kind, x, made.constant(np.array(values, np.float32)))
    made.give(0, x)
