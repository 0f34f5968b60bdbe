"""Puts the exit status of a process into words."""

from __future__ import annotations

import contextlib
import signal

# https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/596a1078-e883-4972-9bbc-49e60bebca55
_NTSTATUS = {
    0xC0000005: "STATUS_ACCESS_VIOLATION",
    0xC0000006: "STATUS_IN_PAGE_ERROR",
    0xC0000017: "STATUS_NO_MEMORY",
    0xC000001D: "STATUS_ILLEGAL_INSTRUCTION",
    0xC000007B: "STATUS_INVALID_IMAGE_FORMAT",
    0xC00000FD: "STATUS_STACK_OVERFLOW",
    0xC000012D: "STATUS_COMMITMENT_LIMIT",
    0xC0000135: "STATUS_DLL_NOT_FOUND",
    0xC0000138: "STATUS_ORDINAL_NOT_FOUND",
    0xC0000139: "STATUS_ENTRYPOINT_NOT_FOUND",
    0xC000013A: "STATUS_CONTROL_C_EXIT",
    0xC0000142: "STATUS_DLL_INIT_FAILED",
    0xC0000374: "STATUS_HEAP_CORRUPTION",
    0xC0000409: "STATUS_STACK_BUFFER_OVERRUN",
}
_SIGNED = -0x80000000  # the least status of Windows if read as a signed number, as some interfaces do


def exit_reason(status: int) -> str:
    """The meaning of an exit status of :mod:`subprocess`.

    For instance `killed by signal 11 (SIGSEGV)`, `exit status 127` or `exit status 0xC0000135 (STATUS_DLL_NOT_FOUND)`.
    """
    if _SIGNED <= status < -0xFFFF:
        status &= 0xFFFFFFFF
    if status < 0:
        return f"killed by {_signal(-status)}"
    if status >= 0x80000000:
        name = _NTSTATUS.get(status)
        return f"exit status 0x{status:08X}" + (f" ({name})" if name else "")
    if 128 < status < 160:
        return f"exit status {status} (by which a shell means {_signal(status - 128)})"
    return f"exit status {status}"


def _signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"
