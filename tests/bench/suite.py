"""What is run, in which order. Tools take turns, so that a machine that slows down does so for all of them.

Each section stands for itself: it can be measured again without the others.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench import floor, growth
from tests.bench.measure import CommandFailedError, run
from tests.bench.models import ROOT, Model, bert_base
from tests.bench.ours import Ours
from tests.bench.peers import olive
from tests.bench.peers.olive import Olive
from tests.bench.peers.plain import Plain
from tests.bench.results import Results, Run, save
from tests.bench.tools import TARGETS, Outcome, Tool

OURS, PLAIN, OLIVE = Ours.name, Plain.name, Olive.name
FLOOR = "QNN and ORT"
"""The tool that does only what can't be left out."""
NEAREST = "ours, w8a16 nearest"
"""Our own build as it was before the default looked at the data."""
STEPS_REPEATS = 5
GROWN = "growing project"
"""The model of what was measured as projects grow."""


@dataclass
class Bench:
    """What the sections work with."""

    results: Results
    path: Path
    """Where the results are saved after each run."""
    work: Path
    """A folder for everything that the tools make, hundreds of megabytes."""
    checkout: Path
    """The checkout of this pipeline that is measured."""
    model: Model
    repeats: int = 3
    olive: bool = True

    def record(self, model: str, case: str, tool: str, repeat: int, work: Callable[[], Outcome | None]) -> Run | None:
        """Measure once; None for what the tool does not do. A failure is recorded, and stops nothing."""
        started = time.perf_counter()
        try:
            outcome = work()
        except (CommandFailedError, OSError, ValueError, subprocess.SubprocessError) as error:
            measured = Run(model, case, tool, repeat, failure=f"{type(error).__name__}: {error}")
            print(f"{measured.id:46} failed: {error}", flush=True)
            self.keep(measured)
            return None
        if outcome is None:
            return None
        used = outcome.usage
        measured = Run(model, case, tool, repeat, used, outcome.numbers, outcome.texts)
        figures = f"{used.wall_s:7.2f} s {used.cpu_s:7.2f} s CPU {used.peak_process_bytes / 1e6:6.0f} MB"
        print(f"{measured.id:46} {figures}  (took {time.perf_counter() - started:.0f} s)", flush=True)
        self.keep(measured)
        for number, part in enumerate(outcome.parts):
            self.keep(Run(model, f"{case}, run {number + 1}", tool, repeat, part))
        return measured

    def keep(self, measured: Run) -> None:
        """Add a run to the results, and save them."""
        self.results.add(measured)
        save(self.results, self.path)


def compare(bench: Bench) -> None:
    """Every tool in turn: cold, the same again, a second SoC, a changed sample; beside the work that must be done."""
    model = bench.model
    ours = Ours(model, bench.work / "ours", source=bench.checkout)
    tools: list[Tool] = [ours, Plain(model, bench.work / "plain")]
    if bench.olive:
        try:
            tools.append(Olive(model, bench.work / "olive", olive.install(bench.work / "olive-environment")))
        except (OSError, subprocess.SubprocessError) as error:
            bench.keep(Run(model.name, "cold", OLIVE, 0, failure=f"its environment can't be made: {error}"))
    for turn in range(bench.repeats):
        for tool in tools:
            bench.record(model.name, "cold", tool.name, turn, tool.cold)
        bench.record(model.name, "inference", FLOOR, turn, lambda: floor.inference(model, bench.work / "floor"))
        bench.record(model.name, "compile", FLOOR, turn, lambda: floor.compiles(ours.qdq_models, TARGETS[0]))
        for tool in tools:
            bench.record(model.name, "again", tool.name, turn, tool.again)
        for tool in tools:
            if turn == 0 or tool.name != OLIVE:  # whose 45 seconds add nothing to the comparison
                bench.record(model.name, "second SoC", tool.name, turn, tool.second_soc)
        bench.record(model.name, "second SoC", FLOOR, turn, lambda: floor.compiles(ours.qdq_models, TARGETS[1]))
        for tool in tools:
            if turn == 0 or tool.name != OLIVE:
                bench.record(model.name, "changed sample", tool.name, turn, tool.changed_sample)


