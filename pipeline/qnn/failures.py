"""What the known failures of QNN and its execution provider (EP) mean, and what to do about them.

Matched against what the libraries wrote: exception texts, log lines, reasons for leaving a node to the CPU. The
texts are those of onnxruntime-qnn 2.7 and QAIRT 2.51; where a public report explains a failure, it is the source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ORT = "https://github.com/microsoft/onnxruntime/issues/"
_CODE = r"(?:err(?:or)?(?: code)?|\bcode|failed|status)[\s:=#-]*(?:with (?:error )?)?"


@dataclass(frozen=True)
class Failure:
    """One recognisable failure. `pattern` is searched in the text, ignoring case."""

    pattern: str
    cause: str
    remedy: str
    source: str = ""


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
    Failure(
        r"Failed to write context cache file|No space left on device",
        "the context binary could not be written; most often the disk is full",
        "free some space on the disk of the store, then run the same command again",
    ),
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
)


def explain(said: Sequence[str], log: str) -> tuple[str, str]:
    """Why something failed and what to do about it, from what was `said` and from the `log`, of which `said` is quoted.

    Without a known cause the libraries' words have to do.
    """
    known = find("\n".join((*said, log)))
    quoted = "".join(f"\n    | {line.strip()}" for line in said)
    if known is None:
        return f"QNN gave up; its own words:{quoted}", "the step's log has all that QNN wrote"
    return known.cause + quoted, f"{known.remedy} ({known.source})" if known.source else known.remedy


def find(text: str) -> Failure | None:
    """The known failure that `text` shows, or None."""
    return next((known for known in FAILURES if re.search(known.pattern, text, re.IGNORECASE)), None)
