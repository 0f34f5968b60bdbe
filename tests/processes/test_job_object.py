"""Job objects of Windows, as far as that goes anywhere: layouts, and what is asked of the system, in what order.

The system is a stand-in that notes what it is asked; that the real one does it is seen on Windows alone.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from pipeline.processes.job_object import BasicLimits, ExtendedLimits, Job

_64_BIT = ctypes.sizeof(ctypes.c_void_p) == 8


@pytest.mark.skipif(not _64_BIT, reason="the documented layout is that of 64-bit Windows")
def test_layouts_are_those_of_64_bit_windows() -> None:
    assert ctypes.sizeof(BasicLimits) == 64
    assert ctypes.sizeof(ExtendedLimits) == 144
    offsets = {field[0]: getattr(BasicLimits, field[0]).offset for field in BasicLimits._fields_}
    assert offsets == {
        "per_process_user_time_limit": 0,
        "per_job_user_time_limit": 8,
        "limit_flags": 16,
        "minimum_working_set_size": 24,
        "maximum_working_set_size": 32,
        "active_process_limit": 40,
        "affinity": 48,
        "priority_class": 56,
        "scheduling_class": 60,
    }
    assert ExtendedLimits.io_counters.offset == 64
    assert ExtendedLimits.process_memory_limit.offset == 112
    assert ExtendedLimits.job_memory_limit.offset == 120


class System:
    """Notes what it is asked, and refuses what it is told to."""

    def __init__(self, *refused: str) -> None:
        self.asked: list[str] = []
        self.refused = refused
        self.limits = b""
        self.open_handles: set[int] = set()

    def _answer(self, name: str, made: int = 1) -> int:
        self.asked.append(name)
        return 0 if name in self.refused else made

    def CreateJobObjectW(self, attributes: None, name: None) -> int:
        self.open_handles.add(0x1_0000_0010)
        return self._answer("create", 0x1_0000_0010)

    def SetInformationJobObject(self, job: int, kind: int, data: Any, size: int) -> int:
        assert (job, kind) == (0x1_0000_0010, 9)
        self.limits = ctypes.string_at(data, size)
        return self._answer("limit")

    def OpenProcess(self, access: int, inherit: int, pid: int) -> int:
        assert (access, inherit) == (0x0101, 0)
        self.open_handles.add(0x20)
        return self._answer(f"open {pid}", 0x20)

    def AssignProcessToJobObject(self, job: int, process: int) -> int:
        assert (job, process) == (0x1_0000_0010, 0x20)
        return self._answer("assign")

    def TerminateJobObject(self, job: int, status: int) -> int:
        assert status
        return self._answer("terminate")

    def CloseHandle(self, handle: int) -> int:
        self.open_handles.remove(handle)
        return self._answer("close")


def test_a_job_ends_its_processes_when_its_handle_closes() -> None:
    system = System()
    job = Job(system)
    assert len(system.limits) == ctypes.sizeof(ExtendedLimits)
    assert int.from_bytes(system.limits[16:20], "little") == 0x2000
    assert not any(system.limits[:16] + system.limits[20:])
    job.add(7)
    job.end()
    job.end()
    assert system.asked == ["create", "limit", "open 7", "assign", "close", "terminate", "close"]
    assert not system.open_handles


def test_a_refusal_is_an_error_and_leaves_no_handle() -> None:
    with pytest.raises(OSError, match="CreateJobObjectW failed"):
        Job(System("create"))
    system = System("limit")
    with pytest.raises(OSError, match="SetInformationJobObject failed"):
        Job(system)
    assert not system.open_handles
    system = System("assign")
    job = Job(system)
    with pytest.raises(OSError, match="AssignProcessToJobObject failed for 7"):
        job.add(7)
    job.end()
    assert not system.open_handles
    with pytest.raises(OSError, match="OpenProcess failed for 7"):
        Job(System("open 7")).add(7)
