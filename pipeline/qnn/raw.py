"""Runs a graph of a context binary by QNN's own interface, without ONNX Runtime: a second opinion about both.

As a program, `python -m pipeline.qnn.raw REQUEST`, it does so in a process of its own, which it ends at once: QNN's
library aborts when the process that ran it ends in order. :mod:`pipeline.qnn.child` calls it. The places of functions
in `QnnInterface_t` are those of `QnnInterface.h`, core API 2.x, whose minor versions append (read in 2.15, 2.31, 2.33;
2.40 is what runs here); `QnnHtpDevice_CustomConfig_t` has its union at byte 8, as QAIRT 2.51 reads it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.qnn import libraries
from pipeline.qnn.format.context_binary import HTP_BACKEND, GraphInfo, Version, read_binary
from pipeline.qnn.format.graph_io import IS_INPUT, IS_OUTPUT, EdgeTensor, Tensor, filled

CORE_API, LEAST_MINOR, BACKEND_API = 2, 31, 5
"""Major version of QNN's core interface, its least minor one, and the major version of the HTP backend's."""

_FUNCTIONS = {
    "backendCreate": 1,
    "contextCreateFromBinary": 13,
    "graphRetrieve": 20,
    "graphExecute": 21,
    "deviceCreate": 40,
}
_COUNT = 1 + max(_FUNCTIONS.values())

INPUTS, OUTPUTS, ANSWER = "inputs.npz", "outputs.npz", "answer.json"
"""Files beside the request."""


class RawError(Exception):
    """QNN refused a call, or has an interface that is not known here."""


def run_graph(binary: Path, graph: str, soc_model: int, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Execute one graph: `inputs` and outputs are as the binary declares them, encoded, by its names.

    Raises:
        RawError: QNN refuses the binary or the run.
        CompileError: the binary can't be read.
    """
    info = next((found for found in read_binary(binary).graphs if found.name == graph), None)
    if info is None:
        raise RawError(f"{binary.name} has no graph {graph!r}")
    qnn = _Qnn()
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
    qnn: _Qnn, handle: ctypes.c_void_p, info: GraphInfo, inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    given = [np.ascontiguousarray(inputs[tensor.name], tensor.dtype) for tensor in info.inputs]
    made = [np.empty(tensor.shape, tensor.dtype) for tensor in info.outputs]
    for tensor, array in zip(info.inputs, given, strict=True):
        if array.shape != tensor.shape:
            raise RawError(f"input {tensor} was given {array.shape}")
    records = [_records(info.inputs, given, IS_INPUT), _records(info.outputs, made, IS_OUTPUT)]
    counts = [ctypes.c_uint32(len(tensors)) for tensors in (info.inputs, info.outputs)]
    qnn.call("graphExecute", handle, records[0], counts[0], records[1], counts[1], None, None)
    return {tensor.name: array for tensor, array in zip(info.outputs, made, strict=True)}


def _records(tensors: Sequence[EdgeTensor], arrays: Sequence[NDArray[Any]], kind: int) -> ctypes.Array[Tensor]:
    records = (Tensor * len(tensors))()
    for record, tensor, array in zip(records, tensors, arrays, strict=True):
        filled(record, tensor, array, kind)
    return records


class _Qnn:
    """The functions of QNN's HTP library, once its versions were found to be those that are known here."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(libraries.sdk_library("QnnHtp")))
        providers = ctypes.POINTER(ctypes.POINTER(_Interface))()
        count = ctypes.c_uint32()
        status = library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
        if status or not count.value:
            raise RawError(f"QNN's HTP library gives no interface: error {status}, {count.value} providers")
        interface = providers[0].contents
        core, backend = interface.core, interface.backend
        if (
            (interface.backend_id, core.major, backend.major) != (HTP_BACKEND, CORE_API, BACKEND_API)
            or core.minor < LEAST_MINOR
        ):  # fmt: skip
            raise RawError(
                f"QNN's HTP library has core API {core} and backend API {backend} of backend {interface.backend_id};"
                f" known here are {CORE_API}.{LEAST_MINOR} and later, {BACKEND_API} and {HTP_BACKEND}"
            )
        self._functions = interface.functions

    def call(self, name: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            RawError: it returns an error.
        """
        function: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_uint64)(self._functions[_FUNCTIONS[name]])
        status = function(*arguments)
        if status:
            raise RawError(f"QNN's {name} gives error {status & 0xFFFF}")

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """The handle that a function makes, which it takes as its last argument."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def device(self, soc_model: int) -> ctypes.c_void_p:
        """The device that stands for a SoC."""
        custom = _DeviceSoc(0, soc_model)
        config = _DeviceConfig(0, ctypes.cast(ctypes.pointer(custom), ctypes.c_void_p))
        configs = (ctypes.POINTER(_DeviceConfig) * 2)(ctypes.pointer(config))  # ends with a null pointer
        return self.made("deviceCreate", None, configs)


class _Interface(ctypes.Structure):
    _fields_ = (
        ("backend_id", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("core", Version),
        ("backend", Version),
        ("functions", ctypes.c_void_p * _COUNT),
    )


class _DeviceConfig(ctypes.Structure):
    _fields_ = (("custom", ctypes.c_uint32), ("config", ctypes.c_void_p))


class _DeviceSoc(ctypes.Structure):
    _fields_ = (("option", ctypes.c_uint32), ("soc_model", ctypes.c_uint64))


def main(request_path: str) -> None:
    """Do what the request file says, leave outputs and answer beside it, and end the process."""
    request: dict[str, Any] = json.loads(Path(request_path).read_text("utf-8"))
    work = Path(request_path).parent
    answer: dict[str, str] = {}
    try:
        with np.load(work / INPUTS, allow_pickle=False) as archive:
            inputs = dict(zip(request["names"], archive.values(), strict=True))
        outputs = run_graph(Path(request["binary"]), request["graph"], request["soc_model"], inputs)
        np.savez(work / OUTPUTS, *outputs.values(), allow_pickle=False)
    except RawError as error:
        answer["refused"] = str(error)
    except PipelineError as error:
        answer["refused"] = f"{error.what}: {error.why}"
    (work / ANSWER).write_text(json.dumps(answer), "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
