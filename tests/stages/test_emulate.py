"""The compile rung: a real context on the real emulator, against the model it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import VerificationError
from pipeline.model import StageInput
from pipeline.qnn.compile import compile_shared
from pipeline.qnn.emulate import can_emulate
from pipeline.qnn.target import HtpTarget
from tests.fresh import fresh
from tests.graphs import attention, sentence
from tests.stage_runs import X_ELITE, Component, given

pytestmark = pytest.mark.slow

BUCKETS = {"8": {"sequence": 8}, "16": {"sequence": 16}}
CALLS = [sentence(length, seed=length) for length in (3, 5, 8, 11, 14)]


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> Component:
    return Component(tmp_path_factory.mktemp("attention"), attention(), BUCKETS)


@pytest.fixture(scope="module")
def samples(component: Component) -> StageInput:
    return component.samples(CALLS)


@pytest.fixture(scope="module")
def quantized(component: Component) -> dict[str, StageInput]:
    ranges = component.calibrate(CALLS)
    return {bucket: component.quantize(bucket, ranges) for bucket in BUCKETS}


@pytest.fixture(scope="module")
def compiled(component: Component, quantized: dict[str, StageInput]) -> StageInput:
    return component.context("16", quantized["16"])


@pytest.fixture(scope="module")
def verified(component: Component, samples: StageInput, quantized: dict[str, StageInput]) -> StageInput:
    return component.verify("16", samples, quantized["16"])


def figure(facts: Any, *path: str) -> float:
    for key in path:
        facts = facts[key]
    assert isinstance(facts, float)
    return facts


@pytest.fixture(scope="module")
def facts(
    component: Component,
    samples: StageInput,
    quantized: dict[str, StageInput],
    compiled: StageInput,
    verified: StageInput,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    code = tmp_path_factory.mktemp("project") / "calibration" / "score.py"
    code.parent.mkdir()
    code.write_text(
        "def distance(samples, outputs, reference):\n"
        "    return max(float(abs(a['hidden'] - b['hidden']).max()) for a, b in zip(outputs, reference))\n"
    )
    inputs = (samples, quantized["16"], compiled, verified)
    return component.emulate("16", *inputs, max_samples=3, score=(code, "distance")).facts


def test_the_context_is_near_its_model_and_the_original(facts: Any) -> None:
    assert figure(facts, "rungs", "compile", "hidden", "sqnr_db") > 35
    assert 30 < figure(facts, "outputs", "hidden", "sqnr_db") < 60


def test_as_many_are_run_as_are_asked_for(facts: Any) -> None:
    assert (facts["samples"], facts["of"], facts["emulated"]) == (3, 5, "context")


def test_a_score_function_of_three_arguments_gets_the_truth(facts: Any) -> None:
    assert facts["score"]["fp32"] == 0
    assert facts["score"]["htp"] == pytest.approx(figure(facts, "outputs", "hidden", "max_abs_error"), rel=0.01)


def test_a_budget_of_one_sample_runs_the_worst_on_the_cpu(
    component: Component,
    samples: StageInput,
    quantized: dict[str, StageInput],
    compiled: StageInput,
    verified: StageInput,
) -> None:
    one: Any = component.emulate("16", samples, quantized["16"], compiled, verified, max_samples=1).facts
    on_cpu: Any = verified.facts["outputs"]
    assert one["samples"] == 1
    assert one["rungs"]["compile"]["hidden"]["worst_sample"] == on_cpu["hidden"]["worst_sample"]


def test_a_small_budget_still_runs_two(
    component: Component,
    samples: StageInput,
    quantized: dict[str, StageInput],
    compiled: StageInput,
    verified: StageInput,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.stages.emulate.MACS_PER_SECOND", 1.0)
    facts = component.emulate("16", samples, quantized["16"], compiled, verified, max_samples=5, max_seconds=1).facts
    assert (facts["samples"], facts["of"]) == (2, 5)


def test_a_damaged_context_is_an_error_of_the_compile_rung(
    component: Component,
    samples: StageInput,
    quantized: dict[str, StageInput],
    compiled: StageInput,
    verified: StageInput,
    tmp_path: Path,
) -> None:
    for path in compiled.folder.iterdir():
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".bin" else data)
    with pytest.raises(Exception, match=r"damaged|cut short|can't be read") as caught:
        component.emulate("16", samples, quantized["16"], given(tmp_path, compiled.facts), verified)
    assert "net_16_ctx" in str(caught.value)


def share(models: dict[str, Path], out: Path) -> None:
    """Compile several buckets into one binary, which the emulator can't take; in a process of its own."""
    compile_shared(models, X_ELITE, out, binary="net.bin")


def test_a_context_that_the_emulator_can_not_take_is_compiled_plainly_and_says_so(
    component: Component,
    samples: StageInput,
    quantized: dict[str, StageInput],
    compiled: StageInput,
    verified: StageInput,
    tmp_path: Path,
) -> None:
    models = {f"net_{bucket}": quantized[bucket].folder / "model.onnx" for bucket in BUCKETS}
    folder = tmp_path / "shared"
    folder.mkdir()
    fresh(share, models, folder)
    assert not can_emulate(folder, "net_16_ctx.onnx")
    assert can_emulate(compiled.folder, "net_16_ctx.onnx")

    shared = given(folder, {**compiled.facts, "context_model": "net_16_ctx.onnx"})
    facts = component.emulate("16", samples, quantized["16"], shared, verified).facts
    assert facts["emulated"] == "plain compile"
    assert figure(facts, "rungs", "compile", "hidden", "sqnr_db") > 35


def test_a_context_for_another_target_is_refused(
    component: Component,
    samples: StageInput,
    quantized: dict[str, StageInput],
    compiled: StageInput,
    verified: StageInput,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.stage_runs.X_ELITE", HtpTarget(57, 75, 8))
    with pytest.raises(VerificationError, match="is for SoC 60"):
        component.emulate("16", samples, quantized["16"], compiled, verified)
