"""Compiles by the tools of the QAIRT SDK, on hosts that have it, in place of onnxruntime-qnn's EP.

The float model and our encodings go to `qairt-converter`, what has no encoding is left in float16 by `qairt-quantizer`,
and `qnn-context-binary-generator` makes the binary. Options are those of the SDK's documentation, "General tools"
(https://docs.qualcomm.com/doc/80-63442-10/topic/SNPE_general_tools.html), settings those of "HTP Backend Extensions".
THIS NEVER RAN WITH AN SDK: none could be had. Its command lines are tested with programs that check every argument.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.graph.quantization.qdq.overrides import take_apart
from pipeline.model import Json
from pipeline.processes import lifeline
from pipeline.processes.exit_status import exit_reason
from pipeline.processes.log_tail import log_tail
from pipeline.qnn.compiling.admission import weights_in_blocks
from pipeline.qnn.compiling.compiler import COMPILE_OPTIONS, Source, workshop
from pipeline.qnn.compiling.readback import OpTrace, read_context
from pipeline.qnn.format.context_binary import read_binary
from pipeline.qnn.format.wrapping import context_model
from pipeline.qnn.provider_options import OPTIMIZATION
from pipeline.qnn.session import bundled_sdk
from pipeline.qnn.versions import numbers

ROOT, PYTHON = "QAIRT_SDK_ROOT", "QAIRT_PYTHON"
"""Environment variables: the folder of the SDK, and a Python that has what its converter needs."""
_HOST = "x86_64-linux-clang"
_LAYOUT = "NONTRIVIAL"
"""The layout of a tensor whose axes the converter is not to move."""
_LOG_LINES = 12
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", lifeline.VARIABLE)


@dataclass(frozen=True)
class Sdk:
    """A QAIRT SDK on this host."""

    root: Path
    python: str

    def tool(self, name: str) -> str:
        """The path of a program."""
        return str(self.root / "bin" / _HOST / name)

    def library(self, name: str) -> str:
        """The path of a library."""
        return str(self.root / "lib" / _HOST / f"lib{name}.so")

    @property
    def environment(self) -> Mapping[str, str]:
        """What the tools run in: nothing of this Python's environment, and the SDK's own libraries and modules."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return kept | {
            ROOT: str(self.root),
            "QNN_SDK_ROOT": str(self.root),
            "PYTHONPATH": str(self.root / "lib" / "python"),
            "LD_LIBRARY_PATH": str(self.root / "lib" / _HOST),
        }


def find_sdk() -> Sdk:
    """The SDK that the environment names.

    Raises:
        CompileError: there is none, or it is of another version than the libraries that check what it makes.
    """
    root = os.environ.get(ROOT, "")
    about = Path(root, "sdk.yaml")
    remedy = f"unpack QAIRT {bundled_sdk()} and set {ROOT} to its folder, or leave 'compiler' out"
    if not root or not about.is_file():
        why = f"{about} is not there" if root else f"{ROOT} is not set"
        raise CompileError("compiler: qairt needs the QAIRT SDK", why=why, remedy=remedy)
    found = re.search(r"^version: *[\"']?v?([0-9.]+)", about.read_text("utf-8", "replace"), re.MULTILINE)
    if found is None or numbers(found[1])[:3] != numbers(bundled_sdk()):
        version = found[1] if found else "not told"
        why = f"its version is {version}; onnxruntime-qnn, which reads back and emulates, has {bundled_sdk()}"
        raise CompileError("the QAIRT SDK is of another version", where=about.name, why=why, remedy=remedy)
    return Sdk(Path(root).resolve(), os.environ.get(PYTHON, "python3"))


def compile_by_sdk(model: Path, name: str, target: HtpTarget, out: Path) -> CompiledModel:
    """Compile the model file `model` into `<name>_ctx.onnx` and `<name>_ctx_qnn.bin` in the folder `out`.

    Raises:
        CompileError: there is no SDK, a tool of it failed, or what it made is not what was asked for.
        ModelError, QuantizationError: the model is one that HTP can't have.
    """
    sdk, source = find_sdk(), Source(name, model, [target])
    if in_blocks := weights_in_blocks(source.model):
        raise CompileError(
            f"{in_blocks[0]} can't be handed to the QAIRT SDK, as its weight has scales in blocks",
            why="overrides of version 1.0.0 have a scale for a tensor or a channel",
            remedy="write quantization: {weights: uint8, per_channel: true}, or leave 'compiler' out",
        )
    floats, overrides = take_apart(source.model, model.parent)
    with workshop(out) as work:
        binary = _compiled(sdk, floats, overrides, name, target, work)
        os.replace(binary, work / f"{name}_ctx_qnn.bin")
        made = context_model(
            source.model, f"{name}_ctx_qnn.bin", read_binary(work / f"{name}_ctx_qnn.bin"), bundled_sdk(), target
        )
        save_graph(made, work / source.context_model)
        context = read_context(work, source.context_model, [target], load_graph(model), OpTrace())
        for file in (*context.binaries, context.context_model):
            os.replace(work / file, out / file)
    return context


