"""Refuses models that would crash the compiler, or that it would compile wrongly without an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, TensorShapeProto, ValueInfoProto

from pipeline.contracts.target import HtpTarget
from pipeline.errors import ModelError, QuantizationError
from pipeline.graph.files.model_file import tensor_array
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_op
from pipeline.qnn.target import FLOAT16_HTP_ARCH

CRASHING_OPS = {"Mish": "x * tanh(softplus(x))"}
"""Operators that end the process inside onnxruntime-qnn 2.7, and what to write instead.

They are ONNX functions that onnxruntime has no kernel for: it expands them while the EP still holds the node.
"""

_VOLUME = 5
"""How many dims the weight of a convolution over three axes has."""

FLOAT16_OPS = frozenset({"GRU", "LSTM"})
"""Operators that HTP computes in float16 even in a QDQ model. For v68, QNN says that it needs more memory for them."""


def check(model: ModelProto, folder: Path, target: HtpTarget) -> None:
    """Refuse a model that can't become a context for `target`; `folder` holds its external data.

    Raises:
        ModelError: it has a dim that is not fixed, an operator that crashes the compiler or comes out wrong,
            or it has to be computed in
            float16 and the target can't.
        QuantizationError: a scale is zero, negative, infinite or NaN, or blocks of weights have zero points.
    """
    _check_shapes(model)
    _check_operators(model)
    _check_transposed(model)
    _check_blocks(model, folder)
    _check_scales(model, folder)
    _check_precision(model, target)


def _check_transposed(model: ModelProto) -> None:
    """Refuse a ConvTranspose of 5 dims in groups: QNN takes it, and other numbers come out (emulator of 2.51)."""
    dims = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if is_op(node, "DequantizeLinear"):
            dims[node.output[0]] = dims.get(node.input[0], 0)
        groups = integer(node, "group", 1) if is_op(node, "ConvTranspose") else 1
        if groups > 1 and dims.get(node.input[1]) == _VOLUME:
            raise ModelError(
                f"a ConvTranspose of 5 dims in {groups} groups comes out wrong",
                where=f"node {node.name!r} (ConvTranspose)",
                why="QNN compiles it and computes other numbers, without saying so",
                remedy="export the model with one ConvTranspose for each group (Split before, Concat behind)",
            )


def _check_shapes(model: ModelProto) -> None:
    open_dims = [
        f"{value.name} [{', '.join(str(dim.dim_value or dim.dim_param or '?') for dim in _dims(value))}]"
        for value in (*model.graph.input, *model.graph.output)
        if any(dim.dim_value <= 0 for dim in _dims(value))
    ]
    if open_dims:
        raise ModelError(
            "a model with dims that are not fixed can't be compiled",
            why=f"HTP takes static shapes only, and QNN would leave the rest to the CPU: {', '.join(open_dims)}",
            remedy="fix every axis: name it under 'fixed' or 'buckets' in the model's config",
        )


def _dims(value: ValueInfoProto) -> list[TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _check_operators(model: ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in CRASHING_OPS and node.domain in ("", "ai.onnx"):
            raise ModelError(
                f"the operator {node.op_type} crashes the QNN compiler",
                where=f"node {node.name!r}",
                why="onnxruntime-qnn 2.7 ends the process on it",
                remedy=f"export the model with {CRASHING_OPS[node.op_type]} in its place",
            )


def _check_blocks(model: ModelProto, folder: Path) -> None:
    """Refuse weights in blocks with zero points: QNN takes them and computes as if the zero points were 0.

    A MatMul with 16 bit activations (emulator of 2.51): int4 67 dB with zero points of 0, 0.6 with 3; uint4 60 dB with
    0, -9.5 with 8.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not is_op(node, "DequantizeLinear") or not integer(node, "block_size") or len(node.input) < 3:
            continue
        zero_point = constants.get(node.input[2])
        if zero_point is not None and tensor_array(zero_point, folder).any():
            raise QuantizationError(
                f"the weight {node.input[0]!r} is stored in blocks with zero points",
                where=f"node {node.name!r}",
                why="QNN compiles it and computes as if the zero points were 0, without saying so",
                remedy="quantize these weights symmetrically (zero points of 0), or give the model in float",
            )


def weights_in_blocks(model: ModelProto) -> list[str]:
    """The operators that read a weight with scales in blocks, each with its node's name, as in ``MatMul 'product'``."""
    blocks = {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and integer(node, "block_size")
    }
    return [f"{node.op_type} {node.name!r}" for node in model.graph.node if blocks & {*node.input}]


def _check_scales(model: ModelProto, folder: Path) -> None:
    in_blocks = {node.input[1] for node in model.graph.node if integer(node, "block_size")}
    for scale in _scales(model):
        values = tensor_array(scale, folder)
        # In blocks of weights, HTP takes negative ones, too.
        sizes = np.abs(values) if scale.name in in_blocks else values
        if not (np.isfinite(sizes) & (sizes > 0)).all():
            raise QuantizationError(
                f"the scale {scale.name!r} is not a positive number",
                why="QNN takes a scale of 0 and computes nothing with it, and refuses NaN without saying where",
                remedy="calibrate with samples on which this tensor varies, and without NaN or infinity",
            )


def _check_precision(model: ModelProto, target: HtpTarget) -> None:
    quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    if not quantized and target.htp_arch < FLOAT16_HTP_ARCH:
        raise ModelError(
            f"a model that is not quantized can't run on {target}",
            why=f"the HTP computes in float16 from v{FLOAT16_HTP_ARCH} on; QNN compiles the model and the device fails",
            remedy="quantize the component, or choose a newer target",
        )
    recurrent = next((node for node in model.graph.node if is_op(node, *FLOAT16_OPS)), None)
    if recurrent is not None and target.htp_arch < FLOAT16_HTP_ARCH:
        raise ModelError(
            f"{recurrent.op_type} can't run on {target}",
            where=f"node {recurrent.name!r}",
            why=f"HTP computes it in float16, quantized or not, and has that from v{FLOAT16_HTP_ARCH} on",
            remedy="choose a newer target, or export the cell as single operators",
        )


def _scales(model: ModelProto) -> Iterator[TensorProto]:
    used = {node.input[1] for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    return (tensor for tensor in model.graph.initializer if tensor.name in used)
