"""The compile rung: a real context on the real emulator, against the model it was made from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import verify
from pipeline.contracts.emulate import Facts, SecondOpinion
from pipeline.contracts.target import HtpTarget
from pipeline.errors import VerificationError
from pipeline.model import StageInput
from pipeline.processes import forked
from pipeline.processes.memory import STEP_VARIABLE
from pipeline.qnn.compiling.compile import compile_shared
from pipeline.qnn.running import rounds
from pipeline.qnn.running.emulate import can_emulate
from tests.support.figures import db
from tests.support.fresh import fresh
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import X_ELITE, Component, given

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Emulation:
    """A bucket of 16, compiled and verified, of which samples are to be run on the emulator."""

    component: Component
    samples: StageInput
    quantized: StageInput
    compiled: StageInput
    verified: StageInput

    def run(self, compiled: StageInput | None = None, **how: Any) -> Facts:
        """What the step finds, of this context or another."""
        return Facts.from_json(self.step(compiled or self.compiled, **how).facts)

    def step(self, compiled: StageInput, **how: Any) -> StageInput:
        return self.component.emulate("16", self.samples, self.quantized, compiled, self.verified, **how)


@pytest.fixture(scope="module")
def emulation(component: Component, quantized: dict[str, StageInput]) -> Emulation:
    samples, made = component.samples(CALLS), quantized["16"]
    return Emulation(component, samples, made, component.context("16", made), component.verify("16", samples, made))


@pytest.fixture(scope="module")
def facts(emulation: Emulation, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    code = tmp_path_factory.mktemp("project") / "calibration" / "score.py"
    code.parent.mkdir()
    code.write_text(
        "def distance(samples, outputs, reference):\n"
        "    return max(float(abs(a['hidden'] - b['hidden']).max()) for a, b in zip(outputs, reference))\n"
    )
    return emulation.run(max_samples=3, score=(code, "distance"))


def test_the_context_is_near_its_model_and_the_original(facts: Facts) -> None:
    assert db(facts.rungs["compile"]["hidden"]) > 35
    assert 30 < db(facts.outputs["hidden"]) < 60


def test_as_many_are_run_as_are_asked_for(facts: Facts) -> None:
    assert (facts.samples, facts.of, facts.emulated) == (3, 5, "context")


def test_qnn_alone_gives_the_same(facts: Facts) -> None:
    assert facts.second_opinion == SecondOpinion(1)


@pytest.mark.parametrize(
    ("granted_mb", "free", "binary_mb", "fit"),
    [
        (4000, "20G", 40, True),
        (1500, "20G", 40, False),  # of the step's limit, or as other steps have the rest
        (4000, "20G", 200, False),
        (4000, "1500M", 40, False),
        (None, "20G", 40, False),  # nobody counts
    ],
)
def test_two_run_at_once_where_the_step_may_use_the_memory(
    granted_mb: int | None, free: str, binary_mb: int, fit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "peak_bytes", lambda: 300 << 20)
    monkeypatch.setenv("PIPELINE_MEMORY", free)
    monkeypatch.delenv(STEP_VARIABLE, raising=False)
    if granted_mb is not None:
        monkeypatch.setenv(STEP_VARIABLE, str(granted_mb << 20))
    assert rounds.fit_at_once(2, binary_mb << 20) is fit


def test_where_memory_is_short_one_runs_after_the_other(
    emulation: Emulation, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_at_once(count: int) -> None:
        raise AssertionError(count)

    monkeypatch.setenv(STEP_VARIABLE, str(512 << 20))  # whatever is free
    monkeypatch.setattr(rounds, "run_at_once", none_at_once)
    alone = emulation.run(max_samples=3)
    assert (alone.second_opinion, alone.rungs) == (facts.second_opinion, facts.rungs)


def as_a_worker(emulation: Emulation) -> tuple[StageInput, int]:
    """What the step leaves where it may fork, and how many forks it made; it may start no program."""
    forks = 0

    def heard(event: str, _: object) -> None:
        nonlocal forks
        forks += event == "os.fork"
        if event == "subprocess.Popen":
            raise AssertionError("an interpreter is started, not a fork made")

    forked.allow()
    assert forked.is_allowed()
    sys.addaudithook(heard)
    return emulation.step(emulation.compiled, max_samples=3), forks


@pytest.mark.skipif(sys.platform != "linux", reason="no fork, or one that libraries do not survive")
def test_both_runs_are_forks_of_a_worker_at_once(
    emulation: Emulation, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("PIPELINE_MEMORY", "30G")
    monkeypatch.setenv(STEP_VARIABLE, str(30 << 30))
    made, forks = fresh(as_a_worker, emulation)
    assert forks == 2
    found = Facts.from_json(made.facts)
    assert (found.second_opinion, found.rungs) == (facts.second_opinion, facts.rungs)


def test_a_score_function_of_three_arguments_gets_the_truth(facts: Facts) -> None:
    assert facts.score is not None
    assert facts.score.fp32 == 0
    assert facts.score.htp == pytest.approx(facts.outputs["hidden"].max_abs_error, rel=0.01)


def test_a_budget_of_one_sample_runs_the_worst_on_the_cpu_that_needs_the_bucket(emulation: Emulation) -> None:
    one = emulation.run(max_samples=1)
    on_cpu = verify.Facts.from_json(emulation.verified.facts)
    assert one.samples == 1
    assert on_cpu.outputs["hidden"].worst_sample == "samples:3", "it is of a smaller bucket"
    assert one.rungs["compile"]["hidden"].worst_sample == ["samples:4", "samples:5"][on_cpu.order[0]]


def test_all_are_run_that_fit_into_the_budget(emulation: Emulation) -> None:
    facts = emulation.run(max_samples=None, max_seconds=600)
    assert (facts.samples, facts.of) == (5, 5)
    assert facts.subjects == verify.Facts.from_json(emulation.verified.facts).subjects


def test_a_damaged_context_is_an_error_of_the_compile_rung(emulation: Emulation, tmp_path: Path) -> None:
    for path in emulation.compiled.folder.iterdir():
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".bin" else data)
    with pytest.raises(Exception, match=r"damaged|cut short|can't be read") as caught:
        emulation.run(given(tmp_path, emulation.compiled.facts))
    assert "net_16_ctx" in str(caught.value)


def share(models: dict[str, Path], out: Path) -> None:
    """Compile several buckets into one binary, which the emulator can't take; in a process of its own."""
    compile_shared(models, X_ELITE, out, binary="net.bin")


def test_a_context_that_the_emulator_can_not_take_is_compiled_plainly_and_says_so(
    emulation: Emulation, quantized: dict[str, StageInput], tmp_path: Path
) -> None:
    models = {f"net_{bucket}": quantized[bucket].folder / "model.onnx" for bucket in BUCKETS}
    folder = tmp_path / "shared"
    folder.mkdir()
    fresh(share, models, folder)
    assert not can_emulate(folder, "net_16_ctx.onnx")
    assert can_emulate(emulation.compiled.folder, "net_16_ctx.onnx")

    facts = emulation.run(given(folder, {**emulation.compiled.facts, "context_model": "net_16_ctx.onnx"}))
    assert facts.emulated == "plain compile"
    assert db(facts.rungs["compile"]["hidden"]) > 35


def test_a_context_for_another_target_is_refused(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.stage_runs.X_ELITE", HtpTarget(57, 75, 8))
    with pytest.raises(VerificationError, match="is for SoC 60"):
        emulation.run()
