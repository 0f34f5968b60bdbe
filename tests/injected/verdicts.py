"""Runs faults, keeps what came of them, and has every policy judge it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from pipeline.graph.files.model_file import MODEL
from pipeline.inputs.samples.sample_set import write_npz
from tests.injected.inject import KINDS, Fault, inject
from tests.injected.ladders import Ladder, Outputs
from tests.injected.policies import DEFAULT, POLICIES, Policy, is_seen


@dataclass(frozen=True)
class Verdict:
    """Whether all samples show a fault, and the names of the policies that see it."""

    fault: Fault
    shown: bool
    seen: frozenset[str]

    @property
    def is_missed(self) -> bool:
        """Whether the default does not see what all samples show."""
        return self.shown and not self.fault.refused and DEFAULT.name not in self.seen


class Kept:
    """A folder with a line of JSON for each fault, and the outputs of its samples."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._lines = folder, folder / "faults.jsonl"

    def faults(self) -> list[Fault]:
        """All that were run."""
        lines = self._lines.read_text("utf-8").splitlines() if self._lines.exists() else []
        return [Fault(**json.loads(line)) for line in lines]

    def add(self, fault: Fault, ran: Mapping[int, Outputs]) -> None:
        """Keep a fault, and its outputs by the places of its samples."""
        arrays = {f"{place}/{name}": array for place, outputs in ran.items() for name, array in outputs.items()}
        write_npz(self._folder / f"{fault.name}.npz", arrays)
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write(f"{json.dumps(asdict(fault))}\n")

    def ran(self, fault: Fault) -> dict[int, Outputs]:
        """The outputs of a fault."""
        found: dict[int, Outputs] = {}
        with np.load(self._folder / f"{fault.name}.npz", allow_pickle=False) as arrays:
            for key in arrays.files:
                place, _, name = key.partition("/")
                found.setdefault(int(place), {})[name] = arrays[key]
        return found


def run_all(
    ladders: Mapping[str, Ladder], count: int, seed: int, kept: Kept, work: Path, minutes: float = float("inf")
) -> Iterator[Fault]:
    """Run `count` faults of each model but those that are kept, by turns of models and buckets.

    Raises:
        ValueError: the gates find something in a model without any fault: what they said of faults would mean nothing.
    """
    until = time.monotonic() + 60 * minutes
    known = {fault.name for fault in kept.faults()}
    for name, ladder in ladders.items():
        if all(fault.model != name for fault in kept.faults()):
            _check_sound(name, ladder, work)
    for number in range(count):
        for name, ladder in ladders.items():
            fault, model = _injected(name, ladder, seed, number)
            if fault.name in known:
                continue
            if time.monotonic() > until:
                return
            ran = ladder.ran(fault.bucket, model, work / fault.name)
            done = replace(fault, refused=ran) if isinstance(ran, str) else fault
            kept.add(done, {} if isinstance(ran, str) else ran)
            yield done


def _check_sound(name: str, ladder: Ladder, work: Path) -> None:
    for bucket in ladder.faulty:
        ran = ladder.ran(bucket, onnx.load(ladder.models[bucket].folder / MODEL), work / f"{name}-sound-{bucket}")
        if isinstance(ran, str) or is_seen(ladder, bucket, ran, [*ran]):
            raise ValueError(
                f"bucket {bucket} of {name} misses a gate without a fault: {ran if isinstance(ran, str) else ''}"
            )


def _injected(name: str, ladder: Ladder, seed: int, number: int) -> tuple[Fault, onnx.ModelProto]:
    rng = random.Random(f"{seed}/{name}/{number}")
    bucket, kind = ladder.faulty[number % len(ladder.faulty)], rng.choice(KINDS)
    model = onnx.load(ladder.models[bucket].folder / MODEL)
    return Fault(name, seed, number, kind, bucket, inject(model, kind, rng)), model


def judge(ladder: Ladder, fault: Fault, kept: Kept, policies: Sequence[Policy] = (*POLICIES, DEFAULT)) -> Verdict:
    """What each policy makes of a fault that was run."""
    if fault.refused:
        return Verdict(fault, shown=True, seen=frozenset(policy.name for policy in policies))
    ran = kept.ran(fault)
    seen = {policy.name for policy in policies if policy.sees(ladder, fault.bucket, ran)}
    return Verdict(fault, is_seen(ladder, fault.bucket, ran, [*ran]), frozenset(seen))


def table(verdicts: Sequence[Verdict], ladders: Mapping[str, Ladder]) -> str:
    """How many faults the compiler refused, and how many of those that all samples show each policy sees.

    By model and by kind.
    """
    columns = {name: [each for each in verdicts if each.fault.model == name] for name in ladders}
    columns |= {kind: [each for each in verdicts if each.fault.kind == kind] for kind in KINDS}
    columns["all"] = [*verdicts]
    rows = {"faults": {name: len(each) for name, each in columns.items()}}
    ran = {name: [each for each in mine if not each.fault.refused] for name, mine in columns.items()}
    rows["refused"] = {name: rows["faults"][name] - len(ran[name]) for name in columns}
    rows["shown by all samples"] = {name: sum(each.shown for each in mine) for name, mine in ran.items()}
    for policy in (*POLICIES, DEFAULT):
        rows[policy.name] = {
            name: sum(each.shown and policy.name in each.seen for each in mine) for name, mine in ran.items()
        }
    lines = ["| | " + " | ".join(columns) + " | samples |", "|---" * (len(columns) + 2) + "|"]
    counts = {policy.name: _counts(policy, ladders) for policy in (*POLICIES, DEFAULT)}
    for row, figures in rows.items():
        cells = [str(figures[name]) for name in columns]
        lines.append(f"| {row} | {' | '.join(cells)} | {counts.get(row, '')} |")
    return "\n".join(lines)


def _counts(policy: Policy, ladders: Mapping[str, Ladder]) -> str:
    """The samples of each bucket that a fault may be in."""
    found = {name: [policy.count(ladder, bucket) for bucket in ladder.faulty] for name, ladder in ladders.items()}
    return "; ".join(f"{name} {' '.join(map(str, counts))}" for name, counts in found.items())
