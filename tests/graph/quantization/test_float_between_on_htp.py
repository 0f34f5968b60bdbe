"""Nodes in float16 between quantized ones, on the emulator: each kind of node before each kind of reader.

HTP (2.51, emulated) places the 16 rows of a normalization wrongly that it hands to a quantizer and that to a product
alone; see `ROWS_MISPLACED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts.scheme import Rule
from pipeline.graph.quantization import quantizer
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

pytestmark = pytest.mark.slow

WIDTH = 64
FLOAT: Mapping[str, str] = {
    "rms_norm": "RMSNormalization <axis = -1> ({x}, gamma)",
    "layer_norm": "LayerNormalization <axis = -1> ({x}, gamma, beta)",
    "softmax": "Softmax <axis = -1> ({x})",
    "square": "Mul ({x}, {x})",
    "scaled": "Mul ({x}, gamma)",
    "gelu": "Gelu ({x})",
    "matrix": "MatMul ({x}, weight_float)",
}
"""What stays in float."""
READERS: Mapping[str, str] = {"product": "MatMul ({x}, weight)", "sum": "Add ({x}, other)", "both": ""}
"""What reads it, quantized."""


@pytest.mark.parametrize("rows", [1, 16, 128])
@pytest.mark.parametrize("before", ["quantized", "float"])
def test_a_node_in_float_hands_on_what_it_computes(rows: int, before: str, tmp_path: Path) -> None:
    lines, outputs = ["other = Sub (x, gain)"], []
    for kind, node in FLOAT.items():
        for reader, behind in READERS.items():
            at = f"{kind}_{reader}"
            name = f"[float_{at}_in] " if before == "float" else ""
            lines.append(f"{name}{at}_in = Mul (x, gain)")
            lines.append(f"[float_{at}] {at}_made = {node.format(x=f'{at}_in')}")
            if behind:
                lines.append(f"{at} = {behind.format(x=f'{at}_made')}")
            else:
                lines += [f"{at}_{each} = {READERS[each].format(x=f'{at}_made')}" for each in ("product", "sum")]
                lines.append(f"{at} = Add ({at}_product, {at}_sum)")
            outputs.append(at)
    made = ", ".join(f"float[1, {rows}, {WIDTH}] {at}" for at in outputs)
    rng = np.random.default_rng(7)
    constants = {
        "gain": rng.uniform(0.5, 1.5, WIDTH),
        "gamma": rng.uniform(0.5, 1.5, WIDTH),
        "beta": rng.normal(size=WIDTH),
        "weight": rng.normal(size=(WIDTH, WIDTH)) / 8,
        "weight_float": rng.normal(size=(WIDTH, WIDTH)) / 8,
    }
    model = graph(
        f"net (float[1, {rows}, {WIDTH}] x) => ({made}) {{\n{chr(10).join(lines)}\n}}",
        {name: array.astype(np.float32) for name, array in constants.items()},
        opset=23,
    )
    component = with_rewrites(tmp_path / "net", model)
    feeds = [{"x": rng.normal(size=(1, rows, WIDTH)).astype(np.float32)} for _ in range(2)]
    rules = [Rule(nodes=("float_*",), precision="fp16")]
    quantized = component.quantize("all", component.calibrate(feeds), rules=rules)

    chip = on_chip(quantized, feeds, tmp_path / "chip")

    cpu = on_cpu(quantized, feeds)
    found = {at: sqnr_db(cpu, chip.outputs, at) for at in outputs}
    assert chip.context.partitions == 1
    assert {at: db for at, db in found.items() if db < 50} == {}


def test_the_chip_still_misplaces_16_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizer, "ROWS_MISPLACED", 0)
    rng = np.random.default_rng(7)
    constants = {
        "gain": rng.uniform(0.5, 1.5, WIDTH), "gamma": np.ones(WIDTH), "beta": rng.normal(size=WIDTH),
        "weight": rng.normal(size=(WIDTH, WIDTH)) / 8,
    }  # fmt: skip
    text = f"g = Mul (x, gain) [float_norm] h = {FLOAT['layer_norm'].format(x='g')} y = MatMul (h, weight)"
    model = graph(
        f"net (float[1, 16, {WIDTH}] x) => (float[1, 16, {WIDTH}] y) {{ {text} }}",
        {name: array.astype(np.float32) for name, array in constants.items()},
    )
    component = with_rewrites(tmp_path / "net", model)
    feeds = [{"x": rng.normal(size=(1, 16, WIDTH)).astype(np.float32)}]
    rules = [Rule(nodes=("float_norm",), precision="fp16")]
    quantized = component.quantize("all", component.calibrate(feeds), rules=rules)

    chip = on_chip(quantized, feeds, tmp_path / "chip")

    made, right = chip.outputs[0]["y"], on_cpu(quantized, feeds)[0]["y"]
    assert sqnr_db([{"y": right}], [{"y": made}], "y") < 20, "HTP places 16 rows rightly now: drop ROWS_MISPLACED"
    np.testing.assert_allclose(made[0, 4:6], right[0, 2:4], atol=0.05)
