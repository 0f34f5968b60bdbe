"""Clamps in front of what has a wider encoding, on the emulator: a Clip that is left to an encoding is lost there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.quantization.quantizer import quantize
from pipeline.graph.rewrites import apply_all
from tests.conformance.batches import run_batch
from tests.conformance.formats import SCHEMES, observed
from tests.support.graphs import graph, operators, outputs

RANDOM = np.random.default_rng(1)


def of(*dims: int) -> NDArray[np.float32]:
    return RANDOM.normal(size=dims).astype(np.float32)


CONV = "c = Conv <pads = [1,1,1,1]> (x, w)"
OTHER = "b = Conv <pads = [1,1,1,1]> (x, v)"
MAKERS = {
    "Conv": CONV,
    "ConvTranspose": "c = ConvTranspose <pads = [1,1,1,1]> (x, t)",
    "Add": "d = Conv <pads = [1,1,1,1]> (x, w) c = Add (d, column)",
    "Sub": "d = Conv <pads = [1,1,1,1]> (x, w) e = Conv <pads = [1,1,1,1]> (x, v) c = Sub (d, e)",
    "AveragePool": "d = Conv <pads = [1,1,1,1]> (x, w) c = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (d)",
}
CLAMPS = {
    "both": "a = Clip (c, low, high)",
    "below": "a = Clip (c, low)",
    "above": "a = Clip (c, , high)",
    "from zero": "a = Clip (c, zero, high)",
    "to zero": "a = Clip (c, low, zero)",
    "rectified": "k = Clip (c, low, high) a = Relu (k)",
    "rectified before": "r = Relu (c) a = Clip (r, low, high)",
    "moved": "k = Clip (c, low, high) a = Identity (k)",
}
READERS = {
    "joined": (f"{OTHER} y = Concat <axis = 1> (a, b)", "1,8,6,6"),
    "joined above zero": (f"{OTHER} r2 = Relu (b) y = Concat <axis = 1> (a, r2)", "1,8,6,6"),
    "joined to itself": (f"{OTHER} k2 = Concat <axis = 1> (a, a) y = Concat <axis = 1> (k2, b)", "1,12,6,6"),
    "joined to what is clamped": ("y = Concat <axis = 1> (a, c)", "1,8,6,6"),
    "transposed": (
        f"{OTHER} t1 = Transpose <perm = [0,2,3,1]> (a) t2 = Transpose <perm = [0,2,3,1]> (b)"
        " y = Concat <axis = 3> (t1, t2)", "1,6,6,8",
    ),
    "rectified": (f"{OTHER} k2 = Concat <axis = 1> (a, b) y = Relu (k2)", "1,8,6,6"),
    "a constant": ("k2 = Concat <axis = 1> (a, much) y = Identity (k2)", "1,6,6,6"),
    "padded": ("y = Pad (a, pads, five)", "1,4,7,7"),
    "padded below": ("y = Pad (a, pads, less)", "1,4,7,7"),
}  # fmt: skip
CONSTANTS: dict[str, Any] = {
    "w": of(4, 3, 3, 3) * np.float32(0.4), "v": of(4, 3, 3, 3) * np.float32(1.2), "t": of(3, 4, 3, 3) * np.float32(0.4),
    "column": np.full((4, 1, 1), 0.1, np.float32), "low": np.float32(-0.3), "high": np.float32(1.1),
    "zero": np.float32(0), "five": np.float32(5), "less": np.float32(-5), "much": of(1, 2, 6, 6) * np.float32(5),
    "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1]),
}  # fmt: skip
X = of(1, 3, 6, 6)
FORMS = [
    *[("Conv", clamp, reader) for clamp in CLAMPS for reader in READERS],
    *[(maker, clamp, "joined above zero") for maker in MAKERS for clamp in ("both", "from zero")],
]


def build(maker: str, clamp: str, reader: str) -> ModelProto:
    body, dims = READERS[reader]
    body = f"{MAKERS[maker]} {CLAMPS[clamp]} {body}"
    used = {name: array for name, array in CONSTANTS.items() if f"{name})" in body or f"{name}," in body}
    return graph(f"g (float[1,3,6,6] x) => (float[{dims}] y) {{ {body} }}", used)


def quantized(model: ModelProto, number_format: str, folder: Path) -> ModelProto:
    apply_all(model, folder)
    return quantize(model, folder, observed(model, {"x": X}), SCHEMES[number_format]).model


def sqnr_db(wanted: NDArray[np.float32], given: NDArray[np.float32]) -> float:
    noise = ((wanted - given).astype(np.float64) ** 2).sum()
    return float(10 * np.log10((wanted.astype(np.float64) ** 2).sum() / max(noise, 1e-30)))


@pytest.mark.parametrize(("number_format", "least_db"), [("u16", 45.0), ("u8", 30.0)])
def test_no_clamp_is_lost(number_format: str, least_db: float, tmp_path: Path) -> None:
    """Lost, each of these has 0 to 17 dB."""
    wanted = [outputs(build(*form), {"x": X})["y"] for form in FORMS]
    models = [quantized(build(*form), number_format, tmp_path) for form in FORMS]
    made = run_batch(models, [{"x": X}] * len(models), tmp_path / "work")
    lost = {}
    for form, right, model, chip in zip(FORMS, wanted, models, made, strict=True):
        assert (chip.refused, chip.on_cpu) == ("", ()), form
        on_cpu = unoptimized_session(model, tmp_path).run(["y"], {"x": X})[0]
        figures = sqnr_db(right, on_cpu), sqnr_db(on_cpu, chip.outputs[0])
        if min(figures) < min(least_db, 35.0) or figures[1] < least_db:
            lost[form] = figures
    assert not lost


@pytest.mark.parametrize(("bound", "held"), [("high", 0), ("five", 1)])
def test_a_concat_of_equal_clamps_costs_nothing(bound: str, held: int, tmp_path: Path) -> None:
    """Its encoding gets no room beyond the bounds, so that it is that of its inputs."""
    text = f"{CONV} {OTHER} a = Clip (c, low, high) r = Clip (b, low, {bound}) y = Concat <axis = 1> (a, r)"
    used = {name: CONSTANTS[name] for name in ("w", "v", "low", "high", *(["five"] if held else []))}
    model = graph(f"g (float[1,3,6,6] x) => (float[1,8,6,6] y) {{ {text} }}", used)
    counted = operators(quantized(model, "u16", tmp_path))
    assert counted["Clip"] + counted["Max"] == 0
    assert counted["Min"] == held
