"""What may not ship, judged on facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.gates import Miss, check
from pipeline.thresholds import Thresholds

NAME = "minilm/encoder/64"


def output(sqnr_db: float | None = 80.0, cosine: float | None = 1.0) -> dict[str, Any]:
    return {
        "sqnr_db": sqnr_db,
        "median_db": sqnr_db,
        "worst_db": sqnr_db,
        "worst_sample": "held_out.txt:3",
        "cosine": cosine,
        "max_abs_error": 0.1,
    }


def verified(total: float | None = 80.0, score: dict[str, Any] | None = None, **rungs: Any) -> dict[str, Any]:
    measured = {"padding": {"y": output()}, "rewrite": {"y": output()}, "quantization": {"y": output()}, **rungs}
    return {"samples": 16, "shorter": 0, "rungs": measured, "outputs": {"y": output(total)}, "score": score}


def missed(facts: dict[str, Any], thresholds: Thresholds = Thresholds(), stage: str = "verify") -> Miss:  # noqa: B008
    miss = check(stage, NAME, facts, thresholds)
    assert miss is not None
    return miss


def test_what_keeps_to_every_threshold_may_ship() -> None:
    assert check("verify", NAME, verified(), Thresholds()) is None
    assert check("calibrate", NAME, {}, Thresholds()) is None


def test_what_was_not_measured_has_missed_nothing() -> None:
    facts: dict[str, Any] = {"samples": 0, "shorter": 0, "rungs": {}, "outputs": {}, "score": None}
    assert check("verify", NAME, facts, Thresholds(cosine=0.9, score_change=0.1)) is None


def test_the_upper_rung_is_told_and_its_worst_output() -> None:
    padding = {"a": output(59.9), "b": output(30), "c": output(90)}
    miss = missed(verified(padding=padding, quantization={"y": output(12)}))
    assert miss.rung == "padding"
    assert miss.error.exit_code == 16
    assert "output 'b' is 30.0 dB against the original model, 60 dB are asked for" in miss.error.what
    assert miss.error.where == f"{NAME}, worst of 16 samples: held_out.txt:3 (30.0 dB)"
    assert miss.error.remedy.endswith("thresholds: {padding_db: 30, quantization_db: 12}")


def test_an_output_without_a_figure_is_a_miss_and_the_worst() -> None:
    miss = missed(verified(rewrite={"a": output(10), "b": output(None)}))
    assert miss.rung == "rewrite"
    assert "output 'b' is not a number against the rung above" in miss.error.what


def test_nobody_is_advised_to_accept_noise() -> None:
    assert "accept" not in missed(verified(padding={"y": output(9.9)})).error.remedy


def test_the_sum_of_small_errors() -> None:
    miss = missed(verified(19.96))
    assert miss.rung == "total"
    assert "output 'y' is 20.0 dB" not in miss.error.what, "19.96 must not be shown as what is asked for"


def test_a_cosine() -> None:
    facts = verified() | {"outputs": {"y": output(cosine=0.98)}}
    assert check("verify", NAME, facts, Thresholds()) is None
    assert "cosine 0.98, not 0.99" in missed(facts, Thresholds(cosine=0.99)).error.what


@pytest.mark.parametrize("changed", [0.85, 0.95])
def test_a_score_may_change_by_so_much_in_either_direction(changed: float) -> None:
    facts = verified(score={"name": "accuracy", "fp32": 0.9, "qdq": changed})
    assert check("verify", NAME, facts, Thresholds(score_change=0.06)) is None
    error = missed(facts, Thresholds(score_change=0.04)).error
    emulated = facts | {"of": 16}
    assert check("emulate", NAME, emulated, Thresholds(score_change=0.04)) is None, "of a few samples it says little"
    assert f"accuracy() is {changed:g} for the qdq model and 0.9 for the original" in error.what


def compiled(partitions: int, *nodes: tuple[str, bool]) -> dict[str, Any]:
    listed = [{"name": f"n{at}", "op": op, "reason": "", "edge": edge} for at, (op, edge) in enumerate(nodes)]
    facts = {"context_model": "encoder_64_ctx.onnx", "partitions": partitions, "cpu_nodes": listed}
    return {"form": "separate", "parts": {"64": {"files": {}, "facts": facts}}}


def test_conversions_at_the_edge_do_not_count() -> None:
    facts = compiled(1, ("QuantizeLinear", True), ("DequantizeLinear", True))
    assert check("context", NAME, facts, Thresholds()) is None


def test_other_nodes_on_the_cpu_do() -> None:
    error = missed(compiled(2, ("Erf", False), ("DequantizeLinear", False)), stage="context").error
    assert error.what == "2 nodes would run on the CPU, 0 may"
    assert "Erf 'n0': no reason given" in error.why
    assert "Gelu" in error.remedy
    assert "thresholds: {max_cpu_nodes: 2, max_partitions: 2}" in error.remedy


def test_partitions() -> None:
    facts = compiled(2, ("Erf", False))
    assert "split into 2 partitions, 1 may be" in missed(facts, Thresholds(max_cpu_nodes=1), "context").error.what
    assert check("context", NAME, facts, Thresholds(max_cpu_nodes=1, max_partitions=2)) is None
