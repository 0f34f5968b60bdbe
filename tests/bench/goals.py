"""What was asked of the pipeline, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.results import Figure, Results, Run, cpu_s, number, process_bytes, tree_bytes, wall_s
from tests.bench.suite import FLOOR, GROWN, NEAREST, OLIVE, OURS, PLAIN

SHIPPED, KEPT = number("shipped_bytes"), number("kept_bytes")


@dataclass(frozen=True)
class Goal:
    """One thing that was asked; `met` is None if it was not measured."""

    asked: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """A word for the table."""
        return {True: "met", False: "**missed**", None: "not measured"}[self.met]


def judge(results: Results) -> list[Goal]:
    """Every goal, in the order in which they were asked."""
    return [
        *_time(results),
        *_memory(results),
        *_increments(results),
        *_bytes(results),
        *_work(results),
        *_growth(results),
    ]


def overhead(results: Results, compile_cpu: Figure = cpu_s) -> float | None:
    """CPU of a whole cold build over that of the work in it that nobody can leave out."""
    model = str(results.about["model"])
    build = results.median(model, "cold", OURS, cpu_s)
    inference = results.median(model, "inference", FLOOR, cpu_s)
    compiled = results.median(model, "compile", FLOOR, compile_cpu)
    return build / (inference + compiled) if build and inference and compiled else None


def _time(results: Results) -> Iterator[Goal]:
    model = str(results.about["model"])
    for peer, least in ((OLIVE, 5.0), (PLAIN, 2.5)):
        wall = results.ratio(model, "cold", peer, OURS, wall_s)
        cpu = results.ratio(model, "cold", peer, OURS, cpu_s)
        asked = f"cold build at least {least:g}× faster than {_named(peer)}, in wall time and in CPU seconds"
        yield _goal(asked, [wall, cpu], "wall {}×, CPU {}×", at_least=least)


def _memory(results: Results) -> Iterator[Goal]:
    model = str(results.about["model"])
    figures = [results.ratio(model, "cold", OURS, OLIVE, figure) for figure in (process_bytes, tree_bytes)]
    yield _goal("peak memory at most half of Olive's", figures, "one process {}×, all {}×", at_most=0.5)
    peak = _scaled(results.median("bert-base", "cold", OURS, process_bytes), 1e-9)
    yield _goal("435 MB model: peak of any one process under 1.6 GB", [peak], "{} GB", at_most=1.6)


def _increments(results: Results) -> Iterator[Goal]:
    model = str(results.about["model"])
    mine = results.median(model, "second SoC", OURS, wall_s)
    best = _divided(mine, results.median(model, "second SoC", FLOOR, number("wall_on_2_s")))
    processes = results.median(model, "second SoC", FLOOR, number("process_cpu_s"))
    whole = _divided(results.median(model, "second SoC", OURS, cpu_s), processes)
    form = "CPU {}×, wall {}×" + (f"; of QNN two at a time, wall {best:.2f}×" if best else "")
    form += f"; of processes that do nothing but such a call each, CPU {whole:.2f}×" if whole else ""
    figures = [results.ratio(model, "second SoC", OURS, FLOOR, figure) for figure in (cpu_s, wall_s)]
    yield _goal("a second SoC: at most 1.1× the CPU and the time that QNN itself needs", figures, form, at_most=1.1)
    ratio = results.ratio(model, "again", OLIVE, OURS, wall_s)
    yield _goal("a build with nothing to do at least 50× faster than Olive's", [ratio], "{}×", at_least=50)
    runs = results.of(model, "changed sample", OURS)
    yield _changed_sample(runs[0] if runs else None)
    seconds = results.median("tiny models", "again", OURS, wall_s)
    yield _goal("200 steps with nothing to do: under 1.5 s", [seconds], "{} s", at_most=1.5)


def _changed_sample(run: Run | None) -> Goal:
    asked = "one changed sample: fetch and shape not rerun"
    if run is None:
        return Goal(asked, "–", None)
    stages = dict.fromkeys(step.partition(":")[0] for step in run.texts["built"])
    return Goal(asked, f"ran {', '.join(sorted(stages))}", not {"fetch", "ingest", "shape"} & set(stages))


def _bytes(results: Results) -> Iterator[Goal]:
    model = str(results.about["model"])
    buckets = results.about["buckets"]
    separate = results.median(model, "packing separate, SoCs 1", OURS, SHIPPED)
    pack = results.median(model, "packing buckets, SoCs 1", OURS, SHIPPED)
    smallest = results.median(model, f"cold, buckets {buckets[0]}", OURS, SHIPPED)
    against = _divided(pack, smallest)
    form = "{}× the mean of them, which is what is judged" + (f"; {against:.2f}× the smallest" if against else "")
    asked = "shipped bytes of three buckets at most 1.1× those of one (`buckets`)"
    yield _goal(asked, [_divided(pack, _scaled(separate, 1 / len(buckets)))], form, at_most=1.1)
    three = results.median(model, "packing socs, SoCs 3", OURS, SHIPPED)
    asked = "shipped bytes of three SoCs at most 1.2× those of one (`socs`)"
    yield _goal(asked, [_divided(three, separate)], "{}×", at_most=1.2)
    kept = results.median(model, "cold", OURS, KEPT)
    yield _goal(
        "store after the build at most 3× the float model",
        [_divided(kept, results.about["model_bytes"])],
        "{}×",
        at_most=3,
    )


def _work(results: Results) -> Iterator[Goal]:
    model = str(results.about["model"])
    asked = "CPU of the whole build at most 1.35× that of calibration inference and QNN's compile"
    yield _goal(asked, [overhead(results)], "{}×", at_most=1.35)
    proven = [results.ratio(model, "cold, verified", OURS, PLAIN, figure) for figure in (wall_s, cpu_s)]
    told = "wall {}×" + (f"; CPU {proven[1]:.2f}×" if proven[1] else "")
    asked = (
        "a build that also runs every context on the emulator: at most 0.9× the wall time of the plain script, which"
        " verifies nothing"
    )
    yield _goal(asked, proven[:1], told, at_most=0.9)
    looking = [results.ratio(model, "default", OURS, NEAREST, figure) for figure in (cpu_s, wall_s)]
    asked = (
        "the default, which looks at the data: at most 1.5× a build that rounds to the nearest (three buckets;"
        " one bucket 1.8 to 2.0×, ADR 29)"
    )
    yield _goal(asked, looking, "CPU {}×, wall {}×", at_most=1.5)


def _growth(results: Results) -> Iterator[Goal]:
    """Of many steps, those of 1,000 models: CPU seconds, and bytes of the largest process."""

    def median(kind: str, figure: Figure, models: int = 1000) -> float | None:
        return results.median(GROWN, f"{kind}, {models}", OURS, figure)

    yield _goal("176,000 steps: planned in at most 10 s of CPU", [median("plan", cpu_s)], "{} s", at_most=10)
    planned = _scaled(median("plan", process_bytes), 1e-9)
    yield _goal("176,000 steps: planned in at most 1 GB", [planned], "{} GB", at_most=1)
    yield _goal("176,000 steps: `doit list` within 4 s of CPU", [median("list", cpu_s)], "{} s", at_most=4)
    idle = median("nothing to do", cpu_s)
    yield _goal("176,000 steps: a build with nothing to do within 15 s of CPU", [idle], "{} s", at_most=15)
    among, alone = median("one model", cpu_s), median("one model", cpu_s, 1)
    more = None if among is None or alone is None else max(0.0, among - alone)
    asked = "a build of one model among 1,000: at most 0.5 s more than in a project of one"
    yield _goal(asked, [more], "{} s", at_most=0.5)
    started = _divided(median("nothing to do", cpu_s, 1), median("import doit", cpu_s, 1))
    yield _goal("a build with nothing to do at most 2× `python -c 'import doit'`", [started], "CPU {}×", at_most=2)


def _goal(
    asked: str, figures: list[float | None], form: str, *, at_most: float = float("inf"), at_least: float = 0.0
) -> Goal:
    known = [figure for figure in figures if figure is not None]
    if len(known) < len(figures):
        return Goal(asked, "–", None)
    # Rounded away from the goal: a figure that misses it never looks as if it did not.
    away = math.ceil if math.isfinite(at_most) else math.floor
    shown = [f"{away(figure * 100) / 100:.2f}" for figure in known]
    return Goal(asked, form.format(*shown), all(at_least <= figure <= at_most for figure in known))


def _scaled(figure: float | None, factor: float) -> float | None:
    return None if figure is None else figure * factor


def _divided(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _named(tool: str) -> str:
    return tool if tool == OLIVE else f"the {tool}"
