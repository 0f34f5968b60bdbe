"""Runs cases in batches, two at a time, and keeps what became of each in a file that a later run goes on with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any

from onnx import ModelProto

from pipeline.errors import PipelineError
from pipeline.graph.rewrites import apply_all
from pipeline.qnn.compiling import admission
from tests.conformance.batches import X_ELITE, OnChip, opsets, run_batch
from tests.conformance.cases import Case
from tests.conformance.formats import in_format
from tests.conformance.judge import AGREES, Verdict, judge

REFUSED, ON_CPU, NOT_MADE = "refused", "cpu", "not made"
"""What else may become of a case: QNN compiles it not at all, leaves it to the CPU, or the quantizer or onnxruntime's
CPU does not take it, so that nothing can be said."""

_FORMS = ("axes", "layout", "rank")

_BATCH = 240
_WORKERS = 2


@dataclass(frozen=True)
class Outcome:
    """What became of a case as it is, and after every rewrite where that changes it (`rewrites` says which did)."""

    name: str
    operator: str
    number_format: str
    edge: str
    variant: str
    kind: str
    why: str = ""
    count: int = 0
    of: int = 0
    examples: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    after: str = ""
    """The verdict after the rewrites; empty if they changed nothing."""
    versions: str = ""
    """What it was made with; empty in files that are older than this field."""


def versions() -> str:
    """The packages that an outcome depends on: who compiles, who gives the reference, and whose node tests they are."""
    return ", ".join(f"{package} {version(package)}" for package in ("onnxruntime-qnn", "onnxruntime", "onnx"))


class Results:
    """The file of outcomes, one JSON object a line."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "results.jsonl"
        self._lock = Lock()

    def read(self) -> dict[str, Outcome]:
        """By the names of the cases; a line that a killed run left unfinished is passed over."""
        found = {}
        for line in self._path.read_text("utf-8").splitlines() if self._path.exists() else ():
            try:
                fields: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            fields |= {"examples": tuple(fields["examples"]), "rewrites": tuple(fields["rewrites"])}
            found[fields["name"]] = Outcome(**fields)
        return found

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Append these."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(outcome), ensure_ascii=False) + "\n" for outcome in outcomes)


def sweep(cases: Iterable[Case], folder: Path, seconds: float, say: Callable[[str], None]) -> int:
    """Run the cases that have no outcome in `folder` yet, for at most `seconds`; returns how many are left.

    Of cases that are equal but for their names, the first is run.

    Raises:
        PipelineError: `folder` has outcomes of other versions, which would be taken for what these give.
    """
    results = Results(folder)
    done = results.read()
    if others := sorted({outcome.versions for outcome in done.values()} - {"", versions()}):
        raise PipelineError(
            f"{folder} has outcomes of {others[0]}",
            why=f"a sweep with {versions()} would mix them with its own",
            remedy="give another folder, or delete this one",
        )
    todo = [case for case in {case.content: case for case in reversed([*cases])}.values() if case.name not in done]
    batches = list(_batches(todo[::-1]))
    end = time.monotonic() + seconds

    def run(batch: Sequence[Case]) -> int:
        if time.monotonic() > end:
            return len(batch)
        began = time.monotonic()
        outcomes = run_cases(batch, folder / "work")
        results.add(outcomes)
        bad = sum(outcome.kind == "wrong" for outcome in outcomes)
        say(f"{batch[0].name} and {len(batch) - 1} more: {bad} wrong, {time.monotonic() - began:.0f} s")
        return 0

    with ThreadPoolExecutor(_WORKERS) as executor:
        return sum(executor.map(run, batches))


