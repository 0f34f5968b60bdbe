"""Each finding is still there: its smallest model, compiled and run. And what cures it still does."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, shape_inference

from pipeline.config.thresholds import Thresholds
from pipeline.graph.cpu import run, unoptimized_session
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.forecast.htp_errors import forecast
from pipeline.graph.rewrites import REWRITES, name_of
from tests.conformance.finding import FORECASTS, Finding
from tests.conformance.findings import FINDINGS
from tests.conformance.formats import in_format
from tests.conformance.judge import AGREES, COARSE
from tests.conformance.sweep import Outcome, run_cases
from tests.support.graphs import Arrays, outputs
from tests.support.on_htp import sqnr_db

WITH_CANARY = [finding for finding in FINDINGS if finding.canary is not None]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What becomes of every canary; two compiles for each number format."""
    found: dict[str, Outcome] = {}
    for number_format in sorted({finding.formats[0] for finding in WITH_CANARY}):
        cases = [
            (finding.id, case)
            for finding in WITH_CANARY
            if finding.canary is not None and (case := finding.canary()).number_format == number_format
        ]
        ran = run_cases([case for _, case in cases], tmp_path_factory.mktemp("canaries"))
        found |= dict(zip([name for name, _ in cases], ran, strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("finding", WITH_CANARY, ids=lambda finding: finding.id)
def test_the_chip_is_still_wrong(finding: Finding, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[finding.id]
    assert outcome.kind not in (AGREES, "cpu"), (
        f"QNN computes {outcome.operator} rightly now: run the sweep, and drop this finding with its {finding.done}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "finding",
    [finding for finding in WITH_CANARY if finding.done.startswith("rewrite")],
    ids=lambda finding: finding.id,
)
def test_the_rewrite_cures_it(finding: Finding, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[finding.id]
    assert finding.done.removeprefix("rewrite ") in outcome.rewrites
    assert outcome.after in (AGREES, COARSE), outcome


@pytest.mark.parametrize(
    "finding",
    [finding for finding in WITH_CANARY if finding.done == "missed on the CPU"],
    ids=lambda finding: finding.id,
)
def test_the_ladder_refuses_it_before_it_compiles(finding: Finding) -> None:
    assert finding.canary is not None
    case = finding.canary()
    quantized = in_format(ModelProto.FromString(case.model.SerializeToString()), case.feeds, case.number_format, {})
    names = [value.name for value in quantized.graph.output]
    truth, rounded = outputs(case.model, case.feeds), outputs(quantized, case.feeds)
    assert max(sqnr_db([truth], [rounded], name) for name in names) < Thresholds().quantization_db


@pytest.mark.parametrize(
    "finding",
    [finding for finding in WITH_CANARY if finding.done.startswith("forecast")],
    ids=lambda finding: finding.id,
)
def test_the_forecast_tells_of_it(finding: Finding) -> None:
    assert finding.canary is not None
    case = finding.canary()
    model = ModelProto.FromString(case.model.SerializeToString())
    floats, integers = _ranges(model, case.feeds)

    quantized = in_format(model, case.feeds, case.number_format, {})

    told = forecast(GraphIndex(quantized, Path()), floats, integers)
    assert finding.done.removeprefix("forecast ") in [each.rule for each in told]


def _ranges(model: ModelProto, feeds: Arrays) -> tuple[dict[str, Range], dict[str, Range]]:
    """The ranges of all float values of a model, and of all integers."""
    whole = shape_inference.infer_shapes(model)
    known = {value.name: value for value in (*whole.graph.value_info, *whole.graph.output)}
    del whole.graph.output[:]
    whole.graph.output.extend(known[name] for node in whole.graph.node for name in node.output if name in known)
    found = {**feeds, **run(unoptimized_session(whole, Path()), feeds)}
    of_kind: dict[str, dict[str, Range]] = {"f": {}, "i": {}}
    for name, array in found.items():
        if array.size and array.dtype.kind in of_kind:
            of_kind[array.dtype.kind][name] = Range.of(array)
    return of_kind["f"], of_kind["i"]


def test_what_is_done_about_a_finding_exists() -> None:
    known = {
        *(f"rewrite {name_of(rewrite)}" for rewrite in REWRITES),
        *(f"forecast {rule}" for rule in FORECASTS),
        "refused",
        "option wide_products",
        "encoded alike",
        "clamped apart",
        "missed on the CPU",
        "judged as near ties",
        "judged in dB",
        "open",
    }
    assert [finding.id for finding in FINDINGS if finding.done not in known] == []
    assert len({finding.id for finding in FINDINGS}) == len(FINDINGS)
