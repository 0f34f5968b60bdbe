"""The short cases, each built and judged whole. `python -m tests.real_models` runs all of them."""

from __future__ import annotations

import pytest

from tests.real_models.cases import CASES, Case
from tests.real_models.packages import UnreachableError
from tests.real_models.run_case import run_case


@pytest.mark.slow
@pytest.mark.real_models
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.short])
def test_a_published_model_is_right_at_the_first_build(case: Case) -> None:
    try:
        outcome = run_case(case)
    except UnreachableError as error:
        pytest.skip(f"the package registry can't be reached: {error}")
    assert outcome.result == "right", f"{outcome.result}: {outcome.task}\n{outcome.said}"
