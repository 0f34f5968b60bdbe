"""A wiring fault is a model that a compiler takes: another value of the same shape and type in place of one."""

from __future__ import annotations

import random
from pathlib import Path

import onnx
import pytest

from pipeline.graph.files.model_file import MODEL
from tests.injected.inject import inject
from tests.support.graphs import encoder, sentence
from tests.support.stage_runs import Component, part


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    component = Component(tmp_path_factory.mktemp("encoder"), encoder(), {"16": {"sequence": 16}})
    made = component.quantize_all(component.calibrate([sentence(16, seed) for seed in range(3)]))
    return part(made, "16").folder / MODEL


def test_a_node_reads_another_value_that_fits(quantized: Path) -> None:
    whole = onnx.load(quantized)
    for seed in range(40):
        model = onnx.ModelProto.FromString(whole.SerializeToString())
        told = inject(model, "wiring", random.Random(seed))
        onnx.checker.check_model(model, full_check=True)
        changed = [
            (old.name, before, after)
            for old, new in zip(whole.graph.node, model.graph.node, strict=True)
            for before, after in zip(old.input, new.input, strict=True)
            if before != after
        ]
        assert told in {f"{node} reads {after} for {before}" for node, before, after in changed}
        assert len(changed) == 1