def buckets(bench: Bench) -> None:
    """What a bucket more costs: in a cold build of one and of all, and added to what is built."""
    model = bench.model
    ours = Ours(model, bench.work / "ours-buckets", source=bench.checkout)
    plain = Plain(model, bench.work / "plain")
    for turn in range(bench.repeats):
        for count in range(1, len(model.buckets) + 1):
            some = model.buckets[:count]
            bench.record(model.name, f"cold, buckets {_spaced(some)}", OURS, turn, partial(ours.cold, some))
        bench.record(model.name, "added bucket", OURS, turn, ours.added_bucket)
        bench.record(model.name, "added bucket", PLAIN, turn, plain.added_bucket)


def packs(bench: Bench) -> None:
    """Bytes and time of one SoC and of three, one bucket and all, for each packing."""
    model = bench.model
    ours = Ours(model, bench.work / "ours-packs", source=bench.checkout)
    for packing in ("separate", "buckets", "socs"):
        ours.empty()
        for count in range(1, len(TARGETS) + 1):
            build = partial(ours.build, model.buckets, TARGETS[:count], packing=packing)
            bench.record(model.name, f"packing {packing}, SoCs {count}", OURS, 0, build)


def _spaced(some: Iterable[object]) -> str:
    return " ".join(map(str, some))


def verified(bench: Bench) -> None:
    """A cold build in which every context is emulated, beside the plain script, which verifies nothing."""
    plain = Plain(bench.model, bench.work / "plain")
    ours = Ours(bench.model, bench.work / "ours-verified", source=bench.checkout)
    for turn in range(bench.repeats):
        bench.record(bench.model.name, "cold, verified", PLAIN, turn, plain.cold)
        bench.record(bench.model.name, "cold, verified", OURS, turn, lambda: ours.cold(verified=True))


def default(bench: Bench) -> None:
    """A cold build without a word about precision, beside one with weights by channel, rounded to the nearest."""
    ours = Ours(bench.model, bench.work / "ours-default", source=bench.checkout)
    for turn in range(bench.repeats):
        bench.record(bench.model.name, "default", NEAREST, turn, ours.cold)
        bench.record(bench.model.name, "default", OURS, turn, ours.cold_by_default)


def large(bench: Bench) -> None:
    """A model of BERT-base's size in one bucket."""
    model = bert_base(bench.work / "bert-base")
    ours = Ours(model, bench.work / "ours-large", source=bench.checkout)
    bench.record(model.name, "cold", OURS, 0, ours.cold)
    bench.record(model.name, "cold", PLAIN, 0, Plain(model, bench.work / "plain-large").cold)
    bench.record(model.name, "inference", FLOOR, 0, lambda: floor.inference(model, bench.work / "floor"))
    bench.record(model.name, "compile", FLOOR, 0, lambda: floor.compiles(ours.qdq_models, TARGETS[0]))


def steps(bench: Bench) -> None:
    """A build of 200 steps in which there is nothing to do: see :mod:`tests.bench.startup`."""
    root = bench.work / "steps"
    shutil.rmtree(root, ignore_errors=True)
    create = f"import pathlib, tests.bench.startup; tests.bench.startup.create(pathlib.Path({str(root)!r}))"
    subprocess.run([sys.executable, "-c", create], cwd=ROOT, check=True)

    def build() -> Outcome:
        usage = run([sys.executable, "-m", "doit", "build"], cwd=root, log=root / "log.txt")
        return Outcome(usage, {"steps": sum(1 for _ in root.glob(".build/steps/**/*.json"))})

    bench.record("tiny models", "cold", OURS, 0, build)
    for turn in range(STEPS_REPEATS):
        bench.record("tiny models", "again", OURS, turn, build)


def grown(bench: Bench) -> None:
    """What commands cost in projects of 176 to 176,000 steps, all of them done: see :mod:`tests.bench.growth`."""
    root = bench.work / "growth"
    shutil.rmtree(root, ignore_errors=True)
    project = growth.GrowingProject(root)
    for count in growth.MODELS:
        project.grow(count)
        for turn in range(bench.repeats):
            for kind, arguments in growth.COMMANDS.items():

                def work(arguments: Sequence[str] = arguments, count: int = count) -> Outcome:
                    usage = run([sys.executable, *arguments], cwd=root, log=bench.work / "growth.log")
                    return Outcome(usage, {"steps": project.planned * count, "models": count})

                bench.record(GROWN, f"{kind}, {count}", OURS, turn, work)
    shutil.rmtree(root)


SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "compare": compare,
    "buckets": buckets,
    "packs": packs,
    "verified": verified,
    "default": default,
    "large": large,
    "steps": steps,
    "growth": grown,
}
"""In the order in which they are run."""
OF_TINY_MODELS = frozenset({"steps", "growth"})
"""Sections that do without the model of the others."""
