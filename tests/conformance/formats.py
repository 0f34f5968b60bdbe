"""The number formats that a model is put into: float16, and QDQ with 16 or 8 bit activations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from pipeline.contracts.scheme import Scheme
from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.quantizer import quantize

Arrays = Mapping[str, NDArray[Any]]

FP16 = "fp16"
SCHEMES: Mapping[str, Scheme] = {
    "u16": Scheme("uint16", "uint8", per_channel=True),
    "u8": Scheme("uint8", "uint8", per_channel=True),
}
FORMATS = (FP16, *SCHEMES)

_NOWHERE = Path()


def in_format(model: ModelProto, feeds: Arrays, number_format: str, ranges: Mapping[str, Range]) -> ModelProto:
    """The model as the build would compile it in this format; `model` is used up.

    Encodings cover what the values are for `feeds`, but where `ranges` says otherwise. A QDQ model stays as it is.

    Raises:
        QuantizationError: a value is not finite, or can't be quantized.
    """
    if number_format == FP16 or any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        return model
    return quantize(model, _NOWHERE, {**observed(model, feeds), **ranges}, SCHEMES[number_format]).model


def observed(model: ModelProto, feeds: Arrays) -> dict[str, Range]:
    """The range of every float value that is no constant."""
    return {name: Range.of(array).rounded() for name, array in values(model, feeds).items() if array.size}


def values(model: ModelProto, feeds: Arrays) -> dict[str, NDArray[Any]]:
    """Every float value of a model that is no constant, inputs included."""
    whole = ModelProto()
    whole.CopyFrom(model)
    graph = whole.graph
    known = {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    graph.output.extend(value for value in graph.value_info if value.name in made - known and _is_float(value))
    session = unoptimized_session(whole, _NOWHERE)
    names = [value.name for value in graph.output if _is_float(value)]
    found = dict(zip(names, session.run(names, dict(feeds)), strict=True)) if names else {}
    return found | {name: array for name, array in feeds.items() if array.dtype == np.float32}


def _is_float(value: Any) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.FLOAT)
