"""The short cases, each built and judged whole. `python -m tests.real_models` runs all of them."""

from __future__ import annotations

import pytest

from tests.real_models.cases import CASES, Case
from tests.real_models.packages import UnreachableError
from tests.real_models.run_case import run_case

_NOT_YET = {
    "wake-melspectrogram": "squares in front of a Log: too large for float16, too small for integers",
    "wake-embedding": "23 dB pass and are not enough for the wake words",
    "wake-hey-mycroft": "27 dB pass, 3 of 840 decisions differ",
}


def _cases() -> list[object]:
    short = [case for case in CASES if case.short]
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.xfail(strict=True, reason=_NOT_YET[case.name])] if case.name in _NOT_YET else [],
        )
        for case in short
    ]


@pytest.mark.slow
@pytest.mark.real_models
@pytest.mark.parametrize("case", _cases())
def test_a_published_model_is_right_at_the_first_build(case: Case) -> None:
    try:
        outcome = run_case(case)
    except UnreachableError as error:
        pytest.skip(f"the package registry can't be reached: {error}")
    assert outcome.result == "right", f"{outcome.result}: {outcome.task}\n{outcome.said}"
