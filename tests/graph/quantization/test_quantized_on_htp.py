"""What the quantizer makes is what QNN takes: the real compiler, and the real emulator of the chip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.cpu import load_session, run
from pipeline.model import StageInput
from pipeline.qnn.compile import compile_context
from pipeline.qnn.emulate import run_context
from pipeline.qnn.readback import Context
from pipeline.qnn.target import HtpTarget
from tests.fresh import fresh
from tests.graphs import attention, graph, sentence
from tests.stage_runs import Component

X_ELITE = HtpTarget(60, 73, 8)
SCHEMES = [("uint16", "uint8"), ("uint16", "int8"), ("uint8", "uint8"), ("uint8", "int8")]
CALLS = [sentence(length, seed=length) for length in (3, 5, 8, 11, 14)]


def convolutions() -> ModelProto:
    """Operators that take their constants in one type only, or along another axis than one would think."""
    numbers = np.random.default_rng(0)

    def weight(*shape: int) -> NDArray[np.float32]:
        return np.asarray(numbers.normal(size=shape) * 0.4, np.float32)

    return graph(
        """g (float[1,8,frames] x) => (float[1,16,out] y) {
            bent = PRelu (x, slope)
            deep = Conv <group = 8, pads = [1, 1]> (bent, w0, b0)
            wide = Conv (deep, w1, b1)
            normed = BatchNormalization (wide, gamma, beta, mean, variance)
            rolled = Tanh (normed)
            y = ConvTranspose <strides = [2], group = 2> (rolled, w2, b2)
        }""",
        {
            "slope": weight(8, 1), "w0": weight(8, 1, 3), "b0": weight(8), "w1": weight(16, 8, 1), "b1": weight(16),
            # With these, QNN's own arithmetic on a BatchNormalization loses the last channel.
            "gamma": np.ones(16, np.float32), "beta": np.linspace(-1, 1, 16, dtype=np.float32),
            "mean": np.zeros(16, np.float32), "variance": np.ones(16, np.float32),
            "w2": weight(16, 8, 2), "b2": weight(16),
        },
    )  # fmt: skip


def compiled(quantized: StageInput, out: Path) -> Context:
    out.mkdir()
    return fresh(compile_context, quantized.folder / "model.onnx", "net", X_ELITE, out)


def sqnr_db(truth: NDArray[Any], tested: NDArray[Any]) -> float:
    return float(10 * np.log10((truth**2).sum() / ((tested - truth) ** 2).sum()))


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

    assert sqnr_db(cpu, chip) > 40
