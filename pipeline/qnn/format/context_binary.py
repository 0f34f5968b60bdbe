"""Reads what a context binary says about itself, through the QNN SDK's own system library.

The metadata that ONNX Runtime writes into a context model repeats the options of the compile, wrong ones included.
The binary has what the compiler made of them. The library's interface and the records below are those of the SDK's
headers `QnnSystemInterface.h`, `QnnSystemContext.h` (binary info and graph info, version 3) and
`QnnHtpSystemContext.h` (version 1).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import CompileError
from pipeline.qnn import libraries
from pipeline.qnn.format.dlc import is_dlc
from pipeline.qnn.format.flexible import read_flexible
from pipeline.qnn.format.graph_io import IS_INPUT, IS_OUTPUT, EdgeTensor, UnknownTensorError, copied

HTP_BACKEND = 6
"""The number of the HTP backend among QNN's backends."""


@dataclass(frozen=True)
class GraphInfo:
    """One graph of a binary: the compiled form of one partition."""

    name: str
    vtcm_mb: int
    optimization_mode: int
    spill_fill_bytes: int
    inputs: tuple[EdgeTensor, ...]
    outputs: tuple[EdgeTensor, ...]


@dataclass(frozen=True)
class BinaryInfo:
    """What a binary was compiled for and by. `sdk` is the SDK's full build id, e.g. `v2.51.0.260929181845`."""

    backend: int
    sdk: str
    soc_model: int
    htp_arch: int
    graphs: tuple[GraphInfo, ...]


def read_binary(path: Path) -> BinaryInfo:
    """Open a context binary.

    Raises:
        CompileError: it is empty, damaged, or of a format this module doesn't know.
    """
    if path.stat().st_size == 0:
        raise _unreadable("it is empty", path.name)
    return parse(np.memmap(path, np.uint8, "r"), path.name)


def read_binaries(path: Path) -> tuple[BinaryInfo, ...]:
    """Open a context binary for any number of SoCs: what it says about each.

    Raises:
        CompileError: as for :func:`read_binary`, or it is an archive that is not as expected.
    """
    if path.stat().st_size and is_dlc(path):
        return tuple(
            parse(np.memmap(path, np.uint8, "r", cache.record.offset, (cache.record.size,)), cache.record.name)
            for cache in read_flexible(path).caches
        )
    return (read_binary(path),)


def parse(data: NDArray[np.uint8], name: str) -> BinaryInfo:
    """Like :func:`read_binary` for bytes in memory; `name` is for the message."""
    api = system_interface()
    handle = ctypes.c_void_p()
    _check(_CREATE(api.create)(ctypes.byref(handle)), name)
    try:
        info = ctypes.POINTER(_BinaryInfo)()
        _check(_GET_METADATA(api.get_metadata)(handle, data.ctypes.data, data.nbytes, ctypes.byref(info)), name)
        # The records live as long as the handle: everything is copied out before it is freed.
        return _copied(info.contents, name)
    finally:
        _FREE(api.free)(handle)


def _copied(info: _BinaryInfo, name: str) -> BinaryInfo:
    if info.version != 3 or info.context_metadata_size < ctypes.sizeof(_HtpContext):
        raise _unreadable(f"its record has version {info.version}; version 3 is known here", name)
    htp = ctypes.cast(info.context_metadata, ctypes.POINTER(_HtpContext)).contents
    graphs = ctypes.cast(info.graphs, ctypes.POINTER(_GraphInfo))
    return BinaryInfo(
        backend=info.backend,
        sdk=_text(info.build_id),
        soc_model=info.soc_model,
        htp_arch=htp.arch,
        graphs=tuple(_graphs(graphs, info.graph_count, name)),
    )


