"""What the quantizer makes is what QNN takes: the real compiler, and the real emulator of the chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.graph.cpu import load_session, run
from pipeline.model import StageInput
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.running.emulate import run_context
from tests.support.figures import array_db
from tests.support.fresh import fresh
from tests.support.graphs import attention, convolutions, sentence
from tests.support.stage_runs import Component

X_ELITE = HtpTarget(60, 73, 8)
SCHEMES = [("uint16", "uint8"), ("uint16", "int8"), ("uint8", "uint8"), ("uint8", "int8")]
CALLS = [sentence(length, seed=length) for length in (3, 5, 8, 11, 14)]


def compiled(quantized: StageInput, out: Path) -> CompiledModel:
    out.mkdir()
    return fresh(compile_context, quantized.folder / "model.onnx", "net", X_ELITE, out)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Component, StageInput]:
    component = Component(tmp_path_factory.mktemp("attention"), attention(), {"16": {"sequence": 16}})
    return component, component.calibrate(CALLS)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Component, StageInput]:
    component = Component(tmp_path_factory.mktemp("convolutions"), convolutions(), {"32": {"frames": 32}})
    frames = np.random.default_rng(1).normal(size=(1, 8, 32)).astype(np.float32)
    return component, component.calibrate([{"x": frames}])


@pytest.mark.parametrize("model", ["transformer", "decoder"])
@pytest.mark.parametrize(("activations", "weights"), SCHEMES)
def test_the_whole_model_is_one_partition(
    model: str, activations: str, weights: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    component, ranges = request.getfixturevalue(model)
    (bucket,) = component.buckets

    context = compiled(component.quantize(bucket, ranges, activations=activations, weights=weights), tmp_path / "out")

    assert context.partitions == 1
    assert {node.op for node in context.cpu_nodes} <= {"QuantizeLinear", "DequantizeLinear"}, "at the edges only"


@pytest.mark.parametrize("model", ["transformer", "decoder"])
def test_the_chip_computes_what_the_cpu_does(model: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    component, ranges = request.getfixturevalue(model)
    (bucket,) = component.buckets
    quantized = component.quantize(bucket, ranges)
    if model == "transformer":
        feeds = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in CALLS[3].items()}
    else:
        feeds = {"x": np.random.default_rng(2).normal(size=(1, 8, 32)).astype(np.float32)}
    (cpu,) = run(load_session(quantized.folder / "model.onnx"), feeds).values()

    context = compiled(quantized, tmp_path / "out")
    ((chip,),) = fresh(run_context, tmp_path / "out", context.context_model, X_ELITE, [feeds])

    assert array_db(cpu, chip) > 40
