"""Compiles and emulates a tiny model for the doctor: `python -m pipeline.upkeep.doctor.trial WHAT FOLDER SOC ARCH`.

The doctor runs both in processes of their own, as native code may end them. A process writes `FOLDER/answer.json` after
every part, so that the doctor knows how far it came if it dies.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

WIDTH = 8
TOLERANCE = 0.02
"""The most that an element of the result may be off. Elements are from 0 to 1, and weights are multiples of 1/128."""

NAME = "doctor"
_MODEL = f"""
<ir_version: 10, opset_import: ["": 21]>
{NAME} (float[1, {WIDTH}, {WIDTH}] x) => (float[1, {WIDTH}, {WIDTH}] y)
<float wide = {{{2 / 65535}}}, uint16 middle = {{32768}}, float narrow = {{{1 / 65535}}}, uint16 bottom = {{0}},
 float w_scale = {{{1 / 128}}}, uint8 w_zero = {{128}}>
{{
   x_q = QuantizeLinear (x, wide, middle)
   x_dq = DequantizeLinear (x_q, wide, middle)
   w_dq = DequantizeLinear (w_q, w_scale, w_zero)
   product = MatMul (x_dq, w_dq)
   product_q = QuantizeLinear (product, wide, middle)
   product_dq = DequantizeLinear (product_q, wide, middle)
   positive = Relu (product_dq)
   positive_q = QuantizeLinear (positive, narrow, bottom)
   y = DequantizeLinear (positive_q, narrow, bottom)
}}
"""
"""y = relu(x @ w) with activations of uint16 and weights of uint8, in ONNX's textual form; w_q is added as an array."""


def main(what: str, folder: Path, soc_model: int, htp_arch: int) -> None:
    """Do what `what` says: `api`, `compile` or `emulate`."""
    answer = folder / "answer.json"
    done: dict[str, object] = {}

    def part(name: str, value: object) -> None:
        done[name] = value
        answer.write_text(json.dumps(done), "utf-8")

    try:
        if what == "api":
            part("api", _asked_api())
        elif what == "compile":
            _compile(folder, soc_model, htp_arch, part)
        else:
            _emulate(folder, soc_model, htp_arch, part)
    except Exception as error:  # the doctor reports it, whatever it is
        from pipeline.shortage import shortage, shortage_behind

        lacking = shortage(error, "the trial") or shortage_behind(error, "the trial")
        fields = ("what", "why", "remedy")
        told = {field: str(getattr(lacking or error, field, "")) for field in fields}
        part("error", told | {"what": told["what"] or str(error), "of_machine": lacking is not None})


def _asked_api() -> tuple[int, int]:
    """The API version that the EP asks its host for, and the newest that this onnxruntime has.

    The EP's factory gets an OrtApiBase (onnxruntime_c_api.h) that notes the version it is asked for and returns null.
    The API version of onnxruntime 1.x is its minor version.
    """
    import onnxruntime
    import onnxruntime_qnn

    asked: list[int] = []
    version = onnxruntime.__version__.encode()
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda number: asked.append(number))
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(version, ctypes.c_void_p).value)
    base = (ctypes.c_void_p * 2)(*(ctypes.cast(call, ctypes.c_void_p).value for call in (get_api, get_version)))
    library = ctypes.CDLL(onnxruntime_qnn.get_library_path())
    found, count = (ctypes.c_void_p * 8)(), ctypes.c_size_t()
    library.CreateEpFactories(b"doctor", base, None, found, ctypes.c_size_t(8), ctypes.byref(count))
    return max(asked), int(onnxruntime.__version__.split(".")[1])


def _compile(folder: Path, soc_model: int, htp_arch: int, part: Callable[[str, object], None]) -> None:
    from pipeline.contracts.target import HtpTarget
    from pipeline.qnn.compiling.compiler import Source, run_compiler
    from pipeline.qnn.compiling.readback import read_context

    target = HtpTarget(soc_model, htp_arch)
    source = Source(NAME, _write_model(folder), [target])
    work = folder / "context"
    work.mkdir()
    run_compiler(source, work)
    trace = source.trace(work)
    part("compile", source.context_model)
    context = read_context(work, source.context_model, [target], source.model, trace)
    if context.partitions != 1:
        raise ValueError(f"the context has {context.partitions} partitions, not 1")
    part("readback", f"one partition, SDK {context.sdk}")


def _emulate(folder: Path, soc_model: int, htp_arch: int, part: Callable[[str, object], None]) -> None:
    import numpy as np

    from pipeline.contracts.target import HtpTarget
    from pipeline.qnn.running.emulate import run_context

    x = np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(1, WIDTH, WIDTH)
    model = f"{NAME}_ctx.onnx"
    ((y,),) = run_context(folder / "context", model, HtpTarget(soc_model, htp_arch), [{"x": x}])
    largest = float(np.abs(y - np.maximum(x * 0.5, 0)).max())
    if not largest < TOLERANCE:
        raise ValueError(f"the emulator is off by {largest:.3g}")
    part("emulate", f"off by {largest:.1g} at most")


def _write_model(folder: Path) -> Path:
    """Write the QDQ model, with half the identity for w; returns its path."""
    import numpy as np
    from onnx import numpy_helper, parser

    from pipeline.graph.files.model_file import save_graph

    model = parser.parse_model(_MODEL)
    weights = (np.eye(WIDTH) * 64 + 128).astype(np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w_q"))
    path = folder / "model.onnx"
    save_graph(model, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
