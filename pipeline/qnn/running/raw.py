"""Runs a graph of a context binary by QNN's own interface, without ONNX Runtime: a second opinion about both.

As a program, `python -m pipeline.qnn.running.raw REQUEST`, it does so in a process of its own, which it ends at once.
:mod:`pipeline.qnn.child` calls it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pipeline.qnn.format.context_binary import GraphInfo, read_binary
from pipeline.qnn.format.graph_io import IS_INPUT, IS_OUTPUT, EdgeTensor, Tensor, filled
from pipeline.qnn.interface import Qnn, QnnError, answer_and_end

INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"
"""Files beside the request."""


def run_graph(binary: Path, graph: str, soc_model: int, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Execute one graph: `inputs` and outputs are as the binary declares them, encoded, by its names.

    Raises:
        QnnError: QNN refuses the binary or the run.
        CompileError: the binary can't be read.
    """
    info = next((found for found in read_binary(binary).graphs if found.name == graph), None)
    if info is None:
        raise QnnError(f"{binary.name} has no graph {graph!r}")
    qnn = Qnn()
    backend, device = qnn.made("backendCreate", None, None), qnn.device(soc_model)
    data = np.fromfile(binary, np.uint8)
    context = ctypes.c_void_p()
    qnn.call(
        "contextCreateFromBinary", backend, device, None, ctypes.c_void_p(data.ctypes.data),
        ctypes.c_uint64(data.nbytes), ctypes.byref(context), None,
    )  # fmt: skip
    handle = ctypes.c_void_p()
    qnn.call("graphRetrieve", context, graph.encode(), ctypes.byref(handle))
    return _executed(qnn, handle, info, inputs)


def _executed(
    qnn: Qnn, handle: ctypes.c_void_p, info: GraphInfo, inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    given = [np.ascontiguousarray(inputs[tensor.name], tensor.dtype) for tensor in info.inputs]
    made = [np.empty(tensor.shape, tensor.dtype) for tensor in info.outputs]
    for tensor, array in zip(info.inputs, given, strict=True):
        if array.shape != tensor.shape:
            raise QnnError(f"input {tensor} was given {array.shape}")
    records = [_records(info.inputs, given, IS_INPUT), _records(info.outputs, made, IS_OUTPUT)]
    counts = [ctypes.c_uint32(len(tensors)) for tensors in (info.inputs, info.outputs)]
    qnn.call("graphExecute", handle, records[0], counts[0], records[1], counts[1], None, None)
    return {tensor.name: array for tensor, array in zip(info.outputs, made, strict=True)}


def _records(tensors: Sequence[EdgeTensor], arrays: Sequence[NDArray[Any]], kind: int) -> ctypes.Array[Tensor]:
    records = (Tensor * len(tensors))()
    for record, tensor, array in zip(records, tensors, arrays, strict=True):
        filled(record, tensor, array, kind)
    return records


def _run(request: Mapping[str, Any], work: Path) -> Mapping[str, str]:
    with np.load(work / INPUTS, allow_pickle=False) as archive:
        inputs = dict(zip(request["names"], archive.values(), strict=True))
    outputs = run_graph(Path(request["binary"]), request["graph"], request["soc_model"], inputs)
    np.savez(work / OUTPUTS, *outputs.values(), allow_pickle=False)
    return {}


def main(request_path: str) -> NoReturn:
    """Do what the request file says, leave the answer beside it, and end the process."""
    answer_and_end(request_path, _run)


if __name__ == "__main__":
    main(sys.argv[1])
