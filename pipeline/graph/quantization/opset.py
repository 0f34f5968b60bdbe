"""Models at the opset whose Q and DQ take blocks: what changed on the way there is written as it is there."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper

from pipeline.errors import QuantizationError
from pipeline.graph.files.model_file import inline_tensor
from pipeline.graph.files.runtime_operators import is_of_onnxruntime
from pipeline.graph.ir.index import opset
from pipeline.graph.ir.traverse import all_nodes, attribute_graphs, label

OWN_OPSET = 21
"""From here on ONNX's own Q and DQ take 16 and 4 bits, and blocks; before, onnxruntime's do, but no blocks."""

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip
"""Their axes are an input since 18."""
_MODES = {b"bilinear": b"linear", b"bicubic": b"cubic"}
"""Of GridSample, since 20."""
_SAME = frozenset({
    "AveragePool", "Cast", "CastLike", "Constant", "ConstantOfShape", "DequantizeLinear", "Equal", "Flatten", "Gelu",
    "GridSample", "Identity", "If", "IsInf", "IsNaN", "Loop", "LpPool", "Mish", "Pad", "QuantizeLinear", "Reshape",
    "Resize", "Scan", "ScatterElements", "ScatterND", "Shape", "Size", "Split", "Squeeze", "Transpose", "Unsqueeze",
    *_REDUCTIONS,
})  # fmt: skip
"""What took more types or attributes between 17 and 21 and does the same, or is rewritten here."""
_FIRST = 17


def raise_opset(model: ModelProto, nodes: Sequence[NodeProto], initializers: MutableMapping[str, TensorProto]) -> None:
    """Make nodes that are to be a model's, with more initializers, those of :data:`OWN_OPSET`; nothing at a later one.

    Raises:
        QuantizationError: an operator changed in a way that is not known here.
    """
    version = opset(model)
    if version >= OWN_OPSET:
        return
    _check(nodes, version)
    for node in _with_branches(nodes):
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _REDUCTIONS and version < 18:
            _give_axes(node, initializers)
        elif node.op_type == "Split" and len([name for name in node.input if name]) < 2 and version < 18:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        elif node.op_type == "GridSample" and version < 20:
            for attribute in node.attribute:
                if attribute.name == "mode":
                    attribute.s = _MODES.get(attribute.s, attribute.s)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = OWN_OPSET
    model.ir_version = max(model.ir_version, 10)


def _with_branches(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for branch in attribute_graphs(node):
            yield from all_nodes(branch)


def _check(nodes: Sequence[NodeProto], version: int) -> None:
    for node in _with_branches(nodes):
        if node.domain in ("", "ai.onnx") and node.op_type not in _SAME and not is_of_onnxruntime(node):
            schema = defs.get_schema(node.op_type, OWN_OPSET)
            if schema.since_version > version or version < _FIRST:
                raise QuantizationError(
                    "weights can't be in blocks in this model",
                    where=f"node {label(node)}",
                    why=f"blocks need opset {OWN_OPSET}, and {node.op_type} is another there than in {version}",
                    remedy=f"export the model with opset {OWN_OPSET}, or leave 'block' out",
                )


def _give_axes(node: NodeProto, initializers: MutableMapping[str, TensorProto]) -> None:
    axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), None)
    if axes is None:
        return
    kept = [attribute for attribute in node.attribute if attribute.name != "axes"]
    del node.attribute[:]
    node.attribute.extend(kept)
    name = f"{node.output[0]}_axes"
    initializers[name] = inline_tensor(name, np.array(axes, np.int64))
    node.input.append(name)
