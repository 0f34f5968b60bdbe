"""What docs/accuracy.md says of inputs in two parts: float16 is too coarse for one, and fine enough for two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike, NDArray

from pipeline.graph.accuracy.figures.accuracy import sqnr_db
from pipeline.qnn.child import compile_apart, run_apart
from tests.support.graphs import graph
from tests.support.stage_runs import X_ELITE

pytestmark = pytest.mark.slow

FRAMES, FRAME, BINS, TIMES = 8, 64, 32, 2048
TAIL = """
    a = Abs (s)
    p = Add (a, floor)
    l = Log (p)
    y = Add (l, offset)
}"""
ONE = f"g (float[{FRAMES},{FRAME}] x) => (float[{FRAMES},{BINS}] y) {{ s = MatMul (x, v) {TAIL}"
TWO = f"""g (float[{FRAMES},{FRAME}] x, float[{FRAMES},{FRAME}] f) => (float[{FRAMES},{BINS}] y) {{
    vc = MatMul (x, v)
    uc = MatMul (x, u)
    vf = MatMul (f, v)
    fine = Add (uc, vf)
    small = Mul (fine, part)
    s = Add (vc, small)
    {TAIL}"""


def in_parts(array: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What float16 holds of it, and what it leaves, 2048 times."""
    coarse = array.astype(np.float16).astype(np.float64)
    return coarse.astype(np.float32), ((array - coarse) * TIMES).astype(np.float16).astype(np.float32)


def emulated_db(text: str, constants: Mapping[str, ArrayLike], feeds: dict[str, Any], truth: Any, root: Path) -> float:
    """The SQNR of a model in float16 on the emulator against the truth."""
    for folder in ("", "context", "run"):
        (root / folder).mkdir()
    more = {"floor": np.float32(1e-4), "offset": np.float32(6)}
    onnx.save(graph(text, {**constants, **more}), root / "model.onnx")
    compiled = compile_apart(root / "model.onnx", "parts", X_ELITE, root / "context")
    ((got,),) = run_apart(root / "context", compiled.context_model, X_ELITE, [feeds], root / "run")
    found = sqnr_db(float((truth**2).sum()), float(((got.astype(np.float64) - truth) ** 2).sum()))
    assert found is not None
    return found


def test_two_float16_numbers_bring_what_one_rounds_away(tmp_path: Path) -> None:
    """A chord, and the logarithm of what lies 60 dB below it."""
    times = np.arange(FRAME) / FRAME
    x = np.stack([np.sin(2 * np.pi * (3 * times + phase)) for phase in np.linspace(0, 1, FRAMES)])
    x += 1e-3 * np.random.default_rng(1).standard_normal(x.shape)
    window = np.hanning(FRAME)[:, None] / 8
    basis = np.cos(2 * np.pi * np.outer(np.arange(FRAME), np.arange(BINS)) / FRAME) * window
    truth = np.log(np.abs(x @ basis) + 1e-4) + 6
    (c, f), (v, u) = in_parts(x), in_parts(basis)

    one = emulated_db(ONE, {"v": basis.astype(np.float32)}, {"x": x.astype(np.float32)}, truth, tmp_path / "one")
    constants: dict[str, ArrayLike] = {"v": v, "u": u, "part": np.float32(1 / TIMES)}
    two = emulated_db(TWO, constants, {"x": c, "f": f}, truth, tmp_path / "two")

    assert one < 30, "21.4 dB, measured"
    assert two > 50, "63.8 dB, measured"
