"""Judge the project on trained models of strangers: `python -m tests.real_models [NAME ...]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.real_models.cases import CASES, named
from tests.real_models.packages import HOME, UnreachableError
from tests.real_models.report import write
from tests.real_models.run_case import run_case
from tests.real_models.sounds import SpeechMissingError


def main() -> int:
    """0 if nothing is wrong, 1 if something shipped wrong, 2 if something could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases, as --list names them; all when left out")
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing")
    parser.add_argument("--short", action="store_true", help="those that CI runs")
    parser.add_argument("--more", default="", metavar="YAML", help="a line for the configs; then nothing is tabled")
    parser.add_argument("--out", type=Path, default=HOME, help="where real-models.md and .json go (%(default)s)")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - {case.name for case in CASES}:
        parser.error(f"no case is named {', '.join(sorted(unknown))}; --list names them")
    cases = [named(name) for name in chosen.names] or [case for case in CASES if case.short or not chosen.short]
    if chosen.list:
        for case in cases:
            print(f"{case.name:22} {'short' if case.short else '     '}  {case.kind}; {case.package.pin}")
        return 0
    wrong = untried = 0
    for case in cases:
        print(f"{case.name} ...", flush=True)
        try:
            outcome = run_case(case, more=chosen.more)
        except (UnreachableError, SpeechMissingError) as error:
            print(f"{case.name}: not tried: {error}", flush=True)
            untried += 1
            continue
        wrong += outcome.result == "wrong"
        figures = ", ".join(f"{rung} {value}" for rung, value in outcome.rungs.items())
        print(f"{case.name}: {outcome.result} ({outcome.status}) {outcome.scheme} {figures}; {outcome.task}")
        print(f"    {outcome.build_s} s, {outcome.steps_built} steps built; task {outcome.task_s} s; {outcome.log}")
        if not chosen.more:
            write(outcome, chosen.out)
    return 1 if wrong else 2 if untried else 0


if __name__ == "__main__":
    sys.exit(main())
