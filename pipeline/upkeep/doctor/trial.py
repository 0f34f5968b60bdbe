"""A real compile and a real emulation of a tiny model: `python -m pipeline.doctor.trial WHAT FOLDER SOC ARCH`.

Each is run by the doctor in a process of its own, as native code may end it. What came of it is in
`FOLDER/answer.json`, written after every part, so that of a process that died it is known how far it came.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

WIDTH = 8
"""The model is y = relu(x @ w), both float32 [1, WIDTH, WIDTH], in uint16 activations and uint8 weights."""

TOLERANCE = 0.02
"""Of the result, which is between 0 and 1; steps of the weights are 1/128."""

NAME = "doctor"


def main(what: str, folder: Path, soc_model: int, htp_arch: int) -> None:
    """Do `api`, `compile` or `emulate`."""
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
    except Exception as error:  # whatever the libraries raise is the answer
        fields = ("what", "why", "remedy")
        part("error", {field: str(getattr(error, field, "")) for field in fields} | {"text": f"{error}"})


def _asked_api() -> tuple[int, int]:
    """The API version that the EP asks its host for, and the newest that this onnxruntime has.

    The EP's factory is called with an OrtApiBase (onnxruntime_c_api.h) that notes what it is asked for and gives
    nothing. The minor version of onnxruntime 1.x is its API version.
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
    from pipeline.qnn.compiler import Source, run_compiler
    from pipeline.qnn.readback import read_context
    from pipeline.qnn.target import HtpTarget

    target = HtpTarget(soc_model, htp_arch)
    source = Source(NAME, _write_model(folder), [target])
    work = folder / "context"
    work.mkdir()
    trace = run_compiler(source, work)
    part("compile", source.context_model)
    context = read_context(work, source.context_model, [target], source.model, trace)
    if context.partitions != 1:
        raise ValueError(f"the context has {context.partitions} partitions, not 1")
    part("readback", f"one partition, SDK {context.sdk}")


def _emulate(folder: Path, soc_model: int, htp_arch: int, part: Callable[[str, object], None]) -> None:
    import numpy as np

    from pipeline.qnn.emulate import run_context
    from pipeline.qnn.target import HtpTarget

    x = np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(1, WIDTH, WIDTH)
    model = f"{NAME}_ctx.onnx"
    ((y,),) = run_context(folder / "context", model, HtpTarget(soc_model, htp_arch), [{"x": x}])
    largest = float(np.abs(y - np.maximum(x * 0.5, 0)).max())
    if not largest < TOLERANCE:
        raise ValueError(f"the emulator is off by {largest:.3g}")
    part("emulate", f"off by {largest:.1g} at most")


def _write_model(folder: Path) -> Path:
    """The QDQ model, with w half the identity."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    from pipeline.graph.model_file import save_graph

    nodes = []
    tensors = [numpy_helper.from_array((np.eye(WIDTH) * 64 + 128).astype(np.uint8), "w_q")]

    def encoding(name: str, scale: float, zero: np.generic) -> list[str]:
        tensors.append(numpy_helper.from_array(np.asarray(scale, np.float32), f"{name}_scale"))
        tensors.append(numpy_helper.from_array(np.asarray(zero), f"{name}_zero"))
        return [f"{name}_scale", f"{name}_zero"]

    def quantized(value: str, out: str, scale: float, zero: np.generic) -> None:
        given = encoding(value, scale, zero)
        nodes.append(helper.make_node("QuantizeLinear", [value, *given], [f"{value}_q"], f"{value}_quantize"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{value}_q", *given], [out], f"{out}_dequantize"))

    quantized("x", "x_dq", 2 / 65535, np.uint16(32768))
    w = encoding("w", 1 / 128, np.uint8(128))
    nodes.append(helper.make_node("DequantizeLinear", ["w_q", *w], ["w_dq"], "w_dequantize"))
    nodes.append(helper.make_node("MatMul", ["x_dq", "w_dq"], ["product"], "matmul"))
    quantized("product", "product_dq", 2 / 65535, np.uint16(32768))
    nodes.append(helper.make_node("Relu", ["product_dq"], ["positive"], "relu"))
    quantized("positive", "y", 1 / 65535, np.uint16(0))
    shape = [1, WIDTH, WIDTH]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "doctor", [x], [y], tensors)
    path = folder / "model.onnx"
    save_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
