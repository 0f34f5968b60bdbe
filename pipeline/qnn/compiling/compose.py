"""Composes the graph of a DLC on HTP and finalizes it for a target, as an application does that is given a DLC.

A DLC holds a graph of QNN's operators for no chip in particular. Only composing it shows whether HTP takes it. The
program `python -m pipeline.qnn.compiling.compose REQUEST` does so in a process of its own; :mod:`pipeline.qnn.child`
calls it. The functions are those of `QnnSystemDlc.h`, the settings of the graph those of `QnnHtpGraph.h`.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.qnn.compiling.compiler_threads import compiler_threads
from pipeline.qnn.format.context_binary import system_interface
from pipeline.qnn.interface import Qnn, QnnError, QnnInterface, answer_and_end, check

LEAST_SYSTEM_MINOR = 7
"""The minor version of QNN's system interface, major 1, in which functions for DLCs were read; later ones append."""

_GRAPH_INFO_VERSION = _CONFIG_VERSION = 1
_CUSTOM = 0
_OPTIMIZATION, _PRECISION, _VTCM = 1, 2, 3
_OPTIMIZATION_FLAG = 3
_FLOAT16 = 1
_ERRORS_ONLY = 1
_MARKS = ("<E>", "[ ERROR ]")
_REFUSED = re.compile(r"Failed to validate op (.+) with error \w+")


def compose(
    dlc: Path, graph: str, soc_model: int, binary: Path, *, vtcm_mb: int | None = None, optimization: int
) -> None:
    """Write the context binary of the one graph of a DLC. To be called in a process that ends at once.

    Raises:
        QnnError: QNN refuses the DLC or its graph, or has an interface that is not known here.
        CompileError: QNN's system library is of another version.
    """
    qnn, system = Qnn(), system_interface()
    if system.api_version.minor < LEAST_SYSTEM_MINOR:
        known = f"known here are 1.{LEAST_SYSTEM_MINOR} and later"
        raise QnnError(f"QNN's system library has API {system.api_version}; {known}")
    backend, device = qnn.made("backendCreate", qnn.log(), None), qnn.device(soc_model)
    context = qnn.made("contextCreate", backend, device, None)
    log, opened = ctypes.c_void_p(), ctypes.c_void_p()
    create = ctypes.CFUNCTYPE(ctypes.c_uint64)
    check("systemLogCreate", create(system.log_create)(None, ctypes.c_uint32(_ERRORS_ONLY), ctypes.byref(log)))
    check("systemDlcCreateFromFile", create(system.dlc_create_from_file)(log, bytes(dlc), ctypes.byref(opened)))
    graphs, count = ctypes.c_void_p(), ctypes.c_uint32()
    settings = _Settings(graph, vtcm_mb, optimization)
    status = _COMPOSE(system.dlc_compose_graphs)(
        opened, settings.configs, 1, backend, context, qnn.whole(), _GRAPH_INFO_VERSION,
        ctypes.byref(graphs), ctypes.byref(count),
    )  # fmt: skip
    if status:  # 1002 whatever the cause is, which has another meaning elsewhere; the log has the cause
        raise QnnError(f"QNN's systemDlcComposeGraphs gave up ({status & 0xFFFF})")
    if count.value != 1:
        raise QnnError(f"{dlc.name} has {count.value} graphs, not one")
    handle = ctypes.c_void_p()
    qnn.call("graphRetrieve", context, graph.encode(), ctypes.byref(handle))
    qnn.call("graphFinalize", handle, None, None)
    size, written = ctypes.c_uint64(), ctypes.c_uint64()
    qnn.call("contextGetBinarySize", context, ctypes.byref(size))
    data = (ctypes.c_uint8 * size.value)()
    qnn.call("contextGetBinary", context, data, size, ctypes.byref(written))
    binary.write_bytes(memoryview(data)[: written.value])


def errors(log: str) -> list[str]:
    """The distinct lines that QNN printed as errors, in their order."""
    found = [line.partition(mark)[2].strip() for line in log.splitlines() for mark in _MARKS if mark in line]
    return list(dict.fromkeys(found))


def refused_operators(lines: Sequence[str]) -> list[str]:
    """The names of the operators that HTP refused, as errors tell them; the EP names one after its ONNX node."""
    return [found[1] for line in lines if (found := _REFUSED.fullmatch(line))]


class _Settings:
    """What a graph is composed with; it must live until the graph is composed."""

    def __init__(self, graph: str, vtcm_mb: int | None, optimization: int) -> None:
        self._custom = [_optimization(optimization), _number(_PRECISION, _FLOAT16)]
        if vtcm_mb is not None:
            self._custom.append(_number(_VTCM, vtcm_mb))
        configs = [ctypes.pointer(_GraphConfig(_CUSTOM, ctypes.addressof(custom))) for custom in self._custom]
        self._list = (ctypes.POINTER(_GraphConfig) * (len(configs) + 1))(*configs)  # ends with a null pointer
        self._of_graph = _ConfigInfo(_CONFIG_VERSION, graph.encode(), ctypes.addressof(self._list), len(configs))
        self.configs = (ctypes.POINTER(_ConfigInfo) * 1)(ctypes.pointer(self._of_graph))


def _optimization(value: int) -> _HtpGraphConfig:
    return _HtpGraphConfig(_OPTIMIZATION, first=_OPTIMIZATION_FLAG, second=value)


def _number(option: int, value: int) -> _HtpGraphConfig:
    return _HtpGraphConfig(option, first=value)


class _HtpGraphConfig(ctypes.Structure):
    """`QnnHtpGraph_CustomConfig_t`: a number, or the kind of an optimization and its value, in a union at byte 8."""

    _fields_ = (
        ("option", ctypes.c_uint32),
        ("_padding", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("second", ctypes.c_float),
        ("_union", ctypes.c_uint64 * 4),
    )


class _GraphConfig(ctypes.Structure):
    """`QnnGraph_Config_t`."""

    _fields_ = (("option", ctypes.c_uint32), ("custom", ctypes.c_void_p))


class _ConfigInfo(ctypes.Structure):
    """`QnnSystemDlc_GraphConfigInfo_t`, version 1."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("graph", ctypes.c_char_p),
        ("configs", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    )


_COMPOSE = ctypes.CFUNCTYPE(
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.POINTER(_ConfigInfo)),
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    QnnInterface,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


def _run(request: Mapping[str, Any], _: Path) -> Mapping[str, str]:
    compiler_threads().compile(
        compose,
        Path(request["dlc"]),
        request["graph"],
        request["soc_model"],
        Path(request["binary"]),
        vtcm_mb=request["vtcm_mb"],
        optimization=request["optimization"],
    )
    return {}


if __name__ == "__main__":
    answer_and_end(sys.argv[1], _run)
