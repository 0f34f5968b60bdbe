"""Plans of buckets for a reader: a table, a curve, and the line for the config."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pipeline.plain_text import printable
from pipeline.propose.bucket_cost import ComponentCost, binary_bytes
from pipeline.propose.bucket_plan import BucketPlan, plan_lengths, plan_pairs
from pipeline.propose.config_text import quoted
from pipeline.propose.lengths import KnownLengths
from pipeline.sizes import human_bytes

WORTHWHILE = 0.1
"""One bucket more has to save this part of the work to be suggested: it is compiled, shipped and loaded."""

_BAR = 40


def bucket_report(
    model: str,
    lengths: KnownLengths,
    costs: Mapping[str, ComponentCost],
    now: Sequence[tuple[int, ...]],
    exact: Sequence[str] = (),
) -> str:
    """All that is said of a model's buckets; `now` are the points that its config has.

    Work is in multiply-accumulates, against running each sample at its own lengths. The components in `exact` are held
    against samples of exactly a bucket's lengths, so every length is one.
    """
    if exact:
        return _exact_lengths(model, lengths, costs, now, exact)
    work = _work(lengths, costs)
    if len(lengths.axes) == 1:
        plans: Sequence[BucketPlan] = plan_lengths([one for (one,) in lengths.samples], lambda one: work((one,)))
        notes = []
    else:
        found = plan_pairs([(one, two) for one, two in lengths.samples], lambda one, two: work((one, two)))
        plans, notes = found.plans, _rounded(lengths.axes, found.step)
    least = sum(map(work, lengths.samples))
    rows = [_row(str(len(plan.points)), plan.points, plan.work, least, lengths.axes, costs) for plan in plans]
    if (today := _cost(lengths.samples, now, work)) is not None:
        rows.append(_row("now", now, today, least, lengths.axes, costs))
    else:
        notes.append("some samples fit no bucket of the config as it is")
    if lengths.cut:
        notes.append(
            f"{lengths.cut} samples were cut to the largest bucket and count as such: --lengths FILE has them whole"
        )
    chosen = suggested([plan.work for plan in plans])
    head = [
        f"buckets of {model}, for {lengths.origin}: {_spans(lengths)}",
        "work: multiply-accumulates, 1 without padding; bytes: estimated, of all binaries for one target",
        *notes,
        "",
    ]
    line = _config_line(lengths.axes, plans[chosen - 1].points)
    why = f"{chosen} buckets: one more would save less than {WORTHWHILE:.0%} of the work"
    said = [line, f"# {why}", *_beyond(lengths.axes, plans[-1].points[-1], now)]
    return printable("\n".join([*head, *_table(rows), "", *_curve(plans, least), "", *said])) + "\n"


def _exact_lengths(
    model: str,
    lengths: KnownLengths,
    costs: Mapping[str, ComponentCost],
    now: Sequence[tuple[int, ...]],
    exact: Sequence[str],
) -> str:
    """What is said of buckets none of which is padded."""
    counted = Counter(lengths.samples)
    points = sorted(counted)
    rows = [_row(str(len(points)), points, 1, 1, lengths.axes, costs)]
    missing = sum(number for point, number in counted.items() if point not in now)
    once = [point for point in points if counted[point] == 1]
    notes = [
        f"truth: exact of {', '.join(exact)}: a bucket takes samples of exactly its lengths, so each in use is one",
        *([f"{missing} samples have the lengths of no bucket of the config as it is"] if missing else []),
        *(["samples were cut to the largest bucket: --lengths FILE has them whole"] if lengths.cut else []),
    ]
    named = ", ".join("x".join(map(str, point)) for point in once)
    said = [f"# one sample alone, so that none is held out to prove it: {named}"] if once else []
    head = [f"buckets of {model}, for {lengths.origin}: {_spans(lengths)}", *notes, ""]
    return printable("\n".join([*head, *_table(rows), "", _config_line(lengths.axes, points), *said])) + "\n"


def suggested(works: Sequence[int]) -> int:
    """How many buckets are worth it: after these, none more saves a tenth of the work."""
    best = 1
    for count, (before, after) in enumerate(itertools.pairwise(works), 2):
        if before - after >= WORTHWHILE * before:
            best = count
    return best


def _work(lengths: KnownLengths, costs: Mapping[str, ComponentCost]) -> Callable[[tuple[int, ...]], int]:
    """The work of one sample at some lengths, over all components, in whole numbers that do not fall."""
    known: dict[tuple[int, ...], int] = {}

    def work(point: tuple[int, ...]) -> int:
        if point not in known:
            axes = dict(zip(lengths.axes, point, strict=True))
            known[point] = sum(
                math.ceil(lengths.calls.get(component, 0.0) * cost.work(axes)) for component, cost in costs.items()
            )
        return known[point]

    return work


def _cost(
    samples: Sequence[tuple[int, ...]], points: Sequence[tuple[int, ...]], work: Callable[[tuple[int, ...]], int]
) -> int | None:
    """The work of all samples in buckets as they are; None if one fits none."""
    total = 0
    by_size = sorted(points, key=math.prod)
    places: dict[tuple[int, ...], int | None] = {}
    for sample in samples:
        if sample not in places:
            holding = (point for point in by_size if all(a <= b for a, b in zip(sample, point, strict=True)))
            place = next(holding, None)
            places[sample] = None if place is None else work(place)
        found = places[sample]
        if found is None:
            return None
        total += found
    return total


def _row(
    name: str,
    points: Sequence[tuple[int, ...]],
    work: int,
    least: int,
    axes: Sequence[str],
    costs: Mapping[str, ComponentCost],
) -> tuple[str, ...]:
    named = [dict(zip(axes, point, strict=True)) for point in points]
    sizes = (human_bytes(binary_bytes(costs, named, form)) for form in ("separate", "buckets"))
    return (name, ", ".join("x".join(map(str, point)) for point in points), f"{work / least:.3f}", *sizes)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    shown = [("k", "buckets", "work", "separate", "packed"), *rows]
    widths = [max(len(row[column]) for row in shown) for column in range(5)]
    return [
        "  ".join([row[0].rjust(widths[0]), row[1].ljust(widths[1]), *(row[n].rjust(widths[n]) for n in (2, 3, 4))])
        for row in shown
    ]


def _curve(plans: Sequence[BucketPlan], least: int) -> list[str]:
    """What is padded in vain, a bar for each number of buckets."""
    wasted = [plan.work / least - 1 for plan in plans]
    most = max(max(wasted), 1e-9)
    bars = ["#" * round(_BAR * each / most) for each in wasted]
    return [
        "work on padding",
        *(f"{n}  {bar:<{_BAR}}  {each:.1%}" for n, (bar, each) in enumerate(zip(bars, wasted, strict=True), 1)),
    ]


def _config_line(axes: Sequence[str], points: Sequence[tuple[int, ...]]) -> str:
    values = {axis: [point[place] for point in points] for place, axis in enumerate(axes)}
    return f"buckets: {quoted(values)}"


def _beyond(axes: Sequence[str], largest: tuple[int, ...], now: Sequence[tuple[int, ...]]) -> list[str]:
    """A line on axes whose largest bucket of today is larger than any sample."""
    most = [max(point[place] for point in now) for place in range(len(axes))]
    kept = [f"{axis} {size}" for axis, size, length in zip(axes, most, largest, strict=True) if size > length]
    return [f"# no sample is longer than the last bucket; if users' may be, keep {', '.join(kept)}"] if kept else []


def _spans(lengths: KnownLengths) -> str:
    spans = []
    for place, axis in enumerate(lengths.axes):
        own = [sample[place] for sample in lengths.samples]
        spans.append(f"{axis} {min(own)} to {max(own)}")
    return ", ".join(spans)


def _rounded(axes: Sequence[str], step: tuple[int, int]) -> list[str]:
    said = [f"{axis} to {by}s" for axis, by in zip(axes, step, strict=True) if by > 1]
    found = ["both axes grow together from bucket to bucket"]
    return [*found, f"rounded up, as there are many: {', '.join(said)}"] if said else found
