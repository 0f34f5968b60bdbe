"""Faults put into what is compiled, and whether the ladder sees them: `python -m tests.injected --kept FOLDER`.

Each fault is in one bucket of a model with three: an encoding, a weight or a connection of the QDQ model is changed
behind the CPU's back, that model is compiled, and its context is emulated on all held-out samples, once. What came of
them is kept, and the gates of a build judge it by as many samples as each policy would have run. Small models are taken
to cost what MiniLM costs, as all samples of a small model run anyway.

What all samples don't show is no fault that a build could find. The rates are of those that they show.

A fault follows from its model, the seed and its number alone. What is in FOLDER is not run again, so a run of hours can
be made in pieces, `--minutes 15` each, and policies are judged again without an emulator.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.injected.ladders import ladders
from tests.injected.verdicts import Kept, judge, run_all, table


def main() -> int:
    """1 if the default misses a fault that all samples show, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.injected", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="faults of each model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="go on after what is in it, and add to it")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no other fault after so many")
    parser.add_argument(
        "--minilm", type=Path, metavar="FOLDER", help="model.onnx and tokenizer.json; left out if not given"
    )
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some of them")
    chosen = parser.parse_args()
    known = ladders(chosen.minilm)
    names = chosen.models or [*known]
    if unknown := set(names) - set(known):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory() as work:
        kept = Kept(chosen.kept or Path(work) / "kept")
        made = {name: known[name](Path(work) / name, chosen.seed) for name in names}
        for fault in run_all(made, chosen.count, chosen.seed, kept, Path(work) / "runs", chosen.minutes):
            print(fault, file=sys.stderr, flush=True)
        verdicts = [judge(made[fault.model], fault, kept) for fault in kept.faults() if fault.model in made]
    for name, ladder in made.items():
        print(name, {bucket: len(ladder.order[bucket]) for bucket in ladder.faulty})
    print(table(verdicts, made))
    return int(any(verdict.is_missed for verdict in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
