"""Contracts as JSON and back: what is misspelt or of another type is refused, and told where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pipeline.contracts import emulate, verify
from pipeline.contracts.codec import Contract, ContractError, left_out
from pipeline.contracts.measures import Figures, Score
from pipeline.contracts.target import HtpTarget


@dataclass(frozen=True)
class Inner(Contract):
    size: int
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer(Contract):
    name: str
    share: float | None
    inner: Mapping[str, Inner]
    spans: tuple[tuple[int, int], ...]
    dims: tuple[int | str | None, ...] = ()
    extra: str | None = left_out()


OUTER = Outer("x", 0.5, {"one": Inner(1, "b")}, ((1, 2), (3, 4)), (1, "n", None))
RAW: dict[str, Any] = {
    "name": "x",
    "share": 0.5,
    "inner": {"one": {"size": 1, "kind": "b"}},
    "spans": [[1, 2], [3, 4]],
    "dims": [1, "n", None],
}


def test_what_is_written_is_read_again() -> None:
    assert OUTER.to_json() == RAW
    assert Outer.from_json(json.loads(json.dumps(OUTER.to_json()))) == OUTER
    assert list(OUTER.to_json()) == ["name", "share", "inner", "spans", "dims"], "in the order of the fields"


def test_what_is_left_out_is_written_once_it_is_there() -> None:
    assert "share" in Outer("x", None, {}, ()).to_json(), "null says something where a figure is due"
    assert Outer("x", None, {}, (), extra="more").to_json()["extra"] == "more"
    assert Outer.from_json(RAW | {"extra": "more"}).extra == "more"


def test_a_default_may_be_missing() -> None:
    assert Inner.from_json({"size": 1}) == Inner(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw | {"shar": 1}, "Outer: unknown key 'shar'; there are name, share, inner"),
        (lambda raw: {key: raw[key] for key in raw if key != "share"}, "Outer: 'share' is missing"),
        (lambda raw: raw | {"name": 1}, "Outer.name: str is needed, not 1"),
        (lambda raw: raw | {"share": True}, "Outer.share: float is needed, not True"),
        (lambda raw: raw | {"inner": []}, "Outer.inner: "),
        (lambda raw: raw | {"inner": {"one": {"size": 1.0}}}, "Outer.inner.one.size: int is needed, not 1.0"),
        (lambda raw: raw | {"inner": {"one": {"size": 1, "kind": "c"}}}, "Outer.inner.one.kind: "),
        (lambda raw: raw | {"inner": {"one": {"sise": 1}}}, "Outer.inner.one: unknown key 'sise'"),
        (lambda raw: raw | {"spans": [[1, 2, 3]]}, "Outer.spans[0]: a list of 2 is needed"),
        (lambda raw: raw | {"spans": "12"}, "Outer.spans: a list is needed"),
        (lambda raw: raw | {"dims": [1.5]}, "Outer.dims[0]: "),
        (lambda raw: list(raw), "Outer: a mapping is needed"),
    ],
)
def test_what_is_not_as_its_type_says_is_refused(change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(message)):
        Outer.from_json(change(RAW))


def test_a_misspelt_fact_is_refused() -> None:
    facts = verify.Facts(
        3, 0, {"padding": {"y": Figures(60.0, 60.0, 60.0, "a:1", None, 0.1)}}, {}, Score("f", 1, qdq=1)
    )
    raw: Any = json.loads(json.dumps(facts.to_json()))
    assert verify.Facts.from_json(raw) == facts
    raw["rungs"]["padding"]["y"]["sqnr"] = raw["rungs"]["padding"]["y"].pop("sqnr_db")
    with pytest.raises(ContractError, match=r"Facts\.rungs\.padding\.y: unknown key 'sqnr'"):
        verify.Facts.from_json(raw)


def test_params_of_a_base_are_fields_too() -> None:
    raw: Any = {
        "component": "net", "bucket": "8", "axes": {"n": 8}, "buckets": {"8": {"n": 8}}, "padding": {}, "part": "all",
        "target": {"soc_model": 60, "htp_arch": 73, "vtcm_mb": None}, "max_samples": 2, "max_seconds": 1,
        "last": "rewrite", "score": None, "truth": "padded",
    }  # fmt: skip
    params = emulate.Params.from_json(raw)
    assert params.target == HtpTarget(60, 73)
    assert params.to_json() == raw
    with pytest.raises(ContractError, match="part"):
        emulate.Params.from_json(raw | {"part": "some"})
