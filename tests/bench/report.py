"""Writes docs/performance.md and its plots from the figures in docs/performance.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench import goals, plots
from tests.bench.growth import COMMANDS, MODELS
from tests.bench.processes import INTERVAL_S, TREE_INTERVAL_S
from tests.bench.results import Figure, Results, cpu_s, number, process_bytes, tree_bytes, wall_s
from tests.bench.suite import FLOOR, GROWN, NEAREST, OLIVE, OURS, PLAIN
from tests.bench.tools import TARGETS

PLOTS = {
    "tools": plots.tools,
    "stages": plots.stages,
    "timeline": plots.timeline,
    "growth": plots.growth,
    "scale": plots.scale,
}
_CASES = {
    "cold": "cold build",
    "again": "nothing changed",
    "changed sample": "one sample changed",
    "second SoC": "a second SoC",
    "cold, verified": "cold build, verified",
}


def write(results: Results, folder: Path) -> None:
    """Write `performance.md` and `performance/*.svg` into a folder."""
    (folder / "performance").mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        (folder / "performance" / f"{name}.svg").write_text(draw(results), "utf-8")
    (folder / "performance.md").write_text(markdown(results), "utf-8")


def summary(results: Results) -> str:
    """The goals and where the time goes, for the terminal."""
    lines = [f"{goal.verdict.strip('*'):12}  {goal.asked}: {goal.measured}" for goal in goals.judge(results)]
    return "\n".join([*lines, "", *_stage_lines(results)])


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        "<!-- Written by `python -m tests.bench` from performance.json; measure again instead of editing. -->",
        "# Performance",
        *_about(results),
        *_goals(results),
        *_comparison(results),
        *_work(results),
        *_growth(results),
        *_scale(results),
        *_apart(results),
        *_method(),
        *_failures(results),
    ]
    return "\n\n".join(parts) + "\n"


def _about(results: Results) -> Iterator[str]:
    machine, versions = results.about["machine"], results.about["versions"]
    measured = sorted({section["date"] for section in results.about["sections"].values()})
    yield (
        f"Measured {_listed(measured)}, on {machine['cores']} cores of {machine['cpu']} with"
        f" {machine['memory_bytes'] / 1e9:.0f} GB, {machine['system']}, Python {machine['python']}, with"
        f" {', '.join(f'{name} {version}' for name, version in versions.items())}."
    )
    yield (
        f"The model is {results.about['model']} ({results.about['model_bytes'] / 1e6:.0f} MB), in buckets of"
        f" {_listed(results.about['buckets'])} tokens for one SoC, 16 bit activations and 8 bit weights per channel, 16"
        " calibration samples. Verification is off but where it says otherwise: the others have none."
    )
    loads = {name: section["load"] for name, section in results.about["sections"].items() if "load" in section}
    if loads:
        told = [f"{name} {before:.0f} and {after:.0f}" for name, (before, after) in loads.items()]
        yield (
            f"The machine's load before and after a section, where it was noted: {_listed(told)}. Above"
            f" {machine['cores']} others are part of each figure, of wall time most: compare within turns only."
        )
    yield "`uv run python -m tests.bench` measures all of it again and writes this page."


def _goals(results: Results) -> Iterator[str]:
    yield "## What was asked, and what is"
    rows = [(goal.asked, goal.measured, goal.verdict) for goal in goals.judge(results)]
    yield _table(("asked", "measured", ""), rows)


def _comparison(results: Results) -> Iterator[str]:
    model = str(results.about["model"])
    yield "## Beside what a user would otherwise run"
    yield (
        f"The {PLAIN} is onnxruntime's documented recipe ([plain_script.py](../tests/bench/peers/plain_script.py));"
        f" {OLIVE} runs once for each bucket, in an environment of its own. {FLOOR} is the work in it that nobody can"
        " leave out: inference of the samples and the compile calls. Medians; × is how much more than ours."
    )
    yield _plot("tools")
    rows = [
        _compared(results, case, tool)
        for case in ("cold", "again", "changed sample", "second SoC")
        for tool in (OURS, PLAIN, OLIVE, FLOOR)
        if results.of(model, case, tool)
    ]
    head = ("", "tool", "wall", "CPU", "largest process", "all processes", "shipped", "kept", "runs")
    yield _table(head, rows)
    stale = [run for run in results.of(model, "changed sample", OLIVE) if run.texts.get("outputs") == ["stale"]]
    yield (
        f"The {PLAIN} keeps nothing that spares a second run any work: whatever changed, it runs all of it."
        + (f" {OLIVE} did not notice the changed sample: what it gave out was the old model." if stale else "")
        + " Kept are the store, the cache, the files in between."
    )


def _compared(results: Results, case: str, tool: str) -> Sequence[str]:
    model = str(results.about["model"])
    runs = results.of(model, case, tool)
    sizes = (process_bytes, tree_bytes, number("shipped_bytes"), number("kept_bytes"))
    return (
        _CASES[case],
        tool,
        f"{results.median(model, case, tool, wall_s):.2f} s{_times(results, case, tool, wall_s)}",
        f"{results.median(model, case, tool, cpu_s):.2f} s{_times(results, case, tool, cpu_s)}",
        *(_mb(results.median(model, case, tool, size)) for size in sizes),
        _spread([run.usage.wall_s for run in runs if run.usage]),
    )


def _work(results: Results) -> Iterator[str]:
    yield "## Where the time goes"
    yield _plot("stages")
    yield _plot("timeline")
    strict, processes = goals.overhead(results), goals.overhead(results, number("process_cpu_s"))
    if strict and processes:
        yield (
            f"A cold build takes {strict:.2f} times the CPU of calibration inference and of QNN's compile calls, and"
            f" {processes:.2f} times that of inference and of processes that do nothing but such a call each, imports"
            " included. The stages are told apart by the log that each process writes to. `doit` is the command itself,"
            " `template` what workers import, once for all; `ends` are the last moments of processes, between samples."
        )


def _growth(results: Results) -> Iterator[str]:
    model = str(results.about["model"])
    last = f"cold, run {len(results.about['buckets'])}"
    yield "## What a bucket and a SoC cost"
    yield _plot("growth")
    rows = []
    for tool in (OURS, PLAIN):
        if (wall := results.median(model, "added bucket", tool, wall_s)) is not None:
            cpu = results.median(model, "added bucket", tool, cpu_s)
            rows.append(("the last bucket, added to the others", tool, f"{wall:.2f} s", f"{cpu:.2f} s"))
    if (wall := results.median(model, last, OLIVE, wall_s)) is not None:
        cpu = results.median(model, last, OLIVE, cpu_s)
        rows.append(("the last bucket, a run of its own", OLIVE, f"{wall:.2f} s", f"{cpu:.2f} s"))
    if rows:
        yield _table(("", "tool", "wall", "CPU"), rows)
    packings: list[Sequence[str]] = []
    for packing in ("separate", "buckets", "socs"):
        bytes_by_count = [
            results.median(model, f"packing {packing}, SoCs {count}", OURS, number("shipped_bytes"))
            for count in range(1, len(TARGETS) + 1)
        ]
        if any(bytes_by_count):
            packings.append((packing, *(_mb(size) for size in bytes_by_count)))
    if packings:
        counts = (f"{count} SoC{'s' * (count > 1)}" for count in range(1, len(TARGETS) + 1))
        yield _table(("packing, shipped", *counts), packings)


def _scale(results: Results) -> Iterator[str]:
    counts = [count for count in MODELS if results.of(GROWN, f"list, {count}", OURS)]
    if not counts:
        return
    yield "## What many steps cost"
    yield (
        "One tiny model in five buckets for ten targets, and copies of it under other names"
        " ([growth.py](../tests/bench/growth.py)): CPU, and the largest process. Of its 176 steps 121 are of a build,"
        " all done, and 55 are `blame` and `probe`, made on demand. `plan` makes every step and keeps it."
        " A build with nothing to do, and one of a named model, look at files and plan nothing"
        " ([ADR 38](adr/0038-a-model-that-looks-the-same-is-done.md))."
    )
    yield _plot("scale")
    heads = ["", *(f"{_steps_of(results, count):,.0f} steps, {count} model{'s' * (count > 1)}" for count in counts)]
    rows = [[kind, *(_cost(results, f"{kind}, {count}") for count in counts)] for kind in COMMANDS]
    yield _table(heads, rows)


def _steps_of(results: Results, count: int) -> float:
    return results.of(GROWN, f"list, {count}", OURS)[0].numbers["steps"]


def _cost(results: Results, case: str) -> str:
    cpu, peak = (results.median(GROWN, case, OURS, figure) or 0.0 for figure in (cpu_s, process_bytes))
    return f"{cpu:.2f} s, {peak / 1e6:.0f} MB"


_READING = (
    "The rung `reading` ([accuracy.md](accuracy.md#reading)) takes 2.5 % of the CPU time of a cold, verified build of"
    " minilm: 24.8 s with it and 24.5 s without, the median of four pairs in turn (0.2 to 4.6 %), with the same largest"
    " process. One step runs the file on six samples for three buckets. Measured by hand on 2026-11-27, on two cores"
    " that other work shared."
)


def _apart(results: Results) -> Iterator[str]:
    model = str(results.about["model"])
    yield "## Apart"
    rows = []
    for name, case, tool, what in (
        (model, "cold, verified", OURS, "every context measured on the emulator"),
        (model, "cold, verified", PLAIN, "in turns with it"),
        (model, "default", OURS, "nothing said about precision"),
        (model, "default", NEAREST, "in turns with it"),
        ("bert-base", "cold", OURS, "435 MB, random weights, one bucket of 128"),
        ("bert-base", "cold", PLAIN, "the same"),
        ("bert-base", "compile", FLOOR, "QNN's compile of it alone"),
        ("tiny models", "again", OURS, "200 steps with nothing to do"),
    ):
        if (wall := results.median(name, case, tool, wall_s)) is not None:
            figures = [results.median(name, case, tool, each) for each in (process_bytes, tree_bytes)]
            cpu = results.median(name, case, tool, cpu_s)
            rows.append((name, tool, what, f"{wall:.2f} s", f"{cpu:.2f} s", *(_mb(figure) for figure in figures)))
    yield _table(("model", "tool", "", "wall", "CPU", "largest process", "all processes"), rows)
    yield _READING


def _method() -> Iterator[str]:
    yield "## How it is measured"
    yield "\n".join(
        [
            "- Tools take turns; a ratio is the median of the ratios within a turn where both ran in each.",
            "- All read the model from a local folder, and run on the same cores, with the same options of the compiler"
            " (`htp_graph_finalization_optimization_mode` 3). Ours runs as `doit build` in a copy of the checkout.",
            "- CPU is the kernel's account of all processes that ended, user and system. The largest process is the"
            " highest high-water mark of any one. All processes is their proportional set size at one moment, sampled"
            f" every {TREE_INTERVAL_S * 1000:.0f} ms; what a stage used is sampled every {INTERVAL_S * 1000:.0f} ms.",
            f"- {OLIVE} shares its cache between its runs, and `CI=1` keeps its telemetry from waiting for a network."
            " Making its environment, several gigabytes with PyTorch, is not in its time.",
            f"- The {PLAIN} compiles all its models in one process, which is fastest and gives other bytes each time.",
            "- With the peers, `per_channel` reaches Gemm and leaves the weights of MatMul per tensor.",
            "- Files are in the page cache: nobody waits for the disk to read; whoever syncs waits for it to write.",
        ]
    )


def _failures(results: Results) -> Iterator[str]:
    failed = results.failures()
    if failed:
        yield "## What failed"
        rows = [(f"{run.model}, {run.case}", run.tool, run.failure.splitlines()[0]) for run in failed]
        yield _table(("", "tool", "why"), rows)


def _stage_lines(results: Results) -> Iterator[str]:
    used = plots.stage_seconds(results.of(str(results.about["model"]), "cold", OURS))
    total = sum(used.values())
    if used:
        yield f"CPU of a cold build: {total:.2f} s, of which"
        yield from (f"  {stage:10} {seconds:6.2f} s {seconds / total:5.0%}" for stage, seconds in used.items())
    if (strict := goals.overhead(results)) is not None:
        yield f"that is {strict:.2f} times calibration inference and QNN's compile calls"


def _times(results: Results, case: str, tool: str, figure: Figure) -> str:
    model = str(results.about["model"])
    ratio = results.ratio(model, case, tool, OURS, figure)
    return "" if tool == OURS or ratio is None else f" ({ratio:.1f}×)"


def _spread(seconds: Sequence[float]) -> str:
    low, high = min(seconds), max(seconds)
    return f"{len(seconds)}: {low:.2f} to {high:.2f} s" if len(seconds) > 1 else "1"


def _mb(size: float | None) -> str:
    return "–" if size is None else f"{size / 1e6:.{0 if size >= 1e7 else 1}f} MB"


def _listed(values: Sequence[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _plot(name: str) -> str:
    return f"![{name}](performance/{name}.svg)"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)
