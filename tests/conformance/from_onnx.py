"""Cases of the node tests that ship in the `onnx` package: those of one operator with tensors of numbers.

Losses are in float16 alone: no application runs them, and most crash the compiler, which costs a search each.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.errors import PipelineError
from pipeline.graph.files.model_file import MODEL, load_graph, tensor_array
from tests.conformance.cases import Case
from tests.conformance.formats import FORMATS, FP16
from tests.support.node_tests import node_tests, static, variants

EDGE = "node test"
_KINDS = "fiub"
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


def cases() -> Iterator[Case]:
    """All of them, in every format; those without floats in one."""
    with tempfile.TemporaryDirectory() as folder:
        for test in node_tests():
            if len(test.model.graph.node) != 1:
                continue
            operator = test.model.graph.node[0].op_type
            for variant, model, feeds in variants(test):
                if not all(_is_plain(array) for array in feeds.values()):
                    continue
                fixed = _static(model, feeds, Path(folder))
                if fixed is None or not fixed.graph.input or len(fixed.graph.node) == 0:
                    continue
                kept = {value.name: _single(feeds[value.name]) for value in fixed.graph.input}
                floats = any(array.dtype == np.float32 for array in kept.values())
                for number_format in FORMATS if floats and operator not in _LOSSES else (FP16,):
                    name = test.name + (f", {variant}" if variant else "")
                    yield Case(operator, number_format, EDGE, name, fixed, kept)


def _is_plain(array: object) -> bool:
    return (
        isinstance(array, np.ndarray) and array.size > 0 and array.dtype.kind in _KINDS and array.dtype.isbuiltin == 1
    )


def _static(model: ModelProto, feeds: Mapping[str, NDArray[Any]], folder: Path) -> ModelProto | None:
    """The model after ingest and shape, with its constants inside; None where a step refuses it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = static(model, feeds, folder)
    except PipelineError:
        return None
    found = load_graph(made.folder / MODEL)
    if any(attribute.HasField("g") for node in found.graph.node for attribute in node.attribute):
        return None
    for tensor in found.graph.initializer:
        if tensor.external_data:
            tensor.CopyFrom(numpy_helper.from_array(tensor_array(tensor, made.folder), tensor.name))
    return found


def _single(array: NDArray[Any]) -> NDArray[Any]:
    """What ingest makes of the type of an input."""
    return array.astype(np.float32) if array.dtype in (np.float16, np.float64) else array