def run_cases(cases: Sequence[Case], work: Path) -> list[Outcome]:
    """What becomes of these, as they are and after the rewrites. Their operator sets must be the same."""
    raw = _verdicts(cases, [_made(case, rewritten=False) for case in cases], work)
    rewritten = [
        _made(case, rewritten=True) if verdict.kind != AGREES else _Made()
        for case, verdict in zip(cases, raw, strict=True)
    ]
    again = [at for at, made in enumerate(rewritten) if made.rewrites]
    after = dict(zip(again, _verdicts([cases[at] for at in again], [rewritten[at] for at in again], work), strict=True))
    return [
        Outcome(
            case.name,
            case.operator,
            case.number_format,
            case.edge,
            case.variant,
            found.kind,
            found.why,
            found.verdict.count,
            found.verdict.of,
            found.verdict.examples,
            rewritten[at].rewrites,
            after[at].kind if at in after else "",
            versions(),
        )
        for at, (case, found) in enumerate(zip(cases, raw, strict=True))
    ]


@dataclass(frozen=True)
class _Made:
    """A case's model in its format, or why there is none."""

    model: ModelProto | None = None
    rewrites: tuple[str, ...] = ()
    why: str = ""


_NONE = Verdict(AGREES)


@dataclass(frozen=True)
class _Found:
    kind: str
    why: str = ""
    verdict: Verdict = _NONE


def _made(case: Case, *, rewritten: bool) -> _Made:
    model = ModelProto()
    model.CopyFrom(case.model)
    rewrites: tuple[str, ...] = ()
    try:
        if rewritten:
            rewrites = tuple(name for name, count in apply_all(model, Path()).items() if count)
            if not rewrites:
                return _Made()
        made = in_format(model, case.feeds, case.number_format, case.ranges)
        admission.check(made, Path(), X_ELITE)
    except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
        kind = REFUSED if isinstance(error, PipelineError) and "crashes" in str(error) else NOT_MADE
        return _Made(why=f"{kind}: {str(error)[:300]}", rewrites=rewrites)
    return _Made(made, rewrites)


def _verdicts(cases: Sequence[Case], made: Sequence[_Made], work: Path) -> list[_Found]:
    models = [each.model for each in made if each.model is not None]
    feeds = [case.feeds for case, each in zip(cases, made, strict=True) if each.model is not None]
    by_opset: dict[Any, list[int]] = {}
    for at, model in enumerate(models):
        by_opset.setdefault(opsets(model), []).append(at)
    on_chip: dict[int, OnChip] = {}
    for members in by_opset.values():
        outcomes = run_batch([models[at] for at in members], [feeds[at] for at in members], work)
        on_chip |= dict(zip(members, outcomes, strict=True))
    ran = iter(range(len(models)))
    return [
        _found(case, each.model, on_chip[next(ran)]) if each.model is not None else _Found(*_split(each.why))
        for case, each in zip(cases, made, strict=True)
    ]


def _split(why: str) -> tuple[str, str]:
    kind, _, reason = why.partition(": ")
    return kind, reason


def _found(case: Case, model: ModelProto, chip: OnChip) -> _Found:
    if "Unable to compile any nodes" in chip.refused:
        return _Found(ON_CPU, case.operator)
    if chip.refused:
        return _Found(REFUSED, chip.refused[:300])
    if not set(case.operator.split("+")).isdisjoint(chip.on_cpu):
        return _Found(ON_CPU, ", ".join(chip.on_cpu))
    try:
        verdict = judge(case.operator, case.number_format, model, case.feeds, chip.outputs)
    except Exception as error:  # onnxruntime has no kernel: nothing to compare with
        return _Found(NOT_MADE, f"no reference: {str(error)[:200]}")
    return _Found(verdict.kind, ", ".join(chip.on_cpu), verdict)


def _batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases that may be compiled together, in their order."""
    for _, alike in groupby(sorted(cases, key=_kind), key=_kind):
        members = list(alike)
        yield from (members[at : at + _BATCH] for at in range(0, len(members), _BATCH))


def _kind(case: Case) -> tuple[Any, ...]:
    """Edges of values come first, if the time should not suffice."""
    return case.edge in _FORMS, case.number_format, opsets(case.model)
