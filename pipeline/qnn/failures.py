"""What the known failures of QNN, of its execution provider (EP) and of their processes mean, and what to do then.

Matched against what the libraries wrote: exception texts, log lines, reasons for leaving a node to the CPU; and against
:func:`pipeline.processes.exit_status.exit_reason` where a process died. The texts are those of onnxruntime-qnn 2.7 and
QAIRT 2.51; where a public report or a document explains a failure, it is the source. What error codes of QNN below 1100
are called is said in its header `QnnCommon.h`, of those above nothing is public.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ORT = "https://github.com/microsoft/onnxruntime/issues/"
_ORT_QNN = "https://github.com/onnxruntime/onnxruntime-qnn/"
_NTSTATUS = "https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/596a1078-e883-4972-9bbc-49e60bebca55"
_SIGNALS = "https://man7.org/linux/man-pages/man7/signal.7.html"
_CODE = r"(?:err(?:or)?(?: code)?|\bcode|failed|status)[\s:=#-]*(?:with (?:error )?)?"


OUT_OF_MEMORY = "the system's out-of-memory killer was at work"
"""What to say of a process that died while Linux ended one for want of memory."""


@dataclass(frozen=True)
class Failure:
    """One recognisable failure. `pattern` is searched in the text, ignoring case."""

    pattern: str
    cause: str
    remedy: str
    source: str = ""


DISK_FULL = Failure(
    r"Failed to write context cache file|No space left on device",
    "the context binary could not be written; most often the disk is full",
    "free some space on the disk of the store, then run the same command again",
)

# The first match wins: what names the cause comes before what only names the step that failed.
FAILURES: tuple[Failure, ...] = (
    Failure(
        r"libc\+\+(?:abi)?\S*\.so|libunwind\S*\.so",
        "the LLVM C++ runtime that the QNN libraries need is not on this machine",
        "install libc++1 and libunwind (Debian: apt-get install libc++1 libunwind8), or reinstall onnxruntime-qnn",
        "https://github.com/pytorch/executorch/issues/5120",
    ),
    Failure(
        r"libatomic\.so",
        "the system library libatomic is missing; QNN's libraries for ARM64 need it",
        "install it (Debian: apt-get install libatomic1)",
    ),
    Failure(
        r"DLL load failed|STATUS_DLL_NOT_FOUND|STATUS_ENTRYPOINT_NOT_FOUND|STATUS_ORDINAL_NOT_FOUND|"
        r"STATUS_DLL_INIT_FAILED",
        "a DLL is missing, or is too old for one that needs it; most often Microsoft's C++ runtime",
        "install the latest Microsoft Visual C++ Redistributable for this Python's architecture, then run 'uv sync'",
        f"{_ORT}25193",
    ),
    Failure(
        r"lib(?:onnxruntime|Qnn)[^\s/:]*: cannot open shared object file",
        "a library of onnxruntime or onnxruntime-qnn is missing",
        "reinstall them: uv sync --reinstall-package onnxruntime --reinstall-package onnxruntime-qnn",
    ),
    Failure(
        r"error while loading shared libraries|\blib[^\s/:]*: cannot open shared object file",
        "a shared library that the log names is missing on this machine",
        "install the package of the system that has it",
        "https://man7.org/linux/man-pages/man8/ld.so.8.html",
    ),
    Failure(
        r"STATUS_INVALID_IMAGE_FORMAT|wrong ELF class|invalid ELF header|Exec format error",
        "a library or program is for another kind of processor than this Python, or its file is damaged",
        "use a Python of the machine's own architecture, then run 'uv sync --reinstall'",
        _NTSTATUS,
    ),
    Failure(
        r"Illegal instruction|SIGILL|STATUS_ILLEGAL_INSTRUCTION",
        "native code used an instruction that this processor, emulator or virtual machine doesn't have",
        "build on another machine, or have the virtual machine pass on the host's processor features",
        f"{_ORT}23957",
    ),
    Failure(
        r"std::bad_alloc|STATUS_NO_MEMORY|STATUS_COMMITMENT_LIMIT|^MemoryError|Cannot allocate memory",
        "the system gave the process no more memory",
        "run fewer steps at a time (doit -n 1), use a smaller bucket, or a machine with more memory or swap",
        "https://en.cppreference.com/w/cpp/memory/new/bad_alloc",
    ),
    Failure(
        r"requested API version \[\d+\] is not available",
        "onnxruntime is older than this onnxruntime-qnn was built for",
        "install the pair of versions that pyproject.toml pins: uv sync",
        "https://github.com/onnxruntime/onnxruntime-qnn/issues/564",
    ),
    Failure(
        r"Specified config SOC, ignoring on real target",
        "on an ARM64 host with an NPU, QNN compiles for the host's own SoC whatever it is asked for",
        "build contexts for other SoCs on an x86_64 host",
    ),
    Failure(
        r"QNN_DEVICE_ERROR_INVALID_CONFIG|Unrecognized soc_model",
        "the installed QNN SDK knows no SoC with this id",
        "check the target; a SoC newer than the SDK needs a newer onnxruntime-qnn",
        "https://github.com/onnxruntime/onnxruntime-qnn/issues/715",
    ),
    Failure(
        r"QNN_BACKEND_ERROR_CANNOT_INITIALIZE",
        "QNN's HTP backend can't start on this host; on ARM64 it needs an NPU",
        "compile on an x86_64 host, or on a device with an NPU and its driver",
    ),
    DISK_FULL,
    Failure(
        r"Cannot get shape",
        "the model has dims that are not fixed, and HTP takes static shapes only",
        "fix every axis: name it under 'fixed' or 'buckets' in the model's config",
        f"{_ORT}22439",
    ),
    Failure(
        r"bytes of TCM, which is greater than the TCM size",
        "one operator needs more fast memory (VTCM) than the SoC has",
        "use a smaller bucket, or split the model into components",
        "https://github.com/pytorch/executorch/issues/1430",
    ),
    Failure(
        rf"memory usage too large|MEM_ALLOC|{_CODE}1002\b",
        "the graph needs more memory than one HTP context may have (2 to 3.5 GB), or more VTCM than there is",
        "use a smaller bucket, or split the model into components",
        "https://github.com/qualcomm/ai-hub-models/issues/274",
    ),
    Failure(
        rf"QNN_COMMON_ERROR_SYSTEM_COMMUNICATION|SSR detected|{_CODE}1007\b",
        "the NPU, or the service that talks to it, restarted or is gone",
        "run it again; if it stays so, restart the device and update its NPU driver",
        f"{_ORT_QNN}blob/main/docs/execution_providers/QNN-ExecutionProvider.md",
    ),
    Failure(
        rf"QNN_COMMON_ERROR_SYSTEM\b|{_CODE}1003\b",
        "an error of the platform or of a service of the operating system, as QNN's header has it; on devices it was "
        "seen when the NPU or its driver was in a bad state, and nothing is wrong with the model then",
        "run it again; on a device, after a restart of it",
    ),
    Failure(
        rf"QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES|{_CODE}1008\b",
        "QNN loaded libraries of versions that don't belong together: its own, or one of them and the device's driver",
        "remove other QNN or QAIRT folders from PATH, LD_LIBRARY_PATH and ADSP_LIBRARY_PATH, run "
        "'uv sync --reinstall', and on a device update its NPU driver",
        f"{_ORT}26163",
    ),
    Failure(
        rf"QNN_COMMON_ERROR_LOADING_BINARIES|{_CODE}1009\b",
        "QNN could not load one of its libraries; the log names it, often libQnnHtpPrepare",
        "reinstall them together: uv sync --reinstall-package onnxruntime-qnn",
    ),
    Failure(
        rf"QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED|{_CODE}1006\b",
        "this QNN backend doesn't run on this host",
        "compile on an x86_64 host with Linux or Windows, or on a device with an NPU",
    ),
    Failure(
        rf"{_CODE}3110\b",
        "an operator doesn't exist on this HTP architecture with these data types: 16-bit weights and float16 need "
        "v73 or newer, and a condition or an index must not be quantized",
        "leave that operator unquantized or use 8-bit weights, or choose a newer target",
        f"{_ORT}22821",
    ),
    Failure(
        rf"{_CODE}5000\b",
        "the context binary was made by another QNN SDK, or for another SoC, than the one that loads it",
        "build it for the device's SoC with an SDK no newer than the device's driver",
        "https://github.com/qualcomm/ai-hub-apps/issues/148",
    ),
    Failure(
        rf"{_CODE}6031\b",
        "the model holds an operator that compiles and can't run, as DynamicQuantizeLinear does",
        "start from the fp32 ONNX file, not from one that is already quantized",
        f"{_ORT}25334",
    ),
    Failure(
        r"graphAddNode\(\) failed for node|Failed to compose Qnn graph",
        "QNN refused a node it had first accepted; scales that are NaN or infinite do that, and so do two graphs of "
        "one name in a shared context",
        "look at the node the log names, and at the encodings of its inputs and outputs",
    ),
    Failure(
        r"Failed to get context binary info",
        "the context binary is cut short or damaged",
        "build it again",
    ),
    Failure(
        r"ep_cache_context does not exist or is not accessible",
        "the context model names a binary that is not beside it; it may have been renamed",
        "keep the binary's name: the context model refers to it",
        "https://github.com/microsoft/onnxruntime/pull/23594",
    ),
    # What is left is what the exit status alone says.
    Failure(
        OUT_OF_MEMORY,
        "the system ran out of memory, and Linux ended the process",
        "run fewer steps at a time (doit -n 1), use a smaller bucket, or a machine with more memory or swap",
        "https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Failure(
        r"signal 9 \(SIGKILL\)",
        "the system ended it, which it does when memory runs out, or somebody did",
        "run the same command again, with less at a time if memory is short (doit -n 1)",
        "https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Failure(
        r"STATUS_STACK_OVERFLOW",
        "native code used up its stack, as a very deep model can have it do",
        "split the model into components",
        _NTSTATUS,
    ),
    Failure(
        r"SIGSEGV|SIGBUS|STATUS_ACCESS_VIOLATION|STATUS_IN_PAGE_ERROR|STATUS_HEAP_CORRUPTION",
        "native code crashed: a bug of QNN or ONNX Runtime that this model or sample sets off, or damaged memory",
        "run it once more; if it stays so, leave the operator that the log names last unquantized or split the model, "
        "and report it to onnxruntime-qnn with the log",
        f"{_ORT}23431",
    ),
    Failure(
        r"SIGABRT|STATUS_STACK_BUFFER_OVERRUN",
        "native code gave up: a C++ exception that nobody caught, or a check of its own that failed",
        "the log's last lines say which; if they don't, report it to onnxruntime-qnn with the log",
        _SIGNALS,
    ),
    Failure(
        r"SIGFPE",
        "native code divided by zero; a dim of size 0 in the model can have it do that",
        "look for a dim or a length of 0 in the model and its samples",
        _SIGNALS,
    ),
    Failure(
        r"SIGXCPU|SIGXFSZ",
        "a limit of this shell or service on processor time or file size was reached",
        "raise it (ulimit -t, ulimit -f), then run the same command again",
        _SIGNALS,
    ),
    Failure(
        r"SIGTERM|SIGINT|SIGHUP|STATUS_CONTROL_C_EXIT",
        "somebody, or the service this runs in, told it to end",
        "run the same command again",
        _SIGNALS,
    ),
    Failure(
        r"exit status 127\b",
        "a library or program was not found; on a device also a QNN SDK that is newer than the device's driver, which "
        "ends the process without a word",
        "look for a missing library in the log; on a device use an SDK no newer than its driver",
        f"{_ORT}26687",
    ),
    Failure(
        r"exit status 126\b",
        "a file that is to be run may not be executed",
        "see that the project and its .venv are not on a file system that forbids it (noexec)",
        "https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02",
    ),
    Failure(
        r"exit status 0\b",
        "something in it ended the process as if all was well: native code that calls exit",
        "the log's last lines say where it was; report it with the log",
        "https://github.com/pytorch/executorch/issues/14050",
    ),
)


def explain(said: Sequence[str], log: str) -> tuple[str, str]:
    """Why something failed and what to do about it, from the message `said` and from the `log`. Quotes `said`.

    Without a known cause the libraries' words have to do.
    """
    known = find("\n".join((*said, log)))
    quoted = "".join(f"\n    | {line.strip()}" for line in said)
    if known is None:
        return f"QNN gave up; its own words:{quoted}", "the step's log has all that QNN wrote"
    return known.cause + quoted, f"{known.remedy} ({known.source})" if known.source else known.remedy


def find(text: str) -> Failure | None:
    """The known failure that `text` shows, or None."""
    flags = re.IGNORECASE | re.MULTILINE
    return next((known for known in FAILURES if re.search(known.pattern, text, flags)), None)
