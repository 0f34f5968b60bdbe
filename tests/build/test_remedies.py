"""Which precision is tried next: cheapest first, never twice, and only what the targets can compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from pipeline.build.findings import may_fail
from pipeline.build.remedies import (
    FLOAT,
    NO_NUMBER,
    Able,
    Tried,
    is_float,
    is_last,
    label,
    may_be_cured,
    may_go_on,
    next_scheme,
    room_for,
    unmoved,
    worth_most,
)
from pipeline.contracts import forecast
from pipeline.contracts.blame import EncodingFacts, RowFacts
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.measures import Reason
from pipeline.contracts.scheme import ROOM, Rule, Scheme
from pipeline.errors import CompileError, WorkerError

W8A16 = Scheme("uint16", "uint8", per_channel=True)
ALL = Able(float16=True, wide_weights=True, blocks=True)
NOTHING = Able(float16=False, wide_weights=False, blocks=False)
QUANTIZATION, COMPILE = 1, 4


def climbed(first: Tried, able: Able = ALL) -> Iterator[Scheme]:
    """Every scheme that is tried where each misses as the first did."""
    tried = [first]
    while (scheme := next_scheme(tried, able)) is not None:
        yield scheme
        tried.append(replace(first, scheme=scheme))


def test_the_cheapest_comes_first_and_all_in_float_last() -> None:
    first = Tried(W8A16, "quantization", (QUANTIZATION, 13.0), lambda: ("a", "b"))
    labels = [label(scheme) for scheme in climbed(first)]
    assert labels[:3] == ["w8a16 in blocks of 32", "w16a16", "w8a16, 2 nodes fp16"]
    assert "fp16" in labels
    assert len(labels) == len(set(labels)), "nothing is tried twice, and there is an end"


def test_what_costs_more_and_is_no_better_is_not_gone_on_from() -> None:
    first = Tried(W8A16, "quantization", (QUANTIZATION, 14.6), lambda: ("a", "b"), room=lambda: 2.0)
    blocks = replace(first, scheme=replace(W8A16, weights="int8", block=32), reached=(QUANTIZATION, 14.2))
    for db, named in ((14.9, "w8a16, room 2"), (17.0, "w16a16, room 2"), (float("inf"), "w16a16, room 2")):
        wide = replace(first, scheme=replace(W8A16, weights="int16"), reached=(QUANTIZATION, db))
        scheme = next_scheme([first, blocks, wide], ALL)
        assert scheme is not None
        assert label(scheme) == named


def row(observed: tuple[float, float], reason: str = "saturated", low: float = -1.0, dtype: str = "uint16") -> RowFacts:
    """A value of which calibration saw `low` to 3."""
    local, encoding = Reason(reason, ""), EncodingFacts(dtype, 0.1, 0, low, 3.0)
    return RowFacts("v", "'n' (Mul)", "Mul", 9.0, 9.0, None, encoding, observed, (low, 3.0), local, local)


@pytest.mark.parametrize(
    ("rows", "has", "room"),
    [
        ([], ROOM, None),
        ([row((-1, 3.5))], ROOM, None),
        ([row((-1, 4.5))], ROOM, 1.0),
        ([row((-4, 3)), row((-1, 7.5))], ROOM, 2.0),
        ([row((-1, 7.5))], 2.0, None),
        ([row((-1, 15))], 2.0, 4.0),
        ([row((-1, 300))], ROOM, 4.0),
        ([row((-1, 300))], 4.0, None),
        ([row((-1, 300), "few_bits")], ROOM, None),
        ([row((-1, 300), dtype="uint8")], ROOM, None),
        ([row((-300, 3), low=0.0)], ROOM, None),
    ],
)
def test_room_is_what_leaves_values_uncut(rows: list[RowFacts], has: float, room: float | None) -> None:
    assert room_for(rows, has) == room


def test_what_is_cut_off_gets_room_before_nodes_get_float() -> None:
    first = Tried(W8A16, "quantization", (QUANTIZATION, 7.7), lambda: ("a", "b"), room=lambda: 2.0)
    labels = [label(scheme) for scheme in climbed(first)]
    assert labels[:4] == ["w8a16 in blocks of 32", "w16a16", "w8a16, room 2", "w8a16, 2 nodes fp16"]


def test_the_same_nodes_in_one_rule_or_in_two_are_one_scheme() -> None:
    one, other, both = (Rule(nodes=names, precision="fp16") for names in (("a",), ("b",), ("a", "b")))
    apart = Tried(W8A16.with_rules([one, other]), "compile", (COMPILE, 13.0))
    first = Tried(W8A16, "compile", (COMPILE, 12.0), lambda: ("a", "b"))
    assert label(apart.scheme) == label(W8A16.with_rules([both])) == "w8a16, 2 nodes fp16"
    assert next_scheme([first], ALL) == W8A16.with_rules([both])
    assert next_scheme([first, apart], ALL) == replace(W8A16, overrides=(FLOAT,))


def test_what_a_search_narrowed_too_far_is_answered_by_the_default_first() -> None:
    rules = (Rule(nodes=("a",), activations="uint8"), Rule(ops=("Gather",), weights="int4", block=32))
    looked_for = replace(W8A16, weights="int8", block=32, wide_products=True, overrides=rules)
    default = replace(looked_for, overrides=())
    for narrow in (looked_for, replace(default, activations="uint8"), replace(default, weights="int4")):
        for able, expected in ((ALL, default), (NOTHING, replace(default, weights="uint8", block=None))):
            first = Tried(narrow, "quantization", (QUANTIZATION, 19.0), lambda: ("b", "c"))
            assert next(climbed(first, able)) == expected
    in_float = looked_for.with_rules([Rule(nodes=("b",), precision="fp16")])
    assert next(climbed(replace(first, scheme=in_float))) != default, "that may be what the default lacks"


def test_what_is_read_otherwise_is_not_cured_by_little() -> None:
    first = Tried(W8A16, "total", (QUANTIZATION, 28.0), lambda: ("a", "b"), read=True)
    labels = [label(scheme) for scheme in climbed(first)]
    assert labels[:2] == ["w16a16", "fp16"]


def test_until_the_same_is_read_all_of_the_budget_may_be_spent() -> None:
    assert may_go_on(1, 9 * 60, 30 * 60, alike=True)
    assert not may_go_on(1, 11 * 60, 30 * 60, alike=True)
    assert may_go_on(1, 29 * 60, 30 * 60, alike=False)
    assert not may_go_on(1, 31 * 60, 30 * 60, alike=False)
    assert not may_go_on(4, 0, 30 * 60, alike=False)
    assert [number for number in range(5) if is_last(number)] == [3]


def test_what_the_compiler_makes_of_blocks_is_answered_by_a_scale_for_each_channel() -> None:
    blocks = replace(W8A16, weights="int8", block=32)
    assert next(climbed(Tried(blocks, "compile", (COMPILE, 3.0)))) == W8A16
    assert next(climbed(Tried(blocks, "quantization", (QUANTIZATION, 3.0)))) == replace(W8A16, weights="int16")


def test_the_last_try_for_a_margin_is_all_in_float() -> None:
    first = Tried(W8A16, "quantization", (QUANTIZATION, 25.0), lambda: ("a", "b"))
    last = next_scheme([first], ALL, last=True)
    assert last is not None
    assert is_float(last)
    cheapest = next_scheme([first], replace(ALL, float16=False), last=True)
    assert cheapest == replace(W8A16, weights="int8", block=32)
    after = next_scheme([first, replace(first, scheme=last)], ALL, last=True)
    assert after == replace(W8A16, weights="int8", block=32), "once"


def test_what_no_remedy_changes_ends_soon() -> None:
    """Figures as a T5 encoder had them: what its nodes are in makes no difference, in integers and in float16."""
    float16 = replace(W8A16, overrides=(FLOAT,))

    def schemes_of(spread: float) -> list[Scheme]:
        tried: list[Tried] = []
        scheme: Scheme | None = W8A16
        while scheme is not None:
            rung, stage, db = ("compile", COMPILE, 8.0) if scheme == float16 else ("quantization", QUANTIZATION, 19.6)
            names = tuple(f"n{len(tried)}_{number}" for number in range(20))
            tried.append(Tried(scheme, rung, (stage, db + spread * len(tried)), partial(tuple, names)))
            scheme = next_scheme(tried, ALL)
        return [each.scheme for each in tried]

    same, apart = schemes_of(0.001), schemes_of(1.0)
    assert float16 in same, "all in float16 is tried all the same"
    assert len(same) < len(apart)
    assert sum(not is_float(scheme) for scheme in same) == 8
    assert sum(map(is_float, same)) == 1 + 8
    assert len({scheme.weights for scheme in same}) == 3, "several remedies, not one that was widened"


def test_tries_are_alike_that_miss_one_rung_by_one_figure() -> None:
    same = [Tried(W8A16.with_rules([Rule(nodes=(str(n),))]), "total", (QUANTIZATION, 12.0)) for n in range(9)]
    assert unmoved(same, in_float=False) == same[1:], "the last count"
    assert not unmoved(same, in_float=True)
    assert not unmoved(same[:7], in_float=False)
    for other in (
        replace(same[0], rung="compile"),
        replace(same[0], reached=(QUANTIZATION, 13.1)),
        replace(same[0], reached=(COMPILE, 12.0)),
    ):
        assert not unmoved([*same, other], in_float=False), other
    for each in (replace(same[0], read=True), replace(same[0], by_db=False)):
        assert not unmoved([*same, each], in_float=False), "what missed may have changed"
    nothing = [replace(each, reached=(QUANTIZATION, NO_NUMBER)) for each in same]
    assert not unmoved(nothing, in_float=False), "what has no figure has none to compare"


def test_a_state_that_misses_goes_to_float16_at_once() -> None:
    first = Tried(W8A16, "quantization", (QUANTIZATION, 33.0), state=True)
    assert [is_float(scheme) for scheme in climbed(first)][:2] == [True, False]
    assert label(next(climbed(first, replace(ALL, float16=False)))) == "w8a16 in blocks of 32"
    assert label(next(climbed(first, replace(ALL, float16=False, blocks=False)))) == "w16a16"


def test_what_goes_wrong_is_looked_for_when_nothing_cheaper_is_left() -> None:
    def nodes() -> tuple[str, ...]:
        raise AssertionError

    first = Tried(W8A16, "quantization", (QUANTIZATION, 13.0), nodes)
    assert next_scheme([first], ALL) == replace(W8A16, weights="int8", block=32)


def test_wide_weights_answer_no_miss_of_the_chip() -> None:
    first = Tried(W8A16, "compile", (COMPILE, 13.0), lambda: ("a",))
    assert next(climbed(first)) == W8A16.with_rules([Rule(nodes=("a",), precision="fp16")])


@pytest.mark.parametrize("rule", ["quiet_logarithm", "loud_stream"])
def test_what_no_width_of_weights_brings_back_gets_float_first(rule: forecast.Rule) -> None:
    told = Forecast(rule, "x", "'x' (Add)", 1e5, 3e4, nodes=("x", "norm"), instead="fp16")
    first = next_scheme([Tried(W8A16, "quantization", (1, 15.0), lambda: ("y",), foretold=(told,))], ALL)
    assert first is not None
    assert first.overrides[-1].places == ("x", "norm")
    assert first.weights == W8A16.weights


def test_what_was_foretold_is_tried_before_what_went_wrong() -> None:
    told = Forecast("exponent", "e", "'Exp_0' (Exp)", 15, 11, nodes=("Exp_0", "Log_1"), instead="fp16")
    first = Tried(W8A16, "compile", (COMPILE, 13.0), lambda: ("a",), (told,))
    schemes = climbed(first)
    assert next(schemes).overrides == (Rule(nodes=("Exp_0", "Log_1"), precision="fp16"),)
    assert next(schemes).overrides == (Rule(nodes=("Exp_0", "Log_1", "a"), precision="fp16"),)


def test_what_float16_is_too_small_for_gets_integers() -> None:
    float16 = replace(W8A16, overrides=(FLOAT,))
    told = Forecast("fp16_overflow", "s", "'s' (Mul)", 1e5, 65504, nodes=("s",), instead="uint16")
    tried = [
        Tried(W8A16, "quantization", (QUANTIZATION, 3.0)),
        Tried(float16, "compile", (COMPILE, 3.0), tuple, (told,)),
    ]
    found = next_scheme(tried, ALL)
    assert found == replace(W8A16, overrides=(FLOAT, Rule(nodes=("s",), activations="uint16")))
    assert found is not None
    assert is_float(found)
    assert label(found) == "fp16, 1 nodes a16"


def test_targets_that_can_compute_neither_have_no_remedy() -> None:
    assert list(climbed(Tried(W8A16, "quantization", (QUANTIZATION, 13.0), lambda: ("a",)), NOTHING)) == []


def test_the_best_so_far_is_what_is_improved_on() -> None:
    wide = replace(W8A16, weights="int16")
    tried = [Tried(W8A16, "quantization", (QUANTIZATION, 13.0)), Tried(wide, "compile", (COMPILE, 5.0), lambda: ("a",))]
    found = next_scheme(tried, ALL)
    assert found == wide.with_rules([Rule(nodes=("a",), precision="fp16")])


def test_a_precision_that_costs_more_is_taken_only_if_it_is_worth_it() -> None:
    assert worth_most([23.1]) == 0
    assert worth_most([23.1, 58.9]) == 1
    assert worth_most([26.9, 28.0, 16.2]) == 0
    assert worth_most([23.0, 27.0, 29.0, 31.0]) == 3


def test_what_qnn_leaves_to_the_cpu_is_looked_at_without_blocks_and_then_in_float() -> None:
    blocks, plain = replace(W8A16, weights="int8", block=32), replace(W8A16, weights="uint8", block=None)
    nodes, in_float = ("a", "b"), Rule(nodes=("a", "b"), precision="fp16")
    tried: list[Tried] = []

    def left(scheme: Scheme) -> Scheme | None:
        tried.append(Tried(scheme, "compile", (3, -1e9), lambda: nodes, left_to_cpu=True))
        return next_scheme(tried, ALL)

    assert may_be_cured("", blocks, tried, nodes)
    assert left(blocks) == plain
    assert may_be_cured("", plain, tried, nodes)
    assert left(plain) == blocks.with_rules([in_float])
    assert may_be_cured("", plain.with_rules([in_float]), tried, (*nodes, "c")), "others are left now"
    assert not may_be_cured("", plain.with_rules([in_float]), tried, nodes), "then it is the operator"
    found = left(blocks.with_rules([in_float]))
    assert found is not None
    assert is_float(found)
    assert not may_be_cured("", found, tried, nodes)


def test_what_no_precision_makes_qnn_take() -> None:
    left = Tried(W8A16, "compile", (3, -1e9), left_to_cpu=True)
    assert not may_be_cured("", W8A16, [left], ("a",), float16=False)
    assert not may_be_cured("", W8A16, [left], None), "it is something else that misses no rung"
    assert may_be_cured("", W8A16, [left], ()), "of conversions alone, all in float has none"
    assert may_be_cured("", W8A16, [Tried(W8A16, "quantization", (1, 13.0))]), "a rung was missed before"


@pytest.mark.parametrize("stage", ["quantize", "context", "emulate"])
def test_a_process_that_died_may_be_the_precisions_fault(stage: str) -> None:
    error = WorkerError("the worker died")
    assert not may_fail(stage, error)
    error.of_process = True
    assert may_fail(stage, error) == (stage != "quantize")
    assert may_fail(stage, CompileError("refused"))


def test_padding_is_cured_by_no_precision() -> None:
    assert not may_be_cured("padding", replace(W8A16, weights="int8", block=32), [])
    assert may_be_cured("total", W8A16, [])
