"""Job objects of Windows: their processes end together, at the latest when the handle of our process closes.

A job does on Windows what a process group and a :mod:`pipeline.processes.lifeline` do on Linux. The child is started
suspended, put into the job, and resumed, so that all of its children are in the job. Constants and layouts are those of
`winnt.h` (https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-jobobject_extended_limit_information).
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

CREATE_SUSPENDED = 0x00000004
_KILL_ON_JOB_CLOSE = 0x00002000  # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_TERMINATE_AND_SET_QUOTA = 0x0001 | 0x0100  # what AssignProcessToJobObject needs of a process
_ENDED_BY_US = 1  # exit status of the processes of a job that we end


class BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = [
        ("per_process_user_time_limit", ctypes.c_int64),
        ("per_job_user_time_limit", ctypes.c_int64),
        ("limit_flags", ctypes.c_uint32),
        ("minimum_working_set_size", ctypes.c_size_t),
        ("maximum_working_set_size", ctypes.c_size_t),
        ("active_process_limit", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_class", ctypes.c_uint32),
        ("scheduling_class", ctypes.c_uint32),
    ]


class ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("basic", BasicLimits),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory_limit", ctypes.c_size_t),
        ("job_memory_limit", ctypes.c_size_t),
        ("peak_process_memory_used", ctypes.c_size_t),
        ("peak_job_memory_used", ctypes.c_size_t),
    ]


class Kernel(Protocol):
    """The functions of kernel32.dll that a job needs; each returns 0 if it fails."""

    def CreateJobObjectW(self, attributes: None, name: None) -> int | None: ...  # noqa: N802, D102

    def SetInformationJobObject(self, job: int, kind: int, data: Any, size: int) -> int: ...  # noqa: N802, D102

    def OpenProcess(self, access: int, inherit: int, pid: int) -> int | None: ...  # noqa: N802, D102

    def AssignProcessToJobObject(self, job: int, process: int) -> int: ...  # noqa: N802, D102

    def TerminateJobObject(self, job: int, status: int) -> int: ...  # noqa: N802, D102

    def CloseHandle(self, handle: int) -> int: ...  # noqa: N802, D102


class Job:
    """A job whose processes end with :meth:`end`, or when this process does."""

    def __init__(self, kernel: Kernel) -> None:
        """Raises OSError if the system gives no job."""
        self._kernel = kernel
        handle = kernel.CreateJobObjectW(None, None)
        if not handle:
            raise OSError("CreateJobObjectW failed")
        self._handle: int | None = handle
        limits = ExtendedLimits()
        limits.basic.limit_flags = _KILL_ON_JOB_CLOSE
        if not kernel.SetInformationJobObject(handle, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)):
            self.end()
            raise OSError("SetInformationJobObject failed")

    def add(self, pid: int) -> None:
        """Put a process, and all that it will start, into the job. Raises OSError if that fails."""
        assert self._handle is not None
        process = self._kernel.OpenProcess(_TERMINATE_AND_SET_QUOTA, 0, pid)
        if not process:
            raise OSError(f"OpenProcess failed for {pid}")
        try:
            if not self._kernel.AssignProcessToJobObject(self._handle, process):
                raise OSError(f"AssignProcessToJobObject failed for {pid}")
        finally:
            self._kernel.CloseHandle(process)

    def end(self) -> None:
        """End every process of the job. May be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._kernel.TerminateJobObject(handle, _ENDED_BY_US)
            self._kernel.CloseHandle(handle)


def kernel() -> Kernel:
    """kernel32.dll, with the types of its arguments and results. Windows only.

    Without them ctypes would cut handles to 32 bits (https://docs.python.org/3/library/ctypes.html#return-types).
    """
    loaded: Any = getattr(ctypes, "WinDLL")("kernel32", use_last_error=True)  # noqa: B009  # absent elsewhere
    handle, number, truth = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    for name, result, arguments in (
        ("CreateJobObjectW", handle, (handle, ctypes.c_wchar_p)),
        ("SetInformationJobObject", truth, (handle, ctypes.c_int, handle, number)),
        ("OpenProcess", handle, (number, truth, number)),
        ("AssignProcessToJobObject", truth, (handle, handle)),
        ("TerminateJobObject", truth, (handle, number)),
        ("CloseHandle", truth, (handle,)),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded  # type: ignore[no-any-return]
