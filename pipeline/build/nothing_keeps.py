"""Makes the errors for a climb that found no precision that keeps to the gates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.build.remedies import Able, Tried, is_float, label, unmoved
from pipeline.contracts.climb import Attempt
from pipeline.contracts.scheme import Scheme
from pipeline.errors import VerificationError
from pipeline.ladder import RUNGS

_MOST, _ENDS = 10, 3


def out_of_time(name: str, attempts: Sequence[Attempt], left: Scheme, minutes: int) -> VerificationError:
    """The error for a climb whose time is spent; `left` is the scheme that it would have tried next."""
    return VerificationError(
        f"no precision of {name} that was tried within {minutes} minutes keeps to its thresholds",
        why=f"tried{_listed(attempts)}",
        remedy=f"build again: what was tried is kept, and {label(left)} is next; or set quantization:"
        f" {{budget_minutes: {2 * minutes}}}",
    )


def nothing_keeps(name: str, attempts: Sequence[Attempt], tried: Sequence[Tried], able: Able) -> VerificationError:
    """The error for a climb that tried all precisions of the targets. `attempts` are the accounts of `tried`."""
    stuck = [group for in_float in (False, True) if (group := unmoved(tried, in_float=in_float))]
    failures = [each.failed for each in tried if each.failed is not None]
    why, remedies = f"tried{_listed(attempts)}", list[str]()
    why += "".join(_told_alike(group) for group in stuck)
    if failures:
        why += f"; {failures[-1].what}: {failures[-1].why}"
    if len(failures) == len(tried):
        remedies.append(f"no precision could be made, and no other cures that: {failures[-1].remedy}")
    if not able.float16:
        remedies.append("leave out targets below HTP v73, which have no float16; on them this model can't be had")
    elif len(failures) < len(tried):
        if all(each.rung == RUNGS[-1] for each in tried if each.failed is None):
            wrong = "HTP computes it wrongly in every precision they have"
        else:
            wrong = "no precision they have is fine enough for it"
        inputs_db = min((db for each in tried if (db := each.inputs_db()) is not None), default=None)
        if inputs_db is not None:
            wrong = (
                "they take inputs in float16 or 16 bit integers, and rounding the inputs, with all else in float32,"
                f" leaves {inputs_db:g} dB of the worst sample. Compute what feels that (such as the spectrum in"
                " front of a logarithm) in the application, and export the model from there on; or export it with that"
                " input, and the constants that multiply it, in two parts each, as docs/accuracy.md has it under"
                " 'Inputs in two parts'"
            )
            wrong += _told_of_choices(tried)
        elif failures:
            wrong = f"what could be made of it HTP computes wrongly, and for the rest {failures[-1].remedy}"
        remedies.append(f"this model can't be had on these targets: {wrong}")
    accepted = [number for number, each in enumerate(tried) if each.accepts]
    if accepted:
        best = max(accepted, key=lambda number: tried[number].reached)
        remedies.append(f"{attempts[best].label} comes closest, and ships with {tried[best].accepts}")
    return VerificationError(f"no precision of {name} keeps to its thresholds", why=why, remedy="; ".join(remedies))


def _told_of_choices(tried: Sequence[Tried]) -> str:
    """The remedy for a TopK or the like inside a model, if rounded inputs change the order of its values."""
    choices = next((found for each in tried if (found := each.choices()) is not None), None)
    if choices is None:
        return ""
    places = f"cut: [{', '.join(map(repr, choices))}]" if choices else "'cut'"
    return (
        ". Or, where the TopK or NonMaxSuppression inside puts what comes out in order, as the boxes of a detector, any"
        f" rounding gives another order: end the component before it with {places}, and choose in the application"
    )


def _told_alike(group: Sequence[Tried]) -> str:
    """A sentence on tries that all come to the same figure, with the forecast that explains it."""
    low, high = min(each.reached[1] for each in group), max(each.reached[1] for each in group)
    kind = "in fp16 but for some nodes" if is_float(group[0].scheme) else "in integers but for some nodes"
    told = (
        f"; {len(group)} that are {kind} come to {low:.1f} to {high:.1f} dB at the {group[0].rung} rung whatever they"
        " change, so no more like them were tried"
    )
    foretold = [each for each in group[-1].foretold if each.rule == "fp16_overflow"]
    if foretold:
        told += f"; foretold was {max(foretold, key=lambda each: each.beyond).line()}"
    return told


def _listed(attempts: Sequence[Attempt]) -> str:
    """A line for each attempt. Of many attempts, only the first, best and last: the log of the build has all."""
    places = set(range(len(attempts)))
    if len(attempts) > _MOST:
        best = sorted(places, key=lambda place: _least_db(attempts[place]), reverse=True)
        places = {*range(_ENDS), *best[:_ENDS], *range(len(attempts) - _ENDS, len(attempts))}
    lines, before = [], -1
    for place in sorted(places):
        if place > before + 1:
            lines.append(f"... {place - before - 1} more, none of them better, are in the log of the build")
        lines.append(attempts[place].line())
        before = place
    return "".join(f"\n    | {line}" for line in lines)


def _least_db(attempt: Attempt) -> float:
    """The least figure of an attempt over all its rungs."""
    return min((-math.inf if db is None else db for db in attempt.sqnr_db.values()), default=-math.inf)
