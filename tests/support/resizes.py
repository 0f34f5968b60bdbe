"""Models of one Resize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.errors import CompileError
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

PLAIN = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def resizing(
    before: Sequence[int],
    after: Sequence[int],
    *,
    scales: Sequence[float] = (),
    roi: Sequence[float] = (),
    sizes: Sequence[int] = (),
    **how: Any,
) -> ModelProto:
    """A Resize of x float32 [before] to y [after]: by scales, by `sizes` for some axes, or by `after`."""
    x, y = (",".join(map(str, dims)) for dims in (before, after))
    given = "scales" if scales else ", sizes"
    constants: dict[str, NDArray[Any]] = {"roi": np.array(roi, np.float32)} if len(roi) else {}
    constants |= {"scales": np.array(scales, np.float32)} if scales else {"sizes": np.array(sizes or after)}
    attributes = ", ".join(
        f"{name} = {value!r}".replace("'", '"') if not isinstance(value, list) else f"{name} = {value}"
        for name, value in how.items()
    )
    body = f"y = Resize <{attributes}> (x, {'roi' if len(roi) else ''}, {given})"
    return graph(f"g (float[{x}] x) => (float[{y}] y) {{ {body} }}", constants, opset=19)


def ramp(*shape: int) -> NDArray[np.float32]:
    """Values without a pattern that a Resize could hide."""
    numbers = np.random.default_rng(len(shape)).normal(size=shape)
    return numbers.astype(np.float32)


def on_htp(root: Path, model: ModelProto, shape: Sequence[int], scheme: Mapping[str, Any] | None) -> dict[str, float]:
    """SQNR in dB against the model as it is, with and without rewrites; -100 where QNN leaves it to the CPU.

    Without a scheme it is in float16.
    """
    samples = [{"x": ramp(*shape) * np.float32(1 + number / 4)} for number in range(4)]
    found, truth = {}, None
    for kind, make in (("without", without_rewrites), ("with", with_rewrites)):
        component = make(root / kind, model)
        made = component.rewrite["all"]
        truth = truth or on_cpu(made, samples)
        if scheme is not None:
            made = component.quantize("all", component.calibrate(samples), **scheme)
        try:
            chip = on_chip(made, samples, root / f"{kind} chip")
        except CompileError:
            found[kind] = -100.0
            continue
        found[kind] = -100.0 if chip.cpu_ops else sqnr_db(truth, chip.outputs, "y")
    return found
