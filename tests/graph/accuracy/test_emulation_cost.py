"""What a sample is taken to cost on the emulator, in proportion to what was measured there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.graph.accuracy.emulation_cost import sample_s
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import attention, sentence
from tests.support.stage_runs import Component

BUCKETS = {"16": {"sequence": 16}, "64": {"sequence": 64}}


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> Component:
    return Component(tmp_path_factory.mktemp("attention"), attention(width=64), BUCKETS)


def of(folder: Path) -> float:
    return sample_s(load_graph(folder / MODEL))


def test_a_longer_bucket_and_float_cost_more(component: Component) -> None:
    ranges = component.calibrate([sentence(64, 0), sentence(12, 1)])
    short, long = (of(component.quantize(name, ranges).folder) for name in BUCKETS)
    assert short < long < 8 * short
    assert of(component.rewrite["64"].folder) > 3 * long, "HTP's float16 is emulated number by number"


def test_eight_bits_cost_less_than_sixteen(component: Component) -> None:
    ranges = component.calibrate([sentence(64, 0)])
    eight = of(component.quantize("64", ranges, activations="uint8").folder)
    assert eight < of(component.quantize("64", ranges).folder)
