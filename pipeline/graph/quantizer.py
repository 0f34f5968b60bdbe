"""QDQ models: a float model with the encodings of its values written into it as Q and DQ nodes.

The nodes are placed by onnxruntime's quantizer in its QNN configuration, called piece by piece so that ranges come from
our calibration and weights stay in memory. Where its recipe and what QNN EP 2.7 accepts differ, we follow the latter:

- A MatMul with a constant right-hand matrix becomes FullyConnected, which takes a scale per column, so it gets one. The
  recipe gives it a scale per tensor (MiniLM, w8a16: 15.4 dB of SQNR against 29.9).
- The scale of a LayerNormalization and the slope of a PRelu are uint8. Next to 16 bit activations, an int8 scale sends
  the one to the CPU, and a 16 bit slope fails the compilation of the other.
- A ConvTranspose in groups gets a scale per tensor: per channel, the quantizer takes the axis for that of one group.
- Every float value between the edges is quantized, the operands of Where and the results of data movement included.
- A constant that differs between buckets gets the encoding of its range over all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from pipeline.errors import QuantizationError
from pipeline.graph.encodings import Range
from pipeline.graph.index import GraphIndex, is_op, prune, sort_nodes
from pipeline.graph.model_file import tensor_array
from pipeline.graph.observe import FLOATS
from pipeline.graph.traverse import label

Q_OPS = ("QuantizeLinear", "DequantizeLinear")

_TYPES: Mapping[str, QuantType] = {
    "uint8": QuantType.QUInt8,
    "int8": QuantType.QInt8,
    "uint16": QuantType.QUInt16,
}
_COLUMNS = 1
"""The axis of the output channels in the right-hand matrix of a MatMul."""


@dataclass(frozen=True)
class Scheme:
    """How a component is quantized: types of activations (uint8, uint16) and weights (uint8, int8), and per channel."""

    activations: str
    weights: str
    per_channel: bool

    @property
    def name(self) -> str:
        """The short name people use: ``w8a16``."""
        return f"w{self.weights.lstrip('uint')}a{self.activations.lstrip('uint')}"


def quantize(model: ModelProto, folder: Path, ranges: Mapping[str, Range], scheme: Scheme) -> ModelProto:
    """The QDQ form of a model whose blobs are in `folder`; it carries all its tensors, and `model` is used up.

    `ranges` has the range of every float value a node makes, of float inputs, and of constants that differ between
    buckets. The same arguments give the same bytes.

    Raises:
        QuantizationError: a value has no range, or onnxruntime's quantizer refuses the model.
    """
    index = GraphIndex(model, folder)
    _check_ranges(index, ranges)
    with _quiet():
        # Before the weights are loaded: it asks for the model's size, which takes a serialization to find.
        config = get_qnn_qdq_config(
            model,
            None,
            activation_type=_TYPES[scheme.activations],
            weight_type=_TYPES[scheme.weights],
            per_channel=scheme.per_channel,
            init_overrides=_overrides(index, ranges, scheme),
            add_qtype_converts=False,
        )
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(tensor_array(tensor, folder), tensor.name))
        try:
            quantized = _quantizer(model, config, ranges).quantize_model()
        except (ValueError, TypeError, RuntimeError, AssertionError, KeyError) as error:
            raise QuantizationError(
                "onnxruntime's quantizer refuses the model",
                why=f"{type(error).__name__}: {error}",
                remedy="try per_channel: false, or {precision: fp16} for this component",
            ) from error
    return _tidied(quantized)


def float_nodes(model: ModelProto) -> list[str]:
    """The nodes of a QDQ model that compute on floats that were not quantized, as messages name them."""
    index = GraphIndex(model, Path())
    found = []
    for node in model.graph.node:
        if node.op_type in Q_OPS:
            continue
        given = [name for name in node.input if name and name not in index.initializers]
        bare = [name for name in given if not _is_dequantized(index, name) and _is_float(index, name)]
        if bare:
            found.append(label(node))
    return found


def _quantizer(model: ModelProto, config: Any, ranges: Mapping[str, Range]) -> QDQQuantizer:
    measured = {
        name: TensorData(lowest=np.float32(found.low), highest=np.float32(found.high)) for name, found in ranges.items()
    }
    # Says that the model has the types of all values; the quantizer would save it and load it again otherwise.
    helper.set_model_props(model, {"onnx.infer": "onnxruntime.quant"})
    return QDQQuantizer(
        model,
        config.per_channel,
        config.reduce_range,
        config.weight_type,
        config.activation_type,
        TensorsData(CalibrationMethod.MinMax, measured),
        config.nodes_to_quantize,
        config.nodes_to_exclude,
        config.op_types_to_quantize,
        {**config.extra_options, "ForceQuantizeNoInputCheck": True},
    )


def _check_ranges(index: GraphIndex, ranges: Mapping[str, Range]) -> None:
    for value in (*index.model.graph.input, *index.model.graph.value_info, *index.model.graph.output):
        if value.type.tensor_type.elem_type in FLOATS and value.name not in ranges:
            if value.name in index.initializers:
                continue
            node = index.makers.get(value.name)
            raise QuantizationError(
                f"value {value.name!r} has no calibrated range",
                where=f"node {label(node)}" if node is not None else "an input of the model",
                why="the ranges were measured on another model than this one",
                remedy="build again; if it stays, report it with the model",
            )


def _overrides(index: GraphIndex, ranges: Mapping[str, Range], scheme: Scheme) -> dict[str, list[dict[str, Any]]]:
    """What onnxruntime's QNN configuration can't know or gets wrong, by constant."""
    overrides = {}
    for name, tensor in index.initializers.items():
        if tensor.data_type not in FLOATS:
            continue
        if name in ranges:
            overrides[name] = {"rmin": np.float32(ranges[name].low), "rmax": np.float32(ranges[name].high)}
        elif (override := _weight_override(index, name, scheme)) is not None:
            overrides[name] = override
    return {name: [override] for name, override in overrides.items()}


def _weight_override(index: GraphIndex, name: str, scheme: Scheme) -> dict[str, Any] | None:
    """How a constant is quantized if not as the configuration says; depends on who reads it, in what place."""
    readers = index.readers.get(name, [])
    symmetric = {"quant_type": _TYPES[scheme.weights], "symmetric": True}
    if any(is_op(node, "LayerNormalization", "PRelu") and node.input[1] == name for node in readers):
        return {"quant_type": QuantType.QUInt8, "symmetric": False}
    if not scheme.per_channel:
        return None
    if len(index.initializers[name].dims) == 2 and all(
        is_op(node, "MatMul") and node.input[1] == name for node in readers
    ):
        return symmetric | {"axis": _COLUMNS}
    if any(is_op(node, "ConvTranspose") and _groups(node) > 1 for node in readers):
        return symmetric
    return None


def _groups(node: NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)


def _tidied(model: ModelProto) -> ModelProto:
    """The quantizer's result in topological order, with nothing in it that says when or by what it was made."""
    sort_nodes(model)
    for field in ("producer_name", "producer_version", "metadata_props"):
        model.ClearField(field)
    prune(model)
    return model


def _is_dequantized(index: GraphIndex, name: str) -> bool:
    maker = index.makers.get(name)
    return maker is not None and maker.op_type == "DequantizeLinear"


def _is_float(index: GraphIndex, name: str) -> bool:
    kind = index.types.get(name)
    return kind is not None and kind.tensor_type.elem_type in FLOATS


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep onnxruntime's remarks on single tensors out of the step's log: there are hundreds, none to act on."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
