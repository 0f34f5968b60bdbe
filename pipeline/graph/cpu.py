"""Running models on onnxruntime's CPU, so that the same model and input give the same values every time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from pipeline.errors import CalibrationError
from pipeline.graph.files.model_file import external_bytes, load_graph, tensor_array
from pipeline.graph.files.stored_form import ENTRY, form_of, without_forms

# onnxruntime's exceptions have no base class of their own.
_REFUSALS = (errors.Fail, errors.InvalidArgument, errors.RuntimeException)

_known: WeakValueDictionary[Hashable, NDArray[Any]] = WeakValueDictionary()

Arrays = Mapping[str, NDArray[Any]]


def load_session(path: Path) -> ort.InferenceSession:
    """A session for a graph file: float or QDQ, with Q and DQ computed as written."""
    options = _options(ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    # Integer kernels in place of DQ, op, Q round otherwise, and on some CPUs saturate.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if ENTRY in path.read_bytes():  # only then is the graph worth parsing here
        return _session(load_graph(path), path.parent, options)
    return _optimized(str(path), options)


def unoptimized_file(path: Path) -> ort.InferenceSession:
    """A session that computes every value of a file as it says; weights beside the file are mapped, not copied."""
    options = _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    options.add_session_config_entry("session.disable_prepacking", "1")
    return _optimized(str(path), options)


def unoptimized_session(model: ModelProto, folder: Path) -> ort.InferenceSession:
    """A session that computes every value of a model in memory as the graph says; `folder` holds its blobs."""
    return _session(model, folder, _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL))


def frugal_session(model: ModelProto, folder: Path) -> ort.InferenceSession:
    """As :func:`unoptimized_session`, in less memory: nodes run in the order in which they stand, once what they read
    is there, and each result is given back to the system as soon as nobody reads it any more.
    """
    options = _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    # The other order begins with all nodes that read nothing but weights.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    return _session(model, folder, options)


def _session(model: ModelProto, folder: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session for a model in memory, which is handed the tensors that its blobs have in a form of their own.

    onnxruntime makes no copy of these ("prepacking"), and sessions of one process share them.
    """
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    formed = [tensor for tensor in model.graph.initializer if form_of(tensor)]
    if not formed:
        return _optimized(model.SerializeToString(), options)
    arrays = [_shared(tensor, folder) for tensor in formed]
    values = [ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.FLOAT) for array in arrays]
    for tensor, value in zip(formed, values, strict=True):
        options.add_initializer(tensor.name, value)
    options.add_session_config_entry("session.disable_prepacking", "1")
    raw = without_forms(model).SerializeToString()
    session = _optimized(raw, options)
    session.held = (arrays, values)  # onnxruntime reads them where they are
    return session


def _optimized(model: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session, without moved Transposes where onnxruntime moves them so that shapes don't fit any more.

    It does (1.31) where two values that are transposed alike are compared in float and one of them is used again.
    """
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except errors.Fail:
        kept = ["TransposeOptimizer"]
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=kept)


def _shared(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """The numbers of a tensor; the same object for the same tensor of the same file, while some session holds it."""
    path, offset, _ = external_bytes(tensor, folder)
    file, form = path.stat(), form_of(tensor)
    key = file.st_dev, file.st_ino, file.st_mtime_ns, offset, form and form.text, tuple(tensor.dims)
    found = _known.get(key)
    if found is None:
        found = _known[key] = tensor_array(tensor, folder)
    return found


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
