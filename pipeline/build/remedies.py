"""Which precision to try next when one misses a gate: what costs least first, as far as the targets can compute it.

Pure: what was tried and what was found there give the next scheme, or None when there is nothing left.
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
"""Nodes that are put into another precision at once: first those that are to blame most."""
_ROOMS = (1.0, 2.0, 4.0)
_MOST_RULES = 3
"""Rules that are added one upon the other before all of a component gets another precision."""
_WIDE = "int16"
_INTEGERS = "uint16"
_BLOCK = 32
FLOAT = Rule(nodes=("*",), precision=FP16)
"""All of a component in float16."""
_ALL_FLOAT = Scheme("uint16", "uint8", per_channel=True, overrides=(FLOAT,))

_ALIKE, _ALIKE_DB = 8, 1.0
"""So many tries one after the other that miss one rung, by figures that are no further apart, tell that what they
change is not what loses it. Fewer do not: the sixth may be the first that keeps a whole stretch in float.
"""
NO_NUMBER = -1e9
"""What stands for the dB of outputs that are no numbers, or were not made."""

_ROUNDED_AWAY = ("quiet_logarithm", "loud_stream")
"""Forecasts of what a part of a model loses in integers of any width."""

_MOST_FOR_A_MARGIN = 4
"""Precisions that are tried at most where one keeps to the gates, but by less than a default should."""
_SHARE_FOR_A_MARGIN = 1 / 3
"""Of the budget: where one keeps to the gates, and the same is read off it, another may be begun within this."""
WORTH_DB = 3.0
"""By how much a precision must be better that costs more: half the noise power."""


@dataclass(frozen=True)
class Able:
    """What all targets can compute."""

    float16: bool
    wide_weights: bool
    blocks: bool


@dataclass(frozen=True)
class Tried:
    """A scheme, how far down the ladder it came, and what is to blame for its miss.

    `reached` grows with the rung that was missed and, on one rung, with its SQNR in dB. `nodes` are those that went
    wrong, the worst first; `foretold` is the forecast for this scheme; `state` says whether a state missed, `read`
    whether something else is read off an output; `accepts` is what a config says to have this all the same. `failed` is
    why it could not even be made. `inputs_db` is what rounding the inputs leaves, if that alone explains the miss;
    `room` what encodings need to cut nothing off, where what they do cut off is to blame.
    `choices` are the values before a TopK inside, as far as its file names them, where rounded inputs explain the miss.
    `by_db`: the figure in `reached` is what missed. `left_to_cpu`: it missed no rung of the ladder, but nodes that QNN
    does not take.
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

    None keeps padding out. Where QNN does not take the nodes that it `left` to the CPU (`rung` is empty), weights in
    blocks may be why, or integers: so that counts where all of them were in `float16` already, if targets have it.
    `left` is None where that is not why.
    """
    if rung:
        return rung in CURABLE or bool(tried)
    if scheme.block is not None or not all(each.left_to_cpu for each in tried):
        return True
    named = {place for rule in scheme.overrides if rule.precision == FP16 for place in rule.places}
    in_float = is_float(scheme) or (bool(left) and named.issuperset(left or ()))
    return left is not None and float16 and not in_float


def next_scheme(tried: Sequence[Tried], able: Able, *, last: bool = False) -> Scheme | None:
    """The cheapest scheme not tried yet that answers the miss of the best one so far; None if there is none.

    The `last` try is all in float16, which hangs on no range that calibration saw.
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
    """How good something is to go on from; of what is alike to about a dB, what was tried first costs less."""
    stage, db = tried.reached
    return stage, min(max(db, NO_NUMBER), -NO_NUMBER) // _ALIKE_DB


def _form(scheme: Scheme) -> object:
    """What a scheme comes to: the same nodes in a rule of their own, or in two, are one scheme."""
    told = {
        (rule.kind, place): (rule.precision, rule.activations, rule.weights, rule.block, rule.per_channel)
        for rule in scheme.overrides
        for place in rule.places
    }
    return replace(scheme, overrides=()), frozenset(told.items())


def unmoved(tried: Sequence[Tried], *, in_float: bool) -> Sequence[Tried]:
    """The last tries, where they come to the same figure whatever they change; none where they don't.

    Of those that leave a component `in_float`, but for some nodes, or of the others.
    """
    last = [each for each in tried if is_float(each.scheme) == in_float][-_ALIKE:]
    figures = [each.reached[1] for each in last]
    places = {(each.rung, each.reached[0], each.failed is None) for each in last}
    comparable = all(each.by_db and not each.read for each in last) and min(figures, default=NO_NUMBER) > NO_NUMBER
    told = comparable and len(last) == _ALIKE and places == {(last[0].rung, last[0].reached[0], True)}
    return last if told and last[0].rung and max(figures) - min(figures) <= _ALIKE_DB else ()


def room_for(rows: Sequence[RowFacts], has: float) -> float | None:
    """The room that leaves what went wrong uncut, of 1, 2 and 4; None if what it `has` is enough, or all there is.

    A quarter more than these samples need, as others go further still. With 4, a ninth of the steps of 16 bits is left
    to what calibration saw.
    """
    needed = max(map(_beyond, rows), default=0.0) * 1.25
    more = [room for room in _ROOMS if room > has]
    return next((room for room in more if room >= needed), more[-1]) if more and needed > has else None


def _beyond(row: RowFacts) -> float:
    """How far a value goes beyond what calibration saw, as a part of that range; 0 if no room would hold it.

    An end at zero gets none, nor does an encoding of 8 bits, such as that of a product's right operand.
    """
    wide = row.encoding is not None and row.encoding.dtype.endswith("16")
    if row.local is None or row.local.name != "saturated" or row.calibrated is None or not wide:
        return 0.0
    (low, high), (least, most) = row.calibrated, row.observed
    beyond = max(low - least if low < 0 else 0.0, most - high if high > 0 else 0.0)
    return beyond / (high - low) if high > low else 0.0


def may_go_on(for_margin: int, spent_s: float, budget_s: float, *, alike: bool) -> bool:
    """Whether another precision may be begun where one keeps to the gates, after so many tries `for_margin`.

    `alike`: the same is read off one of them. Until it is, all of the budget may be spent.
    """
    return for_margin < _MOST_FOR_A_MARGIN and spent_s <= budget_s * (_SHARE_FOR_A_MARGIN if alike else 1)


def is_last(for_margin: int) -> bool:
    """Whether the next try for a margin is the last."""
    return for_margin == _MOST_FOR_A_MARGIN - 1


def worth_most(totals_db: Sequence[float]) -> int:
    """The place of the precision to take, of those that keep to the gates, in the order of their cost.

    Each has its least SQNR against the original, in dB.
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
    """Schemes that answer a miss, the cheapest first; `own_rules` of the overrides were there at the start."""
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
    """Schemes of which QNN may take the nodes that it left to the CPU: without blocks, or with these in float."""
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
    """Nodes that may do better in another precision: what was foretold, then what went wrong too."""
    named = [name for told in tried.foretold if told.instead == instead for name in told.nodes]
    if named:
        yield tuple(dict.fromkeys(named))
    wrong = tried.nodes()
    for count in (FEW, MANY):
        if wrong:
            yield tuple(dict.fromkeys([*named, *wrong[:count]]))
