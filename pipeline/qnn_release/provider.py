"""ONNX Runtime sessions, on the QNN execution provider (EP) or on the CPU.

onnxruntime-qnn 2.x is a plugin: a library that a plain onnxruntime loads into the process, once. All that is known
about it here was tried with 2.7.0; the options are described in
https://github.com/onnxruntime/onnxruntime-qnn/blob/main/docs/execution_providers/QNN-ExecutionProvider.md.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from .index import Target

EP = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"

Configure = Callable[[ort.SessionOptions], None]
"""An application's own settings of a session: threads, log level."""

_REGISTERING = threading.Lock()
_ARM64 = (
    0xAA64  # IMAGE_FILE_MACHINE_ARM64, https://learn.microsoft.com/windows/win32/sysinfo/image-file-machine-constants
)


@dataclass(frozen=True)
class Host:
    """The devices that the QNN EP offers here. If there is no NPU, `why` is the reason and `remedy` what may help."""

    npu: ort.OrtEpDevice | None
    emulator: ort.OrtEpDevice | None
    why: str = ""
    remedy: str = ""


def host() -> Host:
    """Register the QNN EP with this process, if it isn't yet, and ask it for its devices."""
    if _emulates_x86():
        why = "this is an x86 Python on an ARM64 machine, and QNN needs an ARM64 one"
        return Host(None, None, why, "run it in an ARM64 Python, by serve.py and client.py of this package")
    with _REGISTERING:
        devices = _devices()
        if not devices:
            try:
                ort.register_execution_provider_library(EP, _library("get_library_path"))
            except ImportError:
                return Host(None, None, "onnxruntime-qnn is not installed", "install onnxruntime-qnn")
            except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
                why = f"onnxruntime {ort.__version__} can't load onnxruntime-qnn: {error}"
                return Host(None, None, why, "install onnxruntime and onnxruntime-qnn of versions that go together")
            devices = _devices()
    by_type = {device.device.type: device for device in devices}
    npu = by_type.get(ort.OrtHardwareDeviceType.NPU)
    # On x86_64 the EP lists the CPU, for the emulator of the HTP that comes with it.
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    emulator = by_type.get(ort.OrtHardwareDeviceType.CPU) if x86 else None
    return Host(npu, emulator, "" if npu else "the QNN execution provider finds no NPU on this host")


def compatibility(device: ort.OrtEpDevice, info: str) -> str:
    """What the EP says of running a context on an NPU: a name of `OrtCompiledModelCompatibility`, or an error's text.

    `info` is the compatibility string of the context.
    """
    try:
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        return str(state.get_model_compatibility_for_ep_devices([device], info).name)
    except Exception as error:  # as above; AttributeError with an onnxruntime that lacks it
        return f"{type(error).__name__}: {error}"


def qnn_session(
    model: Path,
    device: ort.OrtEpDevice,
    options: Mapping[str, str],
    settings: Mapping[str, str],
    configure: Configure | None,
) -> ort.InferenceSession:
    """Load a context model with these provider options and session settings.

    Raises:
        RuntimeError: a context in it would not run on QNN.
        Exception: whatever onnxruntime raises.
    """
    given = _session_options(configure, {"session.record_ep_graph_assignment_info": "1", **settings})
    given.add_provider_for_devices([device], {"backend_path": _library("get_qnn_htp_path"), **options})
    session = ort.InferenceSession(str(model), given)
    session.disable_fallback()  # else onnxruntime answers a failure by going to the CPU, and prints it
    _check_assignment(session)
    return session


def cpu_session(model: Path, configure: Configure | None) -> ort.InferenceSession:
    """Load a QDQ model for onnxruntime's CPU EP; raises whatever onnxruntime raises.

    QuantizeLinear and DequantizeLinear are computed as written, as when accuracy was measured: the integer kernels that
    onnxruntime may put in their place round otherwise, saturate on some CPUs, and are slower with 16 bit activations.
    """
    return ort.InferenceSession(str(model), _session_options(configure, {"session.disable_quant_qdq": "1"}), [CPU])


def emulated(target: Target) -> dict[str, str]:
    """The provider options that make the emulator behave as the HTP of a target. An NPU needs none."""
    chosen = {"soc_model": str(target.soc_model), "htp_arch": str(target.htp_arch)}
    return chosen | ({} if target.vtcm_mb is None else {"vtcm_mb": str(target.vtcm_mb)})


def _session_options(configure: Configure | None, settings: Mapping[str, str]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors: the EP warns of each feature that a host lacks
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    if configure is not None:
        configure(options)
    return options


def _devices() -> list[ort.OrtEpDevice]:
    return [device for device in ort.get_ep_devices() if device.ep_name == EP]


def _library(name: str) -> str:
    return str(getattr(importlib.import_module("onnxruntime_qnn"), name)())


def _check_assignment(session: ort.InferenceSession) -> None:
    """Raise RuntimeError if a context would not run on QNN: the EP may give one up without an error."""
    where = [
        part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if node.op_type == "EPContext"
    ]
    if not where or set(where) != {EP}:
        raise RuntimeError(f"onnxruntime did not give the context to QNN, but to {', '.join(where) or 'nothing'}")


if sys.platform == "win32":

    def _emulates_x86() -> bool:
        """Whether Windows runs this process, which is x86, on an ARM64 processor."""
        process, native = ctypes.c_ushort(), ctypes.c_ushort()
        kernel = ctypes.windll.kernel32
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.IsWow64Process2.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        kernel.IsWow64Process2(kernel.GetCurrentProcess(), ctypes.byref(process), ctypes.byref(native))
        return native.value == _ARM64 and "ARM64" not in sys.version

else:

    def _emulates_x86() -> bool:
        return False
