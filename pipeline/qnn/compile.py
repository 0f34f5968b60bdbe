"""Compiles one static model into a context model and its context binary, and believes only what it reads back.

Equal input gives equal bytes, on any path and in any folder, because three things are kept fixed. The compiler runs in
an empty folder with relative names only: ONNX Runtime derives the graph's name from the model's path as given, so
`<component>_<bucket>.onnx` makes it differ between buckets, which may then share a binary, and between nothing else.
External tensors are handed over as mapped memory instead of paths. And a process compiles once: the second binary of
a process differs from the first, for the same input.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.errors import CompileError
from pipeline.graph.model_file import is_external, load_graph, tensor_array
from pipeline.qnn import admission, failures
from pipeline.qnn.native_log import NativeLog, recorded
from pipeline.qnn.readback import Context, OpTrace, binary_names, read_context, read_trace
from pipeline.qnn.session import session_options
from pipeline.qnn.target import HtpTarget

_TRACE_FOLDER = "trace"

COMPILE_OPTIONS = {
    # The context is made here and run elsewhere: nothing is loaded onto a device after the compile.
    "enable_htp_prepare_only": "1",
    # 3 is the most thorough of QNN's modes. On MiniLM it adds half a second to a compile of one and a half.
    "htp_graph_finalization_optimization_mode": "3",
    # Float models run in float16; it is the default, and says so here because a typo in an option goes unnoticed.
    "enable_htp_fp16_precision": "1",
    # The conversions at the graph's edge stay on the CPU, so that inputs and outputs keep the model's dtypes cheaply.
    "offload_graph_io_quantization": "1",
    # The only place where QNN says why it left a node to the CPU. It does not change the binary.
    "enable_framework_op_trace": "1",
    "framework_op_trace_dir": _TRACE_FOLDER,
}

_compiled = False


def compile_context(model: Path, name: str, target: HtpTarget, out: Path) -> Context:
    """Compile the model file `model` into `<name>_ctx.onnx` and `<name>_ctx_qnn.bin` in the folder `out`.

    `name` becomes part of the bytes. To be called once in a process.

    Raises:
        ModelError: the model has a dim that is not fixed, an operator that crashes the compiler, or only float
            operators where the target has none.
        QuantizationError: a scale of the model is no positive number.
        CompileError: the compiler failed, or what it wrote is not what was asked for.
    """
    global _compiled
    if _compiled:
        raise CompileError(
            "a second compile in one process",
            where=name,
            why="its binary would differ from one that a fresh process makes of the same input",
            remedy="compile each context in a process of its own, as pipeline.worker does",
        )
    proto = load_graph(model)
    admission.check(proto, model.parent, target)
    settings = session_options(target, COMPILE_OPTIONS)
    arrays = _hand_over_external(settings, proto, model.parent)
    _compiled = True
    # Not in the system's temporary folder: that may be another file system, and too small.
    with tempfile.TemporaryDirectory(prefix="qnn-", dir=out.parent, ignore_cleanup_errors=True) as work:
        shutil.copyfile(model, Path(work, f"{name}.onnx"))
        with contextlib.chdir(work):
            _run_compiler(settings, name, target)
        del arrays
        context = read_context(Path(work), f"{name}_ctx.onnx", target, proto, read_trace(Path(work, _TRACE_FOLDER)))
        for file in (context.context_model, *context.binaries):
            os.replace(Path(work, file), out / file)
    return context


def _hand_over_external(settings: ort.SessionOptions, model: ModelProto, folder: Path) -> list[NDArray[Any]]:
    """Give the session the model's external tensors; the arrays returned must live until it is done."""
    external = [tensor for tensor in model.graph.initializer if is_external(tensor)]
    arrays = [_packed(tensor_array(tensor, folder)) for tensor in external]
    if external:
        values = [
            ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)
            for tensor, array in zip(external, arrays, strict=True)
        ]
        settings.add_external_initializers([tensor.name for tensor in external], values)
    return arrays


def _packed(array: NDArray[Any]) -> NDArray[Any]:
    """Memory from which onnxruntime reads a tensor of this shape: for 4 bits, two elements in each of the first bytes.

    numpy has a byte for each element; the second half stays unused.
    """
    if array.dtype.name not in ("int4", "uint4"):
        return array
    memory = np.zeros(array.shape, np.uint8)
    packed = np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
    memory.reshape(-1)[: packed.size] = packed
    return memory


def _run_compiler(settings: ort.SessionOptions, name: str, target: HtpTarget) -> None:
    """Compile `<name>.onnx` of the current folder into the current folder."""
    with recorded() as log:
        try:
            compiler = ort.ModelCompiler(
                settings, f"{name}.onnx", flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
            )
            compiler.compile_to_file(f"{name}_ctx.onnx")
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            raise _failed(name, target, str(error), log, read_trace(Path(_TRACE_FOLDER))) from error
        if not Path(f"{name}_ctx.onnx").exists() or not binary_names(load_graph(Path(f"{name}_ctx.onnx"))):
            raise _failed(name, target, "it reported no error", log, read_trace(Path(_TRACE_FOLDER)))


def _failed(name: str, target: HtpTarget, message: str, log: NativeLog, trace: OpTrace) -> CompileError:
    """The error for a compile that produced nothing: the cause if it is known, and QNN's own words in any case."""
    refused = [f"{node.op} {node.name!r}: {node.reason}" for node in trace.unsupported]
    said = [message, *log.errors(), *refused[:5]]
    if len(refused) > 5:
        said.append(f"and {len(refused) - 5} more nodes")
    why, remedy = failures.explain(said, log.text())
    what = f"QNN compiled nothing of {name} for {target}"
    return CompileError(what, where=f"{name}.onnx", why=why, remedy=remedy)
