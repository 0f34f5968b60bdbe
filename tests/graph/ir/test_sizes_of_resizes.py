from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from pipeline.graph.ir.inference import Opsets, infer_outputs, shape_of
from tests.support.graphs import graph

SCALES = (0.3, 0.7, 1 / 3, 1.1, 1.7, 2.3, 3.9)


@pytest.mark.parametrize("inputs", ["x, , s", "x, , s, "])
def test_a_resize_by_scales_has_the_size_that_onnxruntime_gives_it(inputs: str) -> None:
    text = f'g (float[1,1,size,4] x) => (float[a,b,c,d] y) {{ y = Resize <mode = "nearest"> ({inputs}) }}'
    for scale in SCALES:
        model = graph(text, {"s": np.array([1, 1, scale, 1], np.float32)})
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for size in range(4, 40):
            (made,) = session.run(None, {"x": np.zeros((1, 1, size, 4), np.float32)})
            types = {
                "x": helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 1, size, 4]),
                "s": helper.make_tensor_type_proto(TensorProto.FLOAT, [4]),
            }
            constants = {tensor.name: tensor for tensor in model.graph.initializer}
            found = infer_outputs(model.graph.node[0], types, constants.get, Opsets.of(model))
            assert shape_of(found["y"]) == made.shape, (size, scale)
