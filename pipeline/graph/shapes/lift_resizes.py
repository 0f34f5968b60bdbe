"""Resizing of opsets before 11, in the form that it has since.

    Upsample(x, scales), Resize(x, scales)      of opset 7 to 10

becomes::

    Resize(x, , scales)      asymmetric; the nearest pixel is the one before, or the one behind where it shrinks

which is what onnxruntime computes for them. ONNX's converter (1.23) takes the old scales for a region, and doesn't say.
PyTorch's, Darknet's and Keras' exporters wrote such files for years.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import is_external
from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.inference import Opsets
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, all_graphs, label

RESIZE = "Resize"
_OPSET = 11


def lift_resizes(model: ModelProto) -> list[NodeProto]:
    """Write resizing nodes in the form of opset 11, in place; returns them. None at that opset or later."""
    opset = Opsets.of(model).versions.get("", _OPSET)
    if opset >= _OPSET:
        return []
    lifted: list[NodeProto] = []
    for graph in all_graphs(model.graph):
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        tensors |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
        for node in graph.node:
            if node.op_type not in ("Upsample", RESIZE) or node.domain not in DEFAULT_DOMAINS:
                continue
            attributes = settings(node)
            mode = attributes.get("mode", b"nearest")
            if len(node.input) < 2:  # opset 7 and 8: the scales are an attribute
                scales = f"{node.output[0]}/scales"
                values = np.array(attributes.get("scales", ()), np.float32)
                tensors[scales] = numpy_helper.from_array(values, scales)
                graph.initializer.append(tensors[scales])
            else:
                scales = node.input[1]
            if (
                mode == b"nearest"
                and _shrinks(tensors.get(scales))
                and (numpy_helper.to_array(tensors[scales]) > 1).any()
            ):
                raise _mixed(node)
            given = [node.input[0], "", scales]
            node.CopyFrom(
                helper.make_node(
                    RESIZE,
                    given,
                    list(node.output),
                    node.name,
                    mode=mode,
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="ceil" if _shrinks(tensors.get(scales)) else "floor",
                )
            )
            lifted.append(node)
    return lifted


def _mixed(node: NodeProto) -> ModelError:
    return ModelError(
        f"node {label(node)} grows one axis and shrinks another",
        why="in opsets before 11 the nearest pixel is then another one on each axis, which later ones can't say",
        remedy="export the model with opset 11 or later",
    )


def _shrinks(scales: TensorProto | None) -> bool:
    """Whether a tensor holds a scale below 1; a value that is no constant is taken to hold none."""
    if scales is None or scales.data_type != TensorProto.FLOAT or is_external(scales):
        return False
    return bool((numpy_helper.to_array(scales) < 1).any())
