from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import CompileError
from pipeline.graph.rewrites.activations import decompose_swish
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

X = np.random.default_rng(0).normal(size=(1, 8, 16)).astype(np.float32) * 2


@pytest.mark.parametrize(
    ("attribute", "nodes"), [("", {"Sigmoid": 1, "Mul": 1}), ("<alpha = 1.5>", {"Sigmoid": 1, "Mul": 2})]
)
def test_a_swish_becomes_a_product(attribute: str, nodes: dict[str, int], tmp_path: Path) -> None:
    model = graph(f"g (float[1,8,16] x) => (float[1,8,16] y) {{ y = Swish {attribute} (x) }}", opset=24)
    before = outputs(model, {"x": X})["y"]
    assert decompose_swish.apply(model, tmp_path) == 1
    assert operators(model) == nodes
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-5, atol=1e-6)
    assert decompose_swish.apply(model, tmp_path) == 0


def test_other_types_and_activations_are_left_alone(tmp_path: Path) -> None:
    model = graph(
        """g (float16[1,8,16] x, float[1,8,16] z) => (float16[1,8,16] y, float[1,8,16] w) {
            y = Swish (x)
            w = HardSwish (z)
        }""",
        opset=24,
    )
    assert decompose_swish.apply(model, tmp_path) == 0
    assert operators(model) == {"Swish": 1, "HardSwish": 1}


@pytest.mark.slow
def test_the_chip_computes_the_product_rightly(tmp_path: Path) -> None:
    model = graph("g (float[1,8,16] x) => (float[1,8,16] y) { y = Swish (x) }", opset=24)
    swish, product = without_rewrites(tmp_path / "swish", model), with_rewrites(tmp_path / "product", model)
    as_it_is, rewritten = (each.quantize("all", each.calibrate([{"x": X}])) for each in (swish, product))

    # QNN gives a Swish another encoding than it is told. If it does not any more, the rewrite is not needed.
    with pytest.raises(CompileError, match="'y' is encoded with scale"):
        on_chip(as_it_is, [{"x": X}], tmp_path / "swish" / "out")
    chip = on_chip(rewritten, [{"x": X}], tmp_path / "product" / "out")
    assert sqnr_db(on_cpu(rewritten, [{"x": X}]), chip.outputs, "y") > 60