def _graphs(graphs: Any, count: int, name: str) -> Iterator[GraphInfo]:
    for index in range(count):
        graph = graphs[index]
        if graph.version != 3 or graph.blob_size < ctypes.sizeof(_HtpGraph):
            raise _unreadable(f"a graph of it has version {graph.version}; version 3 is known here", name)
        htp = ctypes.cast(graph.blob, ctypes.POINTER(_HtpGraph)).contents
        try:
            inputs = tuple(copied(graph.inputs, graph.input_count, IS_INPUT))
            outputs = tuple(copied(graph.outputs, graph.output_count, IS_OUTPUT))
        except UnknownTensorError as error:
            raise _unreadable(f"graph {_text(graph.name)} has {error}", name) from error
        yield GraphInfo(
            _text(graph.name), htp.vtcm_bytes >> 20, htp.optimization_mode, htp.spill_fill_bytes, inputs, outputs
        )


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


def system_interface() -> SystemInterface:
    """The functions of the SDK's system library; the process keeps it loaded.

    Raises:
        CompileError: it is of another major version than the one that is known here.
    """
    library = ctypes.CDLL(str(libraries.sdk_library("QnnSystem")))
    providers = ctypes.POINTER(ctypes.POINTER(SystemInterface))()
    count = ctypes.c_uint32()
    status = library.QnnSystemInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
    if status or not count.value or providers[0].contents.api_version.major != 1:
        raise _unreadable("the QNN SDK's system library has an interface that is not known here", "")
    interface: SystemInterface = providers[0].contents
    return interface


def _check(status: int, name: str) -> None:
    if status:
        raise _unreadable(f"QNN's system library gives error {status}", name)


def _unreadable(why: str, name: str) -> CompileError:
    return CompileError(
        "the context binary can't be read back",
        where=name,
        why=why,
        remedy="build it again; if that gives the same, onnxruntime-qnn has changed its format",
    )


class Version(ctypes.Structure):
    """`Qnn_Version_t`."""

    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("patch", ctypes.c_uint32))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class SystemInterface(ctypes.Structure):
    """`QnnSystemInterface_t`, as far as it is used here."""

    _fields_ = (
        ("backend", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("api_version", Version),
        ("create", ctypes.c_void_p),
        ("get_binary_info", ctypes.c_void_p),
        ("get_metadata", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
        ("get_memory_footprint", ctypes.c_void_p),
        ("log_create", ctypes.c_void_p),
        ("log_set_level", ctypes.c_void_p),
        ("log_free", ctypes.c_void_p),
        ("dlc_create_from_file", ctypes.c_void_p),
        ("dlc_create_from_binary", ctypes.c_void_p),
        ("dlc_compose_graphs", ctypes.c_void_p),
    )


class _BinaryInfo(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("_padding", ctypes.c_uint32),  # what follows is a union, aligned for the pointers in it
        ("backend", ctypes.c_uint32),
        ("build_id", ctypes.c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("soc_version", ctypes.c_char_p),
        ("blob_version", Version),
        ("blob_size", ctypes.c_uint64),
        ("tensor_count", ctypes.c_uint32),
        ("tensors", ctypes.c_void_p),
        ("graph_count", ctypes.c_uint32),
        ("graphs", ctypes.c_void_p),
        ("platform_info", ctypes.c_void_p),
        ("context_metadata_size", ctypes.c_uint32),
        ("context_metadata", ctypes.c_void_p),
        ("soc_model", ctypes.c_uint32),
    )


class _GraphInfo(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("input_count", ctypes.c_uint32),
        ("inputs", ctypes.c_void_p),
        ("output_count", ctypes.c_uint32),
        ("outputs", ctypes.c_void_p),
        ("updateable_count", ctypes.c_uint32),
        ("updateable", ctypes.c_void_p),
        ("blob_size", ctypes.c_uint32),
        ("blob", ctypes.c_void_p),
        ("first_op", ctypes.c_uint32),
        ("last_op", ctypes.c_uint32),
    )


class _HtpContext(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("arch", ctypes.c_uint32))


class _HtpGraph(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("spill_fill_bytes", ctypes.c_uint64),
        ("vtcm_bytes", ctypes.c_uint32),
        ("optimization_mode", ctypes.c_uint32),
    )


# Qnn_ErrorHandle_t is 64 bits wide.
_CREATE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
_FREE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_GET_METADATA = ctypes.CFUNCTYPE(
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.POINTER(_BinaryInfo)),
)
