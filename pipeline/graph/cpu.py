"""Running models on onnxruntime's CPU, so that the same model and input give the same values every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from pipeline.errors import CalibrationError

# onnxruntime's exceptions have no base class of their own.
_REFUSALS = (errors.Fail, errors.InvalidArgument, errors.RuntimeException)

Arrays = Mapping[str, NDArray[Any]]


def load_session(path: Path) -> ort.InferenceSession:
    """A session for a graph file: float or QDQ, with Q and DQ computed as written."""
    options = _options(ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    # Integer kernels in place of DQ, op, Q round otherwise, and on some CPUs saturate.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def unoptimized_session(model: ModelProto, folder: Path) -> ort.InferenceSession:
    """A session that computes every value of a model in memory as the graph says; `folder` holds its blobs."""
    options = _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, feeds: Arrays, outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Some outputs of a session by name, or all. Inputs that the session doesn't have are left out.

    Raises:
        CalibrationError: the model can't compute these inputs, such as ids beyond its embedding.
    """
    given = {value.name: np.ascontiguousarray(feeds[value.name]) for value in session.get_inputs()}
    names = list(outputs) if outputs is not None else [value.name for value in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, given), strict=True))
    except _REFUSALS as error:
        raise CalibrationError(
            "the original model can't compute a sample",
            why=str(error).split("Status Message:")[-1].strip(),
            remedy="check that tokenizer and samples belong to this model, and that ids are below its vocabulary size",
        ) from error


def _options(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    # Sums may be split by thread, and threads by host; steps run side by side anyway.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
