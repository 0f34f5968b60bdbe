"""QNN's own interface to its HTP backend, by ctypes, for programs that do without ONNX Runtime.

The places of functions in `QnnInterface_t` are those of `QnnInterface.h`, core API 2.x, whose minor versions append
(read in 2.15, 2.31, 2.33; 2.40 is what runs here); `QnnHtpDevice_CustomConfig_t` has its union at byte 8, as QAIRT 2.51
reads it. QNN's library aborts when a process that used it ends in order: see :func:`answer_and_end`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pipeline.errors import PipelineError
from pipeline.qnn import libraries
from pipeline.qnn.format.context_binary import HTP_BACKEND, Version

CORE_API, LEAST_MINOR, BACKEND_API = 2, 31, 5
"""Major version of QNN's core interface, its least minor one, and the major version of the HTP backend's."""

COUNTED_MINOR = 40
"""The minor version of the core interface whose functions were counted."""

_FUNCTIONS = {
    "backendCreate": 1,
    "contextCreate": 9,
    "contextGetBinarySize": 11,
    "contextGetBinary": 12,
    "contextCreateFromBinary": 13,
    "graphFinalize": 19,
    "graphRetrieve": 20,
    "graphExecute": 21,
    "logCreate": 25,
    "deviceCreate": 40,
}
_COUNT = 75
"""How many functions core API 2.40 has: the HTP library of QAIRT 2.51 has so many in a row, and its system library
finds what follows a `QnnInterface_t` that is given to it by value 640 bytes on."""

_ERRORS_ONLY = 1

ANSWER = "answer.json"
"""The file beside a request in which its answer is."""


class QnnError(Exception):
    """QNN refused a call, or has an interface that is not known here."""


class QnnInterface(ctypes.Structure):
    """`QnnInterface_t`."""

    _fields_ = (
        ("backend_id", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("core", Version),
        ("backend", Version),
        ("functions", ctypes.c_void_p * _COUNT),
    )


class Qnn:
    """The functions of QNN's HTP library, once its versions were found to be those that are known here."""

    def __init__(self) -> None:
        """Raises QnnError."""
        library = ctypes.CDLL(str(libraries.sdk_library("QnnHtp")))
        providers = ctypes.POINTER(ctypes.POINTER(QnnInterface))()
        count = ctypes.c_uint32()
        status = library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
        if status or not count.value:
            raise QnnError(f"QNN's HTP library gives no interface: error {status}, {count.value} providers")
        interface: QnnInterface = providers[0].contents
        core, backend = interface.core, interface.backend
        if (
            (interface.backend_id, core.major, backend.major) != (HTP_BACKEND, CORE_API, BACKEND_API)
            or core.minor < LEAST_MINOR
        ):  # fmt: skip
            raise QnnError(
                f"QNN's HTP library has core API {core} and backend API {backend} of backend {interface.backend_id};"
                f" known here are {CORE_API}.{LEAST_MINOR} and later, {BACKEND_API} and {HTP_BACKEND}"
            )
        self._interface = interface

    def whole(self) -> QnnInterface:
        """The interface, to be given to another library of QNN by value.

        Raises:
            QnnError: it is of a version that may be larger or smaller than what was counted.
        """
        if self._interface.core.minor != COUNTED_MINOR:
            raise QnnError(
                f"QNN's HTP library has core API {self._interface.core}; how large its table of functions is, is known"
                f" of {CORE_API}.{COUNTED_MINOR}"
            )
        return self._interface

    def call(self, name: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            QnnError: it returns an error.
        """
        function: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_uint64)(self._interface.functions[_FUNCTIONS[name]])
        check(name, function(*arguments))

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """The handle that a function makes, which it takes as its last argument."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def log(self) -> ctypes.c_void_p:
        """A logger that prints errors."""
        return self.made("logCreate", None, ctypes.c_uint32(_ERRORS_ONLY))

    def device(self, soc_model: int) -> ctypes.c_void_p:
        """The device that stands for a SoC."""
        custom = _DeviceSoc(0, soc_model)
        config = _DeviceConfig(0, ctypes.cast(ctypes.pointer(custom), ctypes.c_void_p))
        configs = (ctypes.POINTER(_DeviceConfig) * 2)(ctypes.pointer(config))  # ends with a null pointer
        return self.made("deviceCreate", None, configs)


class _DeviceConfig(ctypes.Structure):
    _fields_ = (("custom", ctypes.c_uint32), ("config", ctypes.c_void_p))


class _DeviceSoc(ctypes.Structure):
    _fields_ = (("option", ctypes.c_uint32), ("soc_model", ctypes.c_uint64))


def check(name: str, status: int) -> None:
    """Raise QnnError for a status that is an error."""
    if status:
        raise QnnError(f"QNN's {name} gives error {status & 0xFFFF}")


def answer_and_end(request_path: str, does: Callable[[Mapping[str, Any], Path], Mapping[str, str]]) -> NoReturn:
    """Do what the request file says in its folder, leave the answer beside it, and end the process at once.

    What QNN refuses is the answer `refused`.
    """
    path = Path(request_path)
    try:
        answer = does(json.loads(path.read_text("utf-8")), path.parent)
    except QnnError as error:
        answer = {"refused": str(error)}
    except PipelineError as error:
        answer = {"refused": f"{error.what}: {error.why}"}
    (path.parent / ANSWER).write_text(json.dumps(answer), "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
