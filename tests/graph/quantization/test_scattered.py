"""Scattered elements have the encoding of what they are scattered into, and of the result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.scheme import Rule
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.qdq.qdq_model import encoding_of
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, without_rewrites

SHAPES = {"x": (1, 32), "u": (1, 4)}
SCATTER = (
    "g (float[1,32] x, float[1,4] u) => (float[1,32] y) {"
    "i = Identity (places) s = ScatterElements <axis = 1, reduction = {how}> (x, places, u) y = Relu (s) }"
)
PLACES = np.array([[3, 0, 17, 31]])


def _feeds(scale: float) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    sizes = {"x": 1.0, "u": scale}
    return {name: (random.normal(size=SHAPES[name]) * sizes[name]).astype(np.float32) for name in SHAPES}


def _encodings(quantized: StageInput) -> list[object]:
    index = GraphIndex(load_graph(quantized.folder / MODEL), quantized.folder)
    (node,) = (node for node in index.model.graph.node if node.op_type == "ScatterElements")
    (quantizer,) = index.readers[node.output[0]]
    (dequantizer,) = index.readers[quantizer.output[0]]
    return [encoding_of(index, name) for name in (node.input[0], node.input[2], dequantizer.output[0])]


@pytest.mark.parametrize("constants", [(), ("u",), ("x",)], ids=["computed", "of constants", "into constants"])
@pytest.mark.parametrize(("activations", "how"), [("uint16", "none"), ("uint16", "add"), ("uint8", "none")])
def test_all_have_one_encoding(activations: str, how: str, constants: tuple[str, ...], tmp_path: Path) -> None:
    text = SCATTER.replace("{how}", f'"{how}"').replace("i = Identity (places) ", "")
    feeds: Mapping[str, NDArray[Any]] = _feeds(5.0)
    for name in constants:
        text = text.replace(f"float[1,{SHAPES[name][1]}] {name}", "").replace("(, ", "(").replace(", )", ")")
    model = graph(text, {"places": PLACES} | {name: feeds[name] for name in constants})
    component = without_rewrites(tmp_path, model)
    quantized = component.quantize(
        "all",
        component.calibrate([{name: array for name, array in feeds.items() if name not in constants}]),
        activations=activations,
    )
    first, second, third = _encodings(quantized)
    assert first is not None
    assert first == second == third


@pytest.mark.slow
def test_the_chip_agrees_whatever_is_scattered(tmp_path: Path) -> None:
    model = graph(SCATTER.replace("{how}", '"none"').replace("i = Identity (places) ", ""), {"places": PLACES})
    component = without_rewrites(tmp_path / "net", model)
    feeds = [_feeds(5.0)]
    ranges = component.calibrate(feeds)
    for name, rules in (("integers", ()), ("float before", (Rule(nodes=("Relu_1",), precision="fp16"),))):
        quantized = component.quantize("all", ranges, rules=rules)
        on_htp = on_chip(quantized, feeds, tmp_path / name).outputs
        assert sqnr_db(on_cpu(quantized, feeds), on_htp, "y") > 60
        assert sqnr_db(on_cpu(component.ingest, feeds), on_htp, "y") > 60
