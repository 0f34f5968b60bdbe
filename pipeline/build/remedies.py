"""Chooses the precision to try next when one misses a gate: the cheapest first that the targets can compute.

All functions are pure: the next scheme follows from what was tried and found; it is None when nothing is left to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pipeline.contracts.blame import RowFacts
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.scheme import FP16, Rule, Scheme, bits
from pipeline.errors import PipelineError
from pipeline.frozen import dataclass

CURABLE = ("quantization", "compile", "total")
"""Rungs that another precision can cure."""
FEW, MANY = 6, 20
"""How many nodes get another precision at once, in a first and in a second try. The worst nodes come first."""
_ROOMS = (1.0, 2.0, 4.0)
_MOST_RULES = 3
"""How many rules are added to a scheme before the whole component gets another precision."""
_WIDE = "int16"
_INTEGERS = "uint16"
_BLOCK = 32
FLOAT = Rule(nodes=("*",), precision=FP16)
"""All of a component in float16."""
_ALL_FLOAT = Scheme("uint16", "uint8", per_channel=True, overrides=(FLOAT,))

_ALIKE, _ALIKE_DB = 8, 1.0
"""When this many tries in a row miss one rung with figures within this many dB, what they change is not the cause.
Fewer tries do not show that: the sixth may be the first that keeps a whole stretch in float.
"""
NO_NUMBER = -1e9
"""Stands for the dB of outputs that are not numbers, or that were not made."""

_ROUNDED_AWAY = ("quiet_logarithm", "loud_stream")
"""Forecasts of a loss that integers of any width have."""

_MOST_FOR_A_MARGIN = 4
"""How many precisions are tried for a larger margin, once one keeps to the gates."""
_SHARE_FOR_A_MARGIN = 1 / 3
"""The share of the budget in which a try for a larger margin may begin, once what is read off an output is right."""
WORTH_DB = 3.0
"""By how many dB a precision that costs more must be better. 3 dB are half the noise power."""


@dataclass(frozen=True)
class Able:
    """What all targets can compute."""

    float16: bool
    wide_weights: bool
    blocks: bool


@dataclass(frozen=True)
class Tried:
    """A scheme that was tried, how far down the ladder it came, and what is to blame for its miss.

    `reached` is the stage that missed, counted from the first, and the SQNR in dB there. `nodes` went wrong, the worst
    first. `foretold` are the harmful forecasts. `state`: a state missed. `read`: an application reads something else
    off an output. `accepts` is what to write into a config to ship it all the same. `failed` is the error if it could
    not be made. `inputs_db` is the SQNR that rounding the inputs leaves, if that alone explains the miss. `room` is
    what encodings need to hold all values, if cut values are to blame. `choices` are the values before a TopK inside
    the model, if rounded inputs explain the miss. `by_db`: the figure in `reached` is the one that missed.
    `left_to_cpu`: no rung missed, but QNN left nodes to the CPU.
    """

    scheme: Scheme
    rung: str
    reached: tuple[int, float]
    nodes: Callable[[], tuple[str, ...]] = tuple
    foretold: tuple[Forecast, ...] = ()
    state: bool = False
    read: bool = False
    accepts: str = ""
    failed: PipelineError | None = None
    inputs_db: Callable[[], float | None] = lambda: None
    room: Callable[[], float | None] = lambda: None
    left_to_cpu: bool = False
    by_db: bool = True
    choices: Callable[[], tuple[str, ...] | None] = lambda: None


def may_be_cured(
    rung: str, scheme: Scheme, tried: Sequence[Tried], left: Sequence[str] | None = None, *, float16: bool = True
) -> bool:
    """Whether another precision may cure what `scheme` misses, after those that were `tried`.

    No precision cures the rungs of padding and rewrites. If QNN left nodes to the CPU, `rung` is empty and `left` names
    them: weights in blocks or integers may be the reason. No precision cures that if these nodes were in float16
    already, or if the targets have no `float16`.
    """
    if rung:
        return rung in CURABLE or bool(tried)
    if scheme.block is not None or not all(each.left_to_cpu for each in tried):
        return True
    named = {place for rule in scheme.overrides if rule.precision == FP16 for place in rule.places}
    in_float = is_float(scheme) or (bool(left) and named.issuperset(left or ()))
    return left is not None and float16 and not in_float


def next_scheme(tried: Sequence[Tried], able: Able, *, last: bool = False) -> Scheme | None:
    """The cheapest scheme not tried yet that may cure the miss of the best one so far; None if there is none.

    The `last` try has all in float16, which does not depend on the ranges that calibration saw.
    """
    known = {_form(each.scheme) for each in tried}
    stuck = {in_float for in_float in (False, True) if unmoved(tried, in_float=in_float)}
    if last and able.float16 and not any(is_float(each.scheme) for each in tried):
        return _ALL_FLOAT
    for each in sorted(tried, key=_worth, reverse=True):
        for scheme in _remedies(each, len(tried[0].scheme.overrides), able):
            if _form(scheme) not in known and is_float(scheme) not in stuck:
                return scheme
    return None


def _worth(tried: Tried) -> tuple[int, float]:
    """How near a try came, to order tries by. Tries within about a dB are equal: the earlier one costs less."""
    stage, db = tried.reached
    return stage, min(max(db, NO_NUMBER), -NO_NUMBER) // _ALIKE_DB


def _form(scheme: Scheme) -> object:
    """What a scheme does, to compare schemes by: it does not matter how nodes are spread over rules."""
    told = {
        (rule.kind, place): (rule.precision, rule.activations, rule.weights, rule.block, rule.per_channel)
        for rule in scheme.overrides
        for place in rule.places
    }
    return replace(scheme, overrides=()), frozenset(told.items())


def unmoved(tried: Sequence[Tried], *, in_float: bool) -> Sequence[Tried]:
    """The last tries, if they all come to the same figure whatever they change; else none.

    Only looks at tries with the component `in_float` but for some nodes, or only at the others.
    """
    last = [each for each in tried if is_float(each.scheme) == in_float][-_ALIKE:]
    figures = [each.reached[1] for each in last]
    places = {(each.rung, each.reached[0], each.failed is None) for each in last}
    comparable = all(each.by_db and not each.read for each in last) and min(figures, default=NO_NUMBER) > NO_NUMBER
    told = comparable and len(last) == _ALIKE and places == {(last[0].rung, last[0].reached[0], True)}
    return last if told and last[0].rung and max(figures) - min(figures) <= _ALIKE_DB else ()


def room_for(rows: Sequence[RowFacts], has: float) -> float | None:
    """The room (1, 2 or 4) with which encodings hold all values; None if the room it `has` is enough or the largest.

    Adds a quarter to what these samples need, as others go further. With 4, a ninth of the steps of 16 bits covers the
    range that calibration saw.
    """
    needed = max(map(_beyond, rows), default=0.0) * 1.25
    more = [room for room in _ROOMS if room > has]
    return next((room for room in more if room >= needed), more[-1]) if more and needed > has else None


def _beyond(row: RowFacts) -> float:
    """How far a value goes beyond the range that calibration saw, as a part of that range; 0 if no room helps.

    An end at zero gets no room, nor does an encoding of 8 bits, such as that of a product's right operand.
    """
    wide = row.encoding is not None and row.encoding.dtype.endswith("16")
    if row.local is None or row.local.name != "saturated" or row.calibrated is None or not wide:
        return 0.0
    (low, high), (least, most) = row.calibrated, row.observed
    beyond = max(low - least if low < 0 else 0.0, most - high if high > 0 else 0.0)
    return beyond / (high - low) if high > low else 0.0


def may_go_on(for_margin: int, spent_s: float, budget_s: float, *, alike: bool) -> bool:
    """Whether to try another precision for a larger margin, after `for_margin` such tries, when one keeps to the gates.

    `alike`: an application reads the same off one of them as off the original. Else the whole budget may be spent.
    """
    return for_margin < _MOST_FOR_A_MARGIN and spent_s <= budget_s * (_SHARE_FOR_A_MARGIN if alike else 1)


def is_last(for_margin: int) -> bool:
    """Whether the next try for a margin is the last."""
    return for_margin == _MOST_FOR_A_MARGIN - 1


def worth_most(totals_db: Sequence[float]) -> int:
    """The place of the precision to take among those that keep to the gates.

    `totals_db` has the least SQNR of each against the original, in dB, the cheapest precision first.
    """
    best = 0
    for place, total_db in enumerate(totals_db):
        if total_db >= totals_db[best] + WORTH_DB:
            best = place
    return best


def label(scheme: Scheme) -> str:
    """A scheme in a few words: ``w16a16, 6 nodes fp16``."""
    if is_float(scheme):
        kept = [rule for rule in scheme.overrides if rule.activations == _INTEGERS]
        return "fp16" + (f", {_places(kept)} nodes a16" if kept else "")
    counts = [
        f"{_places(rules)} nodes {name}"
        for name, rules in (
            ("fp16", [rule for rule in scheme.overrides if rule.precision == FP16]),
            ("other", [rule for rule in scheme.overrides if rule.precision != FP16]),
        )
        if rules
    ]
    room = [f"room {scheme.room:g}"] if scheme.room is not None else []
    return ", ".join([replace(scheme, overrides=()).name, *room, *counts])


def _places(rules: Sequence[Rule]) -> int:
    return len({place for rule in rules for place in rule.places})


def is_float(scheme: Scheme) -> bool:
    """Whether a scheme leaves all of a component in float16, but for nodes that rules name."""
    return FLOAT in scheme.overrides


def _remedies(tried: Tried, own_rules: int, able: Able) -> Iterator[Scheme]:
    """Schemes that may cure a miss, the cheapest first. The climb began with `own_rules` overrides."""
    scheme, added = tried.scheme, len(tried.scheme.overrides) - own_rules
    if tried.left_to_cpu:
        yield from _taken_otherwise(tried, able)
        return
    if is_float(scheme):
        if added <= _MOST_RULES:
            for nodes in _stretches(tried, _INTEGERS):
                yield scheme.with_rules([Rule(nodes=nodes, activations=_INTEGERS)])
        return
    if tried.state and able.float16:
        # Integers cut a state off where calibration never was, and no single run shows it: silero-vad in w16a16 has 41
        # to 56 dB and is off by 0.09 to 0.25 after 500 runs; in float16 it has 55 and is off by 0.01.
        yield _ALL_FLOAT
    heard = [name for told in tried.foretold if told.rule in _ROUNDED_AWAY for name in told.nodes]
    if heard and able.float16:
        # No width of weights brings back what encodings of 16 bits round away.
        yield scheme.with_rules([Rule(nodes=tuple(dict.fromkeys(heard)), precision=FP16)])
    if _is_narrow(scheme):
        # A search chose it, on calibration samples: on others it misses, and what a default begins with may not.
        wide = replace(scheme, activations=_INTEGERS, overrides=())
        yield replace(wide, weights="int8", block=_BLOCK) if able.blocks else replace(wide, weights="uint8", block=None)
    eight = scheme.weights in ("uint8", "int8")
    rounding = tried.rung in ("quantization", "total") and eight and scheme.activations == _INTEGERS
    if rounding and able.blocks and scheme.block is None and scheme.per_channel and not tried.read:
        yield replace(scheme, weights="int8", block=_BLOCK)
    if scheme.block is not None and tried.rung == "compile" and eight:
        # QNN has a kernel of its own for blocks, and may not take a node in it that it takes otherwise.
        yield replace(scheme, weights="uint8", block=None)
    if rounding and able.wide_weights:
        yield replace(scheme, weights=_WIDE, block=None)
    if tried.rung in ("quantization", "total") and scheme.activations == _INTEGERS and (room := tried.room()):
        yield replace(scheme, room=room)
    if tried.read and able.float16:
        # What is read otherwise gets what is sure to cure it: 2 dB more, as of blocks, or a few nodes do not.
        yield _ALL_FLOAT
    if able.float16 and added < _MOST_RULES:
        for nodes in _stretches(tried, FP16):
            yield scheme.with_rules([Rule(nodes=nodes, precision=FP16)])
    if able.float16:
        yield _ALL_FLOAT


def _taken_otherwise(tried: Tried, able: Able) -> Iterator[Scheme]:
    """Schemes with which QNN may take the nodes it left to the CPU: without blocks, or with these nodes in float."""
    scheme, left = tried.scheme, tried.nodes()
    if is_float(scheme):
        return
    if scheme.block is not None:
        yield replace(scheme, weights="uint8", block=None)
    if able.float16:
        yield from [scheme.with_rules([Rule(nodes=left, precision=FP16)])] if left else []
        yield _ALL_FLOAT


def _is_narrow(scheme: Scheme) -> bool:
    """Whether some of a scheme is narrower than w8a16 and nothing of it is in float."""
    places = [(scheme.activations, scheme.weights), *((rule.activations, rule.weights) for rule in scheme.overrides)]
    narrow = any(activations == "uint8" or (weights and bits(weights) < 8) for activations, weights in places)
    return (narrow or any(rule.weights for rule in scheme.overrides)) and all(
        rule.precision != FP16 for rule in scheme.overrides
    )


def _stretches(tried: Tried, instead: str) -> Iterator[tuple[str, ...]]:
    """Groups of nodes to try in the precision `instead`: first those of forecasts, then the wrong ones as well."""
    named = [name for told in tried.foretold if told.instead == instead for name in told.nodes]
    if named:
        yield tuple(dict.fromkeys(named))
    wrong = tried.nodes()
    for count in (FEW, MANY):
        if wrong:
            yield tuple(dict.fromkeys([*named, *wrong[:count]]))
