"""Small random ONNX files, read by us and by onnxruntime: `python -m tests.fuzz.differential --count 2000`.

Each file goes through ingest and shape, and what these make of it must give what onnxruntime (nothing optimized) gives
for the file itself; or it is refused. A file has a kind, a number and a seed, and is the same for the same three.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import numpy as np

from pipeline.errors import PipelineError
from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.fuzz.forms.functions import with_functions
from tests.fuzz.forms.fused import FUSED_FORMS
from tests.fuzz.forms.graphs import Arrays, Case, Graph
from tests.fuzz.forms.quantized import QUANTIZED_FORMS
from tests.fuzz.forms.standard import STANDARD_FORMS
from tests.support.node_tests import static

FORK = multiprocessing.get_context("fork")
OPSETS = range(7, 25)
EQUAL, REFUSED, UNREAD = "equal", "refused", "not read by onnxruntime"
"""The outcomes that are right. The third: onnxruntime refuses the file, and we don't."""


@dataclass(frozen=True)
class Outcome:
    """What became of a file: one of those above, or the difference; and the reason of a refusal."""

    said: str
    forms: str
    why: str = ""

    @property
    def is_right(self) -> bool:
        """Whether we gave what onnxruntime gave, or refused."""
        return self.said in (EQUAL, REFUSED, UNREAD)


def _standard(random: Random) -> Case:
    graph = Graph(random, random.choice(OPSETS))
    for _ in range(random.randint(1, 3)):
        graph.grow(STANDARD_FORMS)
    return graph.case()


def _quantized(random: Random) -> Case:
    graph = Graph(random, random.choice((13, 17, 19, 21, 23)))
    graph.grow(QUANTIZED_FORMS)
    return graph.case()


def _fused(random: Random) -> Case:
    graph = Graph(random, random.choice((13, 15, 17, 18, 21, 23)))
    graph.grow(FUSED_FORMS)
    return graph.case()


def _functions(random: Random) -> Case:
    graph = Graph(random, random.randint(13, 24))
    for _ in range(random.randint(1, 2)):
        graph.grow(STANDARD_FORMS if random.random() < 0.8 else FUSED_FORMS)
    return with_functions(graph.case(), random)


KINDS: Mapping[str, Callable[[Random], Case]] = {
    "functions": _functions,
    "fused": _fused,
    "opsets": _standard,
    "quantized": _quantized,
}


def case_of(kind: str, number: int, seed: int) -> Case:
    """The file of this number."""
    return KINDS[kind](Random(f"{kind} {seed} {number}"))


def judge(case: Case, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Read a file both ways; `folder` is used again and again. `tell` hears what is done."""
    wanted: list[np.ndarray] | None = None
    unread = ""
    try:
        wanted = _run(case, None, case.feeds)
    except Exception as error:  # onnxruntime's classes have no common base
        unread = str(error)[:400]
    tell("reading it")
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            made = static(case.model, case.feeds, folder)
    except PipelineError as error:
        return Outcome(REFUSED, case.forms, ("read" if wanted else "unread") + f": {error.what}; {error.why}")
    except Exception:
        return Outcome("not a refusal: " + traceback.format_exc().strip()[-600:], case.forms)
    tell("running what was made")
    if wanted is None:
        return Outcome(UNREAD, case.forms, unread)
    try:
        found = _run(case, made.folder, case.feeds)
    except Exception as error:
        return Outcome(f"what was made can't be run: {error}", case.forms)
    for number, (one, other, step) in enumerate(zip(wanted, found, case.steps, strict=True)):
        if difference := _difference(one, other, step):
            return Outcome(f"output {number}: {difference}", case.forms)
    return Outcome(EQUAL, case.forms)


def _run(case: Case, folder: Path | None, feeds: Arrays) -> list[np.ndarray]:
    model = case.model if folder is None else load_graph(folder / MODEL)
    session = unoptimized_session(model, folder or Path())
    names = {value.name for value in session.get_inputs()}
    results: list[np.ndarray] = session.run(None, {name: each for name, each in feeds.items() if name in names})
    return results


def _difference(wanted: np.ndarray, found: np.ndarray, step: float) -> str:
    """How two outputs differ by more than float32 rounds in a few sums and `step`, or nothing."""
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return f"{found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
    if wanted.dtype.kind != "f":
        apart = np.abs(wanted.astype(np.float64) - found) > step if wanted.dtype.kind in "iu" else wanted != found
    else:
        finite = np.isfinite(wanted)
        size = max(1.0, float(np.abs(wanted[finite]).max(initial=0)))
        least = 4e-3 if wanted.dtype == np.float16 else 2e-5
        apart = ~np.isclose(found, wanted, rtol=0, atol=least * size + step, equal_nan=True)
    if not apart.any():
        return ""
    return f"{found[apart].ravel()[:4]}, not {wanted[apart].ravel()[:4]}, at {int(apart.sum())} of {apart.size}"


def outcomes(kind: str, numbers: Iterable[int], seed: int, folder: Path) -> Iterator[tuple[int, Outcome]]:
    """What becomes of the files of these numbers, read in child processes: native code may end one."""
    left = list(numbers)
    while left:
        ours, theirs = FORK.Pipe()
        child = FORK.Process(target=_judge_all, args=(kind, left, seed, folder, theirs), daemon=True)
        child.start()
        theirs.close()
        stage = ""
        with contextlib.suppress(EOFError):
            while left:
                said = ours.recv()
                if isinstance(said, str):
                    stage = said
                else:
                    yield left.pop(0), said
        child.join()
        if left:
            what = UNREAD if stage == "file" else f"the process ended with {child.exitcode} while {stage}"
            yield left.pop(0), Outcome(what, "", f"it ends the process with {child.exitcode}")


def _judge_all(kind: str, numbers: Sequence[int], seed: int, folder: Path, to: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # onnxruntime says there what it raises as well
    for number in numbers:
        to.send("file")
        try:
            case = case_of(kind, number, seed)
        except Exception:
            to.send(Outcome("no file: " + traceback.format_exc()[-600:], ""))
            continue
        to.send(judge(case, folder, to.send))


def main() -> int:
    """Try files, print the figures and what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="files of each kind")
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--refusals", action="store_true", help="print the reasons of refusals, with their number")
    options = parser.parse_args()
    if unknown := {*options.kinds.split(",")} - {*KINDS}:
        parser.error(f"there are no kinds {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds.split(","):
            said: Counter[str] = Counter()
            reasons: Counter[str] = Counter()
            numbers = range(options.first, options.first + options.count)
            for number, outcome in outcomes(kind, numbers, options.seed, Path(folder)):
                said[outcome.said if outcome.is_right else "different"] += 1
                if outcome.said in (REFUSED, UNREAD):
                    reasons[re.sub(r"'[^']*'|[0-9]+", "_", f"{outcome.said}: {outcome.why or outcome.forms}")] += 1
                if not outcome.is_right:
                    print(f"{kind} {number}: {outcome.forms}: {outcome.said}", flush=True)
            print(f"{kind}: {options.count} files: " + ", ".join(f"{n} {what}" for what, n in said.most_common()))
            bad += said["different"]
            for reason, count in reasons.most_common() if options.refusals else ():
                print(f"  {count:4d}  {reason}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
