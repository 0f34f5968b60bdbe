"""What is seen of steps that a build brings up to date on the side: each for as long as it runs, and no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.build import climb, explain_miss, gated_steps
from pipeline.build.bring import ChangedError
from pipeline.build.climb import Climber
from pipeline.build.explain_miss import explain
from pipeline.build.gated_steps import GatedSteps
from pipeline.build.gates import Miss
from pipeline.errors import VerificationError

CONFIG = SimpleNamespace(name="net")
STEP: Any = SimpleNamespace(id="verify:net/net/16", stage="verify", name="net/net/16", config=CONFIG, component="net")
SEARCH: Any = SimpleNamespace(id="blame:net/net/16", stage="blame", name="net/net/16")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events of the steps that are brought up to date; each fails as soon as its worker has started."""
    events: list[str] = []

    def brought(step: Any, _workspace: Any, _crew: Any, started: Callable[[], None]) -> None:
        started()
        events.append(f"{step.id} runs")
        raise VerificationError("it is wrong")

    for module in (climb, explain_miss, gated_steps):
        monkeypatch.setattr(module, "bring_up_to_date", brought)
    return events


def shown(events: list[str]) -> Any:
    @contextmanager
    def shown_while(step: Any) -> Iterator[Callable[[], None]]:
        try:
            yield lambda: events.append(f"{step.id} starts")
        finally:
            events.append(f"{step.id} ends")

    return shown_while


def test_a_step_of_a_climb_is_seen_while_it_runs(seen: list[str]) -> None:
    climber = Climber({}, SimpleNamespace(), SimpleNamespace(), shown(seen))  # type: ignore[arg-type]
    assert climber._made(STEP) is not None
    assert seen == [f"{STEP.id} starts", f"{STEP.id} runs", f"{STEP.id} ends"]


def test_a_search_for_what_went_wrong_is_seen_while_it_runs(seen: list[str]) -> None:
    miss, steps = Miss(VerificationError("12 dB"), "quantization"), {SEARCH.id: SEARCH}
    error = explain(miss, STEP, steps, SimpleNamespace(), SimpleNamespace(), shown(seen))  # type: ignore[arg-type]
    assert "blame:net/net/16 failed" in str(error)
    assert seen == [f"{SEARCH.id} starts", f"{SEARCH.id} runs", f"{SEARCH.id} ends"]


def test_a_step_of_a_build_is_seen_while_it_runs(seen: list[str]) -> None:
    gated = GatedSteps({}, SimpleNamespace(), SimpleNamespace(), shown(seen))  # type: ignore[arg-type]
    gated.healed = lambda act, steps, bring=None: act()  # type: ignore[method-assign]
    step: Any = SimpleNamespace(**vars(STEP), after=())
    with pytest.raises(VerificationError):
        gated.bring_ungated(step)
    assert seen == [f"{STEP.id} starts", f"{STEP.id} runs", f"{STEP.id} ends"]


def test_a_step_that_other_builds_change_again_and_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the component climbed in this build, or another build replaced what the step stands on."""
    for climbed, replaced in ((True, ""), (False, "quantize")):
        gated = GatedSteps({}, SimpleNamespace(), SimpleNamespace(), shown([]))  # type: ignore[arg-type]
        tries: list[str] = []

        def fails(step: Any, tries: list[str] = tries, replaced: str = replaced) -> None:
            tries.append(step.id)
            error = ChangedError("it is another one")
            error.replaced = replaced
            raise error

        monkeypatch.setattr(gated, "bring_ungated", fails)
        monkeypatch.setattr(gated._climber, "changed", lambda _step, climbed=climbed: climbed)
        monkeypatch.setattr(gated_steps, "needed", lambda _step, _steps: ())
        with pytest.raises(ChangedError):
            gated.bring(STEP)
        assert len(tries) == 4
