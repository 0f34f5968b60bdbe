"""What a sweep tries: models of one operator with inputs, and what they are there to show."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from pipeline.graph.quantization.calibration.ranges import Range

Arrays = Mapping[str, NDArray[Any]]

OPSET = 21
_IR_VERSION = 10


@dataclass(frozen=True)
class Case:
    """A model of one operator, with inputs, in one number format.

    `edge` names the values or the form that it is about, `variant` tells cases of the same edge apart. `ranges` says
    what the encoding of a value covers where that is not what the value takes.
    """

    operator: str
    number_format: str
    edge: str
    variant: str
    model: ModelProto
    feeds: Arrays
    ranges: Mapping[str, Range] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name that no other case of a sweep has."""
        return f"{self.operator}/{self.number_format}/{self.edge}/{self.variant}"

    @property
    def content(self) -> bytes:
        """A digest of all that the outcome depends on: cases may differ by their names alone."""
        model = self.model.SerializeToString(deterministic=True)
        found = hashlib.sha256(f"{self.number_format} {sorted(self.ranges.items())} ".encode() + model)
        for name, array in sorted(self.feeds.items()):
            found.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        return found.digest()


def single(
    operator: str,
    inputs: Sequence[NDArray[Any] | None],
    *,
    constants: Sequence[int] = (),
    outputs: int = 1,
    opset: int = OPSET,
    **attributes: Any,
) -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    """A model of one operator and its feed; inputs at the positions `constants` are initializers, None is left out.

    Raises:
        onnx.shape_inference.InferenceError: the operator does not take these.
    """
    names = ["" if array is None else f"x{position}" for position, array in enumerate(inputs)]
    given = {position: array for position, array in enumerate(inputs) if array is not None}
    results = [f"y{position}" for position in range(outputs)]
    node = helper.make_node(operator, names, results, operator, **attributes)
    graph = helper.make_graph(
        [node],
        operator,
        [
            helper.make_tensor_value_info(names[at], helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for at, array in given.items()
            if at not in constants
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(array, names[at]) for at, array in given.items() if at in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION)
    typed: ModelProto = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return typed, {names[at]: np.asarray(array) for at, array in given.items() if at not in constants}
