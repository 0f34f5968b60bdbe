"""Models of many families, exported by PyTorch, pass every rung with the default configuration, in one partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.model import StageInput
from tests.support.exported import export
from tests.support.stage_runs import Component

pytestmark = [pytest.mark.export, pytest.mark.slow]

Arrays = Mapping[str, NDArray[Any]]

TEXT = [
    "bert-dynamo-sdpa", "deberta-torchscript-eager", "gptj-torchscript-eager", "modernbert-dynamo-sdpa",
    "mpnet-torchscript-eager", "qwen-dynamo-sdpa", "t5-torchscript-eager", "xlnet-torchscript-eager",
]  # fmt: skip
"""Between them: two exporters, masks that are selected, added, subtracted and read by GatherND, a guard against NaN,
relative, bucketed and rotary positions of both kinds, windows, causal masks, shared keys, RMSNorm, einsum, pooling."""

BUCKETS = {"16": {"sequence": 16}, "32": {"sequence": 32}}
CALIBRATION = (3, 5, 9, 14, 16, 20, 28, 32)
HELD_OUT = (12, 27)


def sentence(length: int) -> Arrays:
    ids = np.random.default_rng(length).integers(3, 200, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones((1, length), np.int64)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ModelProto]:
    return export(TEXT, tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize("name", TEXT)
def test_a_text_encoder_passes_every_rung(name: str, models: Mapping[str, ModelProto], tmp_path: Path) -> None:
    component = Component(tmp_path / "net", models[name], BUCKETS)
    ranges = component.calibrate([sentence(length) for length in CALIBRATION])
    for bucket, length in zip(BUCKETS, HELD_OUT, strict=True):
        climb(component, bucket, ranges, [sentence(length)])


def climb(component: Component, bucket: str, ranges: StageInput, calls: Sequence[Arrays]) -> None:
    """Assert every rung of one bucket on these calls, down to the context on the emulator."""
    samples = component.samples(calls)
    quantized = component.quantize(bucket, ranges)
    verified = component.verify(bucket, samples, quantized)
    compiled: Any = component.context(bucket, quantized)
    emulated = component.emulate(bucket, samples, quantized, compiled, verified)

    assert lowest_db(verified, "padding") >= 60
    assert lowest_db(verified, "rewrite") >= 60
    assert lowest_db(verified, "quantization") >= 25
    assert lowest_db(emulated) >= 25, "the context against the original model"
    assert compiled.facts["partitions"] == 1
    left = {node["op"] for node in compiled.facts["cpu_nodes"]}
    assert left <= {"QuantizeLinear", "DequantizeLinear"}, "at the edges only"


def lowest_db(measured: StageInput, rung: str = "") -> float:
    """The least SQNR over all outputs: of a rung against the one above, or of the last against the original."""
    facts: Any = measured.facts
    found = facts["rungs"][rung] if rung else facts["outputs"]
    assert found, "no sample was measured"
    return min(float(accuracy["sqnr_db"]) for accuracy in found.values())