def _compiled(
    sdk: Sdk, floats: onnx.ModelProto, overrides: Mapping[str, Json], name: str, target: HtpTarget, work: Path
) -> Path:
    """The context binary. Files are named by `name` alone, which the graph is called after."""
    for folder in ("source", "converted", "quantized", "made"):
        (work / folder).mkdir()
    model, encodings = work / "source" / f"{name}.onnx", work / "encodings.json"
    onnx.save_model(floats, str(model), save_as_external_data=True, location=f"{name}.bin")
    encodings.write_text(json.dumps(overrides), "utf-8")
    dlc = work / "converted" / f"{name}.dlc"
    layouts: list[str] = []
    for kind, values in (("input", floats.graph.input), ("output", floats.graph.output)):
        for value in values:
            layouts += [f"--source_model_{kind}_layout", value.name, _LAYOUT]
            layouts += [f"--desired_{kind}_layout", value.name, _LAYOUT]
    quantized = bool(overrides["activation_encodings"])
    how = ["--quantization_overrides", str(encodings)] if quantized else ["--float_bitwidth", "16"]
    _run(sdk, [
        sdk.python, sdk.tool("qairt-converter"), "--input_network", str(model), "--output_path", str(dlc),
        "--target_backend", "HTP", "--onnx_skip_simplification", *layouts, *how, "--preserve_io_datatype",
    ], work)  # fmt: skip
    if quantized:
        converted, dlc = dlc, work / "quantized" / f"{name}.dlc"
        _run(sdk, [
            sdk.python, sdk.tool("qairt-quantizer"), "--input_dlc", str(converted), "--output_dlc", str(dlc),
            "--enable_float_fallback", "--float_bitwidth", "16", "--target_backend", "HTP", "--preserve_io_datatype",
        ], work)  # fmt: skip
    _run(sdk, [
        sdk.tool("qnn-context-binary-generator"), "--dlc_path", str(dlc), "--backend", sdk.library("QnnHtp"),
        "--config_file", str(_settings(sdk, name, target, work)), "--binary_file", name,
        "--output_dir", str(work / "made"),
    ], work)  # fmt: skip
    return work / "made" / f"{name}.bin"


def _settings(sdk: Sdk, name: str, target: HtpTarget, work: Path) -> Path:
    """The settings of the generator: the chip, and what the graph is finalized with."""
    optimization = int(dict(target.options or ()).get(OPTIMIZATION, COMPILE_OPTIONS[OPTIMIZATION]))
    graph: dict[str, Json] = {"graph_names": [name], "O": optimization, "fp16_relaxed_precision": 1}
    if target.vtcm_mb is not None:
        graph["vtcm_mb"] = target.vtcm_mb
    htp: Json = {
        "graphs": [graph],
        "devices": [{"soc_model": target.soc_model, "dsp_arch": f"v{target.htp_arch}"}],
    }
    (work / "htp.json").write_text(json.dumps(htp), "utf-8")
    extensions: Json = {
        "shared_library_path": sdk.library("QnnHtpNetRunExtensions"),
        "config_file_path": str(work / "htp.json"),
    }
    (work / "settings.json").write_text(json.dumps({"backend_extensions": extensions}), "utf-8")
    return work / "settings.json"


def _run(sdk: Sdk, command: Sequence[str], work: Path) -> None:
    log = work / "log.txt"
    tool = next(Path(part).name for part in command if Path(part).name.startswith("q"))
    print(" ".join(command))
    with log.open("wb") as stream:
        # In the caller's process group, with which it ends.
        try:
            status = subprocess.run(
                command, cwd=work, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=sdk.environment,
                pass_fds=lifeline.inherited(), check=False,
            ).returncode  # fmt: skip
        except OSError as error:
            raise CompileError(
                f"{tool} can't be run",
                where=command[0],
                why=error.strerror or str(error),
                remedy=f"unpack the whole SDK, and set {PYTHON} to the Python it is installed for",
            ) from error
    print(log.read_text("utf-8", "replace"))
    if status:
        said = "".join(f"\n    | {line}" for line in log_tail(log, _LOG_LINES))
        raise CompileError(
            f"{tool} failed", why=f"{exit_reason(status)}; its own words:{said}", remedy="see the step's log"
        )
