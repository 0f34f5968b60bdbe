"""The benchmark's command line: `uv run python -m tests.bench [SECTION ...]`."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench import machine, models, report
from tests.bench.peers import olive
from tests.bench.results import Results, load, save
from tests.bench.suite import OF_TINY_MODELS, SECTIONS, Bench

DOCS = models.ROOT / "docs"
CORES = 2


def main() -> int:
    """Measure, save, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all if left out")
    parser.add_argument("--minilm", type=Path, metavar="FOLDER", help="model.onnx and tokenizer.json; else the hub's")
    parser.add_argument("--repeats", type=int, default=3, help="turns of what is compared")
    parser.add_argument(
        "--quick", action="store_true", help="try it: a tiny model, one turn, results in the work folder"
    )
    parser.add_argument("--no-olive", dest="olive", action="store_false", help="leave Olive out")
    parser.add_argument("--work", type=Path, default=models.ROOT / ".build" / "bench", help="where the tools run")
    parser.add_argument("--checkout", type=Path, default=models.ROOT, help="measure another checkout of this pipeline")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what was measured")
    asked = parser.parse_args()
    if unknown := set(asked.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")

    work, docs = asked.work.resolve(), asked.work.resolve() if asked.quick else DOCS
    path = docs / "performance.json"
    if asked.report and not path.exists():
        parser.error(f"nothing was measured yet: there is no {path}")
    results = load(path) if path.exists() else Results({})
    if not asked.report:
        _measure(asked, results, work, path)
    report.write(results, docs)
    print(report.summary(results))
    print(f"written: {docs / 'performance.md'}")
    return 0


def _measure(asked: argparse.Namespace, results: Results, work: Path, path: Path) -> None:
    machine.use_cores(CORES)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users have bytecode: without, each process compiles its modules
    work.mkdir(parents=True, exist_ok=True)
    alone = {*(asked.sections or SECTIONS)} <= OF_TINY_MODELS
    small = asked.quick or alone
    model = models.stand_in(work / "stand-in") if small else models.minilm(asked.minilm, work / "minilm")
    repeats = 1 if asked.quick else asked.repeats
    bench = Bench(results, path, work, asked.checkout.resolve(), model, repeats, asked.olive)
    about = {
        "machine": machine.describe(),
        "versions": machine.versions() | {"olive-ai": olive.version()},
        "model": model.name,
        "model_bytes": model.file.stat().st_size,
        "buckets": list(model.buckets),
    }
    sections = results.about.get("sections", {})
    results.about = {**about, **results.about, **({} if alone else about), "sections": sections}
    for name in asked.sections or SECTIONS:
        if asked.quick and name == "large":
            continue
        started = time.perf_counter()
        print(f"-- {name}: {SECTIONS[name].__doc__}", flush=True)
        about_section = {"date": _today(), "commit": _commit(bench.checkout)}
        loads = [os.getloadavg()[0]]
        SECTIONS[name](bench)
        loads.append(os.getloadavg()[0])
        results.about["sections"][name] = {**about_section, "load": [round(load, 1) for load in loads]}
        print(f"-- {name} took {time.perf_counter() - started:.0f} s", flush=True)
    save(results, path)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _commit(checkout: Path) -> str:
    """The commit of a checkout, with a `+` if files differ from it; `unknown` without git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=checkout,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
