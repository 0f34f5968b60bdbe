"""What reports say of choices that other inputs will have made otherwise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.thresholds import Thresholds
from pipeline.contracts import emulate, verify
from pipeline.contracts.measures import Agreement, Figures, Subject
from pipeline.report import remarks, report
from pipeline.report.tables import as_text

AIM = Thresholds(flips=0.001, probability_error=0)
PLACE = ("net/reader", "64", "sm8650")


def told(
    monkeypatch: pytest.MonkeyPatch, flips: float, *, wished: Thresholds | None, error: float = 0.4
) -> tuple[list[str], list[tuple[str, ...]]]:
    """The outputs that are named, and the rows of choices to flip."""
    figures = Figures(40.0, 40.0, 40.0, "s", 1.0, error, agreement=Agreement(1.0, 77, 1.0, "s", flips))
    subjects = {"y": Subject("y", bounded=True, reads="likeliest", axis=1, tie=0.05)}
    cpu = replace(verify.UNMEASURED, outputs={"y": figures}, subjects=subjects)
    component = SimpleNamespace(wished=wished, budget_minutes=None if wished is None else 30)
    step: Any = SimpleNamespace(config=SimpleNamespace(components={"reader": component}), component="reader")
    found = [(step, None, PLACE, cpu, emulate.UNMEASURED, Thresholds())]
    monkeypatch.setattr(report, "measured", lambda *_: found)
    rows = [tuple(row) for row in report.judged([], [], {}) if "choices to flip" in row]
    return remarks.flipping([], [], {}), rows


def test_the_aim_is_shown_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names, rows = told(monkeypatch, 0.004, wished=AIM)
    assert names == ["net/reader/64 'y' (0.4 %)"]
    assert rows == [("y", *PLACE, "choices to flip", "0.4 %", "0.1 %", "-")]


def test_a_scheme_that_is_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    names, rows = told(monkeypatch, 0.004, wished=None)
    assert names == ["net/reader/64 'y' (0.4 %, as 'quantization' is written)"]
    assert rows[0][-2] == "-"


def test_what_is_accepted_by_its_error_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, 0.004, wished=None, error=0.01)[0] == []


def test_a_share_that_is_next_to_nothing_has_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, 1.2e-13, wished=AIM)[1][0][-3] == "< 0.01 %"
    assert told(monkeypatch, 0.0, wished=AIM)[1][0][-3] == "0 %"


def test_what_was_asked_is_no_column_where_nothing_was(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Figures(40.0, 40.0, 40.0, "s", 1.0, 0.4, agreement=Agreement(1.0, 77, 1.0, "s", 0.0))
    cpu = replace(verify.UNMEASURED, outputs={"y": figures}, subjects={"y": Subject("y", reads="largest", axis=1)})
    step: Any = SimpleNamespace(
        config=SimpleNamespace(components={"reader": SimpleNamespace(wished=None)}), component="reader"
    )
    monkeypatch.setattr(report, "measured", lambda *_: [(step, None, PLACE, cpu, emulate.UNMEASURED, Thresholds())])
    heading, *rows = as_text(report.judged([], [], {})).splitlines()
    assert "choices alike" in rows[1]
    assert "is  worst sample" in heading
    assert "asked" not in heading


@pytest.mark.parametrize(
    ("reads", "of", "said"),
    [
        ("level", 1, "100 % over 1 value"),
        ("level", 13, "100 % over 13 values"),
        ("largest", 1, "100 % of 1 clear one"),
        ("largest", 77, "100 % of 77 clear ones"),
    ],
)
def test_what_is_counted_is_named(monkeypatch: pytest.MonkeyPatch, reads: Any, of: int, said: str) -> None:
    figures = Figures(40.0, 40.0, 40.0, "s", 1.0, 0.4, agreement=Agreement(1.0, of, 1.0, "s"))
    cpu = replace(verify.UNMEASURED, outputs={"y": figures}, subjects={"y": Subject("y", reads=reads, axis=1)})
    step: Any = SimpleNamespace(
        config=SimpleNamespace(components={"reader": SimpleNamespace(wished=None)}), component="reader"
    )
    monkeypatch.setattr(report, "measured", lambda *_: [(step, None, PLACE, cpu, emulate.UNMEASURED, Thresholds())])
    assert said in [row[-3] for row in report.judged([], [], {})[1:]]
