"""ONNX Runtime sessions with the QNN execution provider (EP): registering it, its devices, its options.

onnxruntime-qnn 2.x is a plugin: a library that a plain onnxruntime loads. Its provider options are described in
https://github.com/onnxruntime/onnxruntime-qnn/blob/main/docs/execution_providers/QNN-ExecutionProvider.md; it ignores
an option it does not know, and reads a value it does not understand as 0.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort
import onnxruntime_qnn

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn import failures

EP = "QNNExecutionProvider"

TESTED: Mapping[str, str] = {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}
"""The versions that were tested together with this pipeline."""


def session_options(
    target: HtpTarget | Sequence[HtpTarget], options: Mapping[str, str] | None = None
) -> ort.SessionOptions:
    """Session options that run on the QNN EP for `target`, with further provider `options`.

    Several targets are for a compile only: it gives one binary for all of them.

    Raises:
        CompileError: the EP can't be loaded here, offers no device, or is not of the tested versions.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 2  # warnings: the EP reports an option it doesn't understand as one
    targets = [target] if isinstance(target, HtpTarget) else target
    own = dict(targets[0].options or ())  # those of a pack are equal
    settings.add_provider_for_devices(devices(), _htp_options(targets) | dict(options or {}) | own)
    return settings


def bundled_sdk() -> str:
    """The version of the QNN SDK (QAIRT) that onnxruntime-qnn bundles, e.g. `2.51.0`."""
    return str(onnxruntime_qnn.build_and_package_info.qnn_version)


@functools.cache
def check_installed() -> None:
    """:func:`check_versions` for what is installed here."""
    check_versions({name: importlib.metadata.version(name) for name in TESTED})


def check_versions(installed: Mapping[str, str]) -> None:
    """Refuse a pair of packages that was not tested together.

    Raises:
        CompileError: a version differs. An EP built for another onnxruntime may produce nothing and say nothing.
    """
    wrong = [f"{name} {installed[name]}, not {tested}" for name, tested in TESTED.items() if installed[name] != tested]
    if wrong:
        raise CompileError(
            "the installed onnxruntime and onnxruntime-qnn are not the tested pair",
            why=f"this environment has {'; '.join(wrong)}; versions that don't fit compile nothing, silently",
            remedy="run 'uv sync' and build with 'uv run doit'",
        )


def _htp_options(targets: Sequence[HtpTarget]) -> dict[str, str]:
    chosen = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": ",".join(str(target.soc_model) for target in targets),
        "htp_arch": ",".join(str(target.htp_arch) for target in targets),
    }
    if all(target.vtcm_mb is None for target in targets):
        return chosen
    # 0 is how a list says that one of its targets leaves it to the compiler
    return chosen | {"vtcm_mb": ",".join(str(target.vtcm_mb or 0) for target in targets)}


def devices() -> list[ort.OrtEpDevice]:
    """The devices that the EP offers here. Loads the EP.

    Raises:
        CompileError: as for :func:`session_options`.
    """
    check_installed()
    devices = [device for device in ort.get_ep_devices() if device.ep_name == EP]
    if devices:
        return devices
    path = onnxruntime_qnn.get_library_path()
    try:
        ort.register_execution_provider_library(EP, path)
    except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
        raise _not_loadable(str(error)) from error
    devices = [device for device in ort.get_ep_devices() if device.ep_name == EP]
    if not devices:
        raise CompileError(
            "onnxruntime-qnn offers no device on this host",
            why="its library loads and lists nothing; on ARM64 that is a host without an NPU",
            remedy="compile on an x86_64 host, or on a device with an NPU and its driver",
        )
    return devices


def _not_loadable(reason: str) -> CompileError:
    known = failures.find(reason)
    return CompileError(
        "onnxruntime can't load the QNN execution provider",
        where=Path(onnxruntime_qnn.get_library_path()).name,
        why=f"{known.cause}: {reason}" if known else reason,
        remedy=known.remedy if known else "reinstall it: uv sync --reinstall-package onnxruntime-qnn",
    )
