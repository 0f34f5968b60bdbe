from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import drop_output_padding
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

# Kernel, and attributes.
HOW: dict[str, tuple[tuple[int, ...], str]] = {
    "as decoders have it": ((3, 3), "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]"),
    "more than was cut": ((3, 3), "strides = [3, 3], output_padding = [0, 2]"),
    "some of it cut": ((2, 3), "strides = [4, 3], pads = [0, 1, 1, 1], output_padding = [2, 2]"),
    "a row": ((3,), "strides = [2], output_padding = [1]"),
}
ROW = np.random.default_rng(0).normal(size=(2, 4, 6, 5)).astype(np.float32)


def build(
    how: tuple[tuple[int, ...], str], group: int = 4, made: int = 4
) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    numbers, (kernel, attributes) = np.random.default_rng(1), how
    x = ROW if len(kernel) > 1 else ROW[..., 0]
    weights: dict[str, NDArray[Any]] = {
        "w": numbers.normal(size=(4, made // group, *kernel)).astype(np.float32),
        "b": numbers.normal(size=made).astype(np.float32),
    }
    dims = ",".join(map(str, x.shape))
    around = ",".join("hv"[: len(kernel)])
    body = f"y = ConvTranspose <group = {group}, {attributes}> (x, w, b)"
    return graph(f"g (float[{dims}] x) => (float[2,{made},{around}] y) {{ {body} }}", weights), {"x": x}


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("name", HOW)
def test_the_result_stays_what_it_was(name: str, group: int, tmp_path: Path) -> None:
    model, feeds = build(HOW[name], group)
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["drop_output_padding"] == 1

    (node,) = (each for each in model.graph.node if each.op_type == "ConvTranspose")
    assert "output_padding" not in settings(node)
    np.testing.assert_allclose(outputs(model, feeds)["y"], before, rtol=1e-5, atol=1e-5)
    assert drop_output_padding.apply(model, tmp_path) == 0


def test_dilations_are_spread_before(tmp_path: Path) -> None:
    model, feeds = build(((3, 3), "strides = [2, 2], dilations = [2, 1], output_padding = [1, 1]"))
    before = outputs(model, feeds)["y"]
    apply_all(model, tmp_path)
    assert operators(model)["ConvTranspose"] == 1
    assert not any("output_padding" in settings(node) for node in model.graph.node)
    np.testing.assert_allclose(outputs(model, feeds)["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    ["strides = [2, 2], pads = [1, 1, 1, 1]", "strides = [2, 2], output_padding = [1, 1], output_shape = [12, 11]"],
)
def test_others_are_left_alone(attributes: str, tmp_path: Path) -> None:
    assert drop_output_padding.apply(build(((3, 3), attributes))[0], tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("group", "made"), [(1, 4), (2, 4), (4, 4), (4, 8)])
@pytest.mark.parametrize("name", HOW)
def test_the_chip_is_right(name: str, group: int, made: int, rounded: bool, tmp_path: Path) -> None:
    model, feeds = build(HOW[name], group, made)
    component = with_rewrites(tmp_path / "model", model)
    given = component.quantize("all", component.calibrate([feeds])) if rounded else component.rewrite["all"]

    chip = on_chip(given, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(given, [feeds]), chip.outputs, "y") > 60


@pytest.mark.slow
def test_the_chip_is_wrong_without(tmp_path: Path) -> None:
    model, feeds = build(HOW["as decoders have it"])
    component = without_rewrites(tmp_path / "model", model)
    chip = on_chip(component.rewrite["all"], [feeds], tmp_path / "chip")
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") < 5, "drop drop_output_padding"
