"""Writes a static model as a DLC, the form that Qualcomm's tools take a graph in, by the EP's IR back end.

The EP asks HTP about every node, as it does for a context, and gives the operators it makes to QNN's IR library in
place of HTP's compiler. So the graph is the one that the context was compiled of, by name, tensors and encodings.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn import failures
from pipeline.qnn.compiling.admission import weights_in_blocks
from pipeline.qnn.compiling.compiler import COMPILE_OPTIONS, Source, give_model, workshop
from pipeline.qnn.compiling.readback import read_trace
from pipeline.qnn.format.flexible import with_fixed_times
from pipeline.qnn.libraries import sdk_library
from pipeline.qnn.native_log import recorded
from pipeline.qnn.session import bundled_sdk, session_options

_FOLDER = "dlc"
_KEPT = ("enable_htp_fp16_precision", "offload_graph_io_quantization", "enable_framework_op_trace")
"""Compile options that decide which operators a node becomes, and what the inputs and outputs of the graph are."""


def write_dlc(model: Path, name: str, target: HtpTarget, path: Path) -> str:
    """Write the model file `model`, which HTP has to take whole for `target`, as the DLC `path`; its graph's name.

    Equal models and names give equal bytes: the times that QNN writes are set to a fixed one.

    Raises:
        ModelError, QuantizationError: as for a compile.
        CompileError: QNN did not take all of it or wrote no DLC, or weights have scales in blocks.
    """
    source = Source(name, model, [target])
    if in_blocks := weights_in_blocks(source.model):
        raise CompileError(
            f"{in_blocks[0]} can't be in a DLC, as its weight has scales in blocks",
            where=path.name,
            why=f"so have {len(in_blocks)} operators; QNN {bundled_sdk()} crashes when it composes a DLC with blocks",
            remedy="write quantization: {weights: uint8, per_channel: true}, or leave 'dlc' out of 'outputs'",
        )
    options = {option: COMPILE_OPTIONS[option] for option in _KEPT} | {
        "dump_qnn_ir_dlc": "1",
        "dump_qnn_ir_dlc_dir": _FOLDER,
        "qnn_ir_backend_path": str(sdk_library("QnnIr")),
        "framework_op_trace_dir": source.trace_folder,
    }
    settings = session_options(target, options)
    # As the compiler of contexts has it; a session's default would make other nodes of the model's.
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with workshop(path.parent) as work, recorded() as log:
        # The arrays must live until the session is made.
        arrays = give_model(settings, source, work)
        try:
            with contextlib.chdir(work):
                ort.InferenceSession(f"{name}.onnx", settings)
            said = ["it reported no error"]
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            said = [str(error)]
        del arrays
        written = sorted((work / _FOLDER).glob("*.dlc")) if (work / _FOLDER).is_dir() else []
        if len(written) != 1:
            refused = read_trace(work / source.trace_folder).unsupported
            said += [*log.errors(), *(f"{node.op} {node.name!r}: {node.reason}" for node in refused[:5])]
            raise _not_one(len(written), name, said, log.text())
        with_fixed_times(written[0], work / path.name)
        os.replace(work / path.name, path)
        return written[0].stem


def _not_one(count: int, name: str, said: Sequence[str], log: str) -> CompileError:
    why, remedy = failures.explain(said, log)
    return CompileError(f"QNN wrote {count} DLCs of {name}, not one", why=why, remedy=remedy)
