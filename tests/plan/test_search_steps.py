from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import load
from pipeline.contracts import correlate, precision
from pipeline.plan.planner import plan
from tests.support.config_mistakes import GOOD, write

OTHERS = "verification: {samples: {reader: text, file: lines.txt, tokenizer: tokenizer.json}}\n"


@pytest.mark.parametrize(("more", "shipped", "tried"), [("", "kept", "calibrated"), (OTHERS, "all", "not searched")])
def test_a_search_is_judged_on_samples_that_its_rounding_does_not_see(
    tmp_path: Path, more: str, shipped: str, tried: str
) -> None:
    text = f"{GOOD}quantization: {{precision: auto}}\n{more}"
    steps = {step.id: step for step in plan(load(write(tmp_path, text)))}
    search = steps["precision:mine/encoder"]
    assert isinstance(search.params, precision.Params)
    assert search.params.part == "searched"
    (seen,) = (given.step for given in search.inputs if given.role == "correlate")
    (used,) = (given.step for given in steps["quantize:mine/encoder"].inputs if given.role == "correlate")
    parts = [steps[step].params for step in (used, seen)]
    assert [params.part for params in parts if isinstance(params, correlate.Params)] == [shipped, tried]
