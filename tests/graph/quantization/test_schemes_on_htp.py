"""Every scheme through the real compiler and emulator: one partition, and the numbers of the QDQ model on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.graph.cpu import load_session, run
from pipeline.model import StageInput
from pipeline.qnn.child import compile_apart, run_apart
from tests.support.figures import array_db
from tests.support.graphs import attention, convolutions, sentence
from tests.support.stage_runs import Component

GALAXY = HtpTarget(57, 75, 8)
OLD = HtpTarget(30, 68, 4)

W8A16 = Scheme("uint16", "uint8", per_channel=True, wide_products=True)
W8A8 = Scheme("uint8", "uint8", per_channel=True)
W8A16_BLOCKS = replace(W8A16, weights="int8", block=32)
W4A16, W4A8 = (replace(scheme, weights="int4") for scheme in (W8A16, W8A8))
CASES: dict[str, tuple[str, Scheme]] = {
    "w4a16": ("transformer", W4A16),
    "w4a16 of convolutions": ("decoder", W4A16),
    "w8a16 in blocks": ("transformer", W8A16_BLOCKS),
    "w4a16 in blocks": ("transformer", replace(W8A16_BLOCKS, weights="int4", block=16)),
    "w4a8": ("transformer", W4A8),
    "w4a8 of convolutions": ("decoder", W4A8),
    "w4a16, one scale": ("transformer", replace(W4A16, per_channel=False)),
    "some operators wide": (
        "transformer",
        W8A8.with_rules([Rule(ops=("Softmax", "LayerNormalization"), activations="uint16")]),
    ),
    "some convolutions wide": ("decoder", W8A8.with_rules([Rule(ops=("Conv",), activations="uint16")])),
    "some operators narrow": ("transformer", W8A16.with_rules([Rule(ops=("MatMul",), activations="uint8")])),
    "some convolutions narrow": ("decoder", W8A16.with_rules([Rule(ops=("PRelu", "Conv"), activations="uint8")])),
    "one value narrow": ("transformer", W8A16.with_rules([Rule(tensors=("weights", "value"), activations="uint8")])),
    "a small table": ("transformer", W8A16.with_rules([Rule(tensors=("words", "w1"), weights="int4")])),
    "one node in float": ("transformer", W8A8.with_rules([Rule(ops=("Softmax",), precision="fp16")])),
    "one convolution's end in float": (
        "decoder",
        W8A8.with_rules([Rule(ops=("Sigmoid", "Mul", "Sub"), precision="fp16")]),
    ),
    "many nodes in float": ("transformer", W8A16.with_rules([Rule(ops=("MatMul", "Softmax"), precision="fp16")])),
    "convolutions in float": ("decoder", W8A16.with_rules([Rule(ops=("Conv", "PRelu"), precision="fp16")])),
}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Component, StageInput]:
    calls = [sentence(length, seed=length) for length in (3, 5, 8, 11, 14, 16)]
    component = Component(tmp_path_factory.mktemp("attention"), attention(), {"16": {"sequence": 16}})
    return component, component.calibrate(calls)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Component, StageInput]:
    component = Component(tmp_path_factory.mktemp("convolutions"), convolutions(), {"32": {"frames": 32}})
    return component, component.calibrate([{"x": frames(seed)} for seed in range(4)])


def frames(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(1, 8, 32)).astype(np.float32)


def feeds_of(model: str) -> list[dict[str, NDArray[Any]]]:
    """Many, as chip and CPU differ by 3 dB either way on a single one in 8 bits."""
    return [sentence(16, seed=seed) if model == "transformer" else {"x": frames(seed)} for seed in range(90, 106)]


def on_cpu(model: StageInput, feeds: list[dict[str, NDArray[Any]]]) -> NDArray[Any]:
    session = load_session(model.folder / "model.onnx")
    return np.concatenate([next(iter(run(session, feed).values())) for feed in feeds])


def quantized(component: Component, ranges: StageInput, scheme: Scheme) -> StageInput:
    (bucket,) = component.buckets
    return component.quantize(
        bucket,
        ranges,
        activations=scheme.activations,
        weights=scheme.weights,
        per_channel=scheme.per_channel,
        rules=scheme.overrides,
        wide_products=scheme.wide_products,
        block=scheme.block,
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_scheme_is_one_partition_and_computes_what_the_cpu_does(
    case: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, scheme = CASES[case]
    component, ranges = request.getfixturevalue(model)
    (rewritten,) = component.rewrite.values()
    made = quantized(component, ranges, scheme)
    feeds = feeds_of(model)
    truth, cpu = on_cpu(rewritten, feeds), on_cpu(made, feeds)

    context, chip = on_chip(made, feeds, tmp_path)

    assert context.partitions == 1
    assert {node.op for node in context.cpu_nodes} <= {"QuantizeLinear", "DequantizeLinear"}
    assert array_db(truth, chip) > array_db(truth, cpu) - 1.5
    if scheme.activations == "uint16" and not scheme.overrides:
        assert array_db(cpu, chip) > 40


def on_chip(made: StageInput, feeds: list[dict[str, NDArray[Any]]], folder: Path) -> tuple[CompiledModel, NDArray[Any]]:
    """The context, and its outputs on the emulator, one after another."""
    out, work = folder / "out", folder / "work"
    out.mkdir(parents=True)
    work.mkdir()
    context = compile_apart(made.folder / "model.onnx", "net", GALAXY, out)
    outputs = run_apart(out, context.context_model, GALAXY, feeds, work)
    return context, np.concatenate([output for (output,) in outputs])


def test_int4_weights_make_the_binary_smaller(tmp_path: Path) -> None:
    component = Component(tmp_path / "model", attention(width=256), {"16": {"sequence": 16}})
    ranges = component.calibrate([sentence(16, seed=seed) for seed in range(3)])
    sizes = {}
    for weights in ("int8", "int4"):
        out = tmp_path / weights
        out.mkdir()
        made = quantized(component, ranges, replace(W8A16, weights=weights))
        compile_apart(made.folder / "model.onnx", "net", GALAXY, out)
        sizes[weights] = (out / "net_ctx_qnn.bin").stat().st_size
    # 3 * 256 * 256 + 2 * 256 * 512 weights.
    assert sizes["int8"] - sizes["int4"] > 0.9 * (3 * 256 * 256 + 2 * 256 * 512) / 2


def test_wide_products_are_wide_on_the_chip(transformer: tuple[Component, StageInput], tmp_path: Path) -> None:
    component, ranges = transformer
    feeds = feeds_of("transformer")
    distance = {}
    for wide in (True, False):
        made = quantized(component, ranges, replace(W8A16, wide_products=wide))
        _, chip = on_chip(made, feeds, tmp_path / str(wide))
        distance[wide] = array_db(on_cpu(made, feeds), chip)
    assert distance[True] > distance[False] + 5


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uint8", "int4"])
@pytest.mark.parametrize("activations", ["uint16", "uint8"])
@pytest.mark.parametrize("model", ["transformer", "decoder"])
def test_the_oldest_architecture_takes_every_scheme_of_integers(
    model: str, activations: str, weights: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    component, ranges = request.getfixturevalue(model)
    scheme = Scheme(activations, weights, per_channel=True)

    context = compile_apart(quantized(component, ranges, scheme).folder / "model.onnx", "net", OLD, tmp_path)

    assert context.partitions == 1
