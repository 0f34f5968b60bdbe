"""Faults put into what is compiled, and whether the ladder sees them: `python -m tests.injected_faults --count 200`.

Each fault is in one bucket of a small model with three: an encoding, a weight or a connection of the QDQ model is
changed behind the CPU's back, that model is compiled, and its context is emulated on all held-out samples. The gates
of a build then judge it by all of them, by as many as the budget of each context allowed before it was shared (30
seconds each), by the bucket's share of today's, and by as many as a build runs now: more than its share where that is a
reason for doubt. The models are taken to cost what MiniLM costs, as all samples of a small model run anyway.

What all samples don't show is no fault that a build could find. The rates are of those that they show.

A fault follows from the seed and its number alone. With `--kept FILE` each verdict is kept there as a line of JSON, and
is not looked for again: a run of hours can be made in pieces, `--minutes 15` each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from pipeline.build import gates
from pipeline.config.file import Verification
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import emulate, ingest, verify
from pipeline.errors import PipelineError
from pipeline.graph.accuracy.emulation_budget import is_doubtful, most_in_doubt, shares
from pipeline.graph.accuracy.measuring import measure
from pipeline.graph.cpu import Arrays
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.shapes.buckets import axis_lengths, pad, smallest_bucket
from pipeline.inputs.samples.references import Reference, kept
from pipeline.model import Manifest, StageInput
from tests.support.graphs import attention, convolutions, sentence
from tests.support.on_htp import on_chip
from tests.support.stage_runs import Component, part

DEAREST_S = 3.2
"""Seconds of emulation that a sample of the largest bucket is taken to cost: MiniLM, 128 tokens."""
BUDGET_S, BEFORE_S, BEFORE_MOST = float(Verification.emulator_seconds), 30.0, 16
"""The budget of a component and target by default; that of each context before, and the samples of its estimate."""
LENGTHS = (16, 32, 64)
SAMPLES = 16
"""Held-out samples of each bucket."""
_TOLD = 20
"""Faults after which the table so far is printed."""


@dataclass(frozen=True)
class Fault:
    """What was changed in which bucket: the `kind` is encoding, weight or wiring."""

    number: int
    kind: str
    bucket: str
    change: str


@dataclass(frozen=True)
class Verdict:
    """Whether a fault is seen on all samples, on those of the separate budgets, on those of the share, and on all now.

    `counts` are of the separate budgets and of the share; `refused` is why the compiler did not take it.
    """

    fault: Fault
    exhaustive: bool
    before: bool
    share: bool
    now: bool
    counts: tuple[int, int] = (0, 0)
    refused: str = ""


class Ladder:
    """A model with three buckets, quantized and verified."""

    def __init__(self, root: Path, model: ModelProto, axis: str, call: Callable[[int, int], Arrays]) -> None:
        self.root = root
        component = Component(root / "component", model, {str(size): {axis: size} for size in LENGTHS})
        lengths = {size: range(size // 2 + 1, size + 1) for size in LENGTHS}
        calibration = [call(length, length) for sizes in lengths.values() for length in [*sizes][-6:]]
        held_out = [
            call([*sizes][(7 * number) % len(sizes)], 1000 * size + number)
            for size, sizes in lengths.items()
            for number in range(SAMPLES)
        ]
        quantized = component.quantize_all(component.calibrate(calibration))
        self.models = {name: part(quantized, name) for name in component.buckets}
        samples = component.samples(held_out)
        self.verified = {name: component.verify(name, samples, model) for name, model in self.models.items()}
        self.facts = {name: verify.Facts.from_json(each.facts) for name, each in self.verified.items()}
        self.padded = dict(self._padded(component, held_out))
        self.costs = {name: DEAREST_S * int(name) / max(LENGTHS) for name in self.facts}

    def _padded(self, component: Component, held_out: Sequence[Arrays]) -> Iterator[tuple[str, list[Arrays]]]:
        inputs = ingest.Facts.from_json(component.ingest.facts).inputs
        for name, axes in component.buckets.items():
            mine = [feed for feed in held_out if smallest_bucket(axis_lengths(feed, inputs), component.buckets) == name]
            yield name, [pad(feed, inputs, axes, {}) for feed in mine]

    def now(self, bucket: str) -> int:
        """Samples of a bucket that a build runs."""
        return shares(self._bases(), BUDGET_S)[bucket]

    def in_doubt(self, bucket: str) -> int:
        """Samples of a bucket that a build runs whose first ones are a reason for it."""
        return most_in_doubt(self._bases()[bucket], BUDGET_S)

    def _bases(self) -> dict[str, verify.Basis]:
        return {
            name: verify.Basis(facts.samples, facts.outputs, self.costs[name]) for name, facts in self.facts.items()
        }

    def before(self, bucket: str) -> int:
        """Samples of a bucket that an idle machine ran when each context had a budget of its own."""
        fit = int(BEFORE_S / self.costs[bucket])
        return min(self.facts[bucket].samples, max(min(fit, BEFORE_MOST), fit - 1))

    def references(self, bucket: str) -> Mapping[int, Reference]:
        """What the CPU made of each sample."""
        outputs = sorted({subject.output for subject in self.facts[bucket].subjects.values()})
        return kept(self.verified[bucket].folder, range(self.facts[bucket].samples), outputs, ())


def judged(ladder: Ladder, fault: Fault, model: ModelProto, work: Path) -> Verdict:
    """Compile what has the fault, emulate it on all samples, and have the gates judge parts of them."""
    work.mkdir(parents=True)
    onnx.save(model, work / MODEL)
    bucket = fault.bucket
    counts = ladder.before(bucket), ladder.now(bucket)
    try:
        ran = on_chip(StageInput(work, {}, {}), ladder.padded[fault.bucket], work / "context")
    except (PipelineError, BrokenProcessPool) as error:  # QNN refuses it, or ends its process
        return Verdict(fault, exhaustive=True, before=True, share=True, now=True, counts=counts, refused=str(error))
    facts, known = ladder.facts[fault.bucket], ladder.references(fault.bucket)

    def measured(most: int) -> emulate.Facts:
        places = sorted(facts.order[:most])
        names = [f"sample {place}" for place in places]
        truth, above = [known[place].truth for place in places], [known[place].above for place in places]
        made = [_valid(ran.outputs[place], known[place]) for place in places]
        return emulate.Facts(
            samples=len(places),
            of=facts.samples,
            rungs={"compile": measure(facts.subjects, names, above, made)},
            outputs=measure(facts.subjects, names, truth, made, spans=facts.spans),
            score=None,
            subjects=facts.subjects,
        )

    def seen(most: int) -> bool:
        manifest = Manifest("emulate", "", {}, measured(most).to_json())
        return gates.check("net/net", manifest, Thresholds()) is not None

    before, share = counts
    doubtful = is_doubtful(measured(share).rungs["compile"], facts.rungs["quantization"])
    now = max(share, ladder.in_doubt(bucket)) if doubtful else share
    return Verdict(fault, seen(facts.samples), seen(before), seen(share), seen(now), counts)


def _valid(outputs: Arrays, reference: Reference) -> dict[str, np.ndarray]:
    return {name: outputs[name][tuple(map(slice, value.shape))] for name, value in reference.truth.items()}


def inject(model: ModelProto, kind: str, rng: random.Random) -> str:
    """Put one fault into a QDQ model with its weights inside; what was changed."""
    return {"encoding": _encoding, "weight": _weight, "wiring": _wiring}[kind](model, rng)


def _encoding(model: ModelProto, rng: random.Random) -> str:
    """Another scale or zero point: of a value in both directions, of one channel of a weight, or of one direction."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [
        node
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[1] in constants
    ]
    node = rng.choice(nodes)
    what = rng.choice([1, 1, 2] if len(node.input) > 2 else [1])
    tensor = TensorProto()
    tensor.CopyFrom(constants[node.input[what]])
    array = numpy_helper.to_array(tensor).copy()
    places = array.reshape(-1)
    place = rng.randrange(places.size)
    if what == 1:
        factor = rng.choice([0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 8.0])
        places[place] *= factor
        told = f"scale x {factor}"
    else:
        span = np.iinfo(array.dtype)
        step = rng.choice([span.max // 64, span.max // 16, span.max // 4])
        places[place] = places[place] - step if int(places[place]) > span.max // 2 else places[place] + step
        told = f"zero point by {step}"
    tensor.CopyFrom(numpy_helper.from_array(array, f"{tensor.name}_fault"))
    model.graph.initializer.append(tensor)
    alike = [
        other
        for other in model.graph.node
        if other.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[what] in other.input
    ]
    both = rng.random() < 0.75
    for other in alike if both else [node]:
        other.input[what] = tensor.name
    return f"{told} of {node.input[0]}, place {place}{'' if both else ', one direction'}"


def _weight(model: ModelProto, rng: random.Random) -> str:
    """Other integers in a weight: bits, rows, columns, or rows that changed places."""
    stored = {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in stored and len(tensor.dims) > 1]
    tensor = rng.choice(weights)
    array = numpy_helper.to_array(tensor).copy()
    rows = array.reshape(array.shape[0], -1)
    how = rng.choice(["bits", "bits", "row", "column", "rows"])
    share = rng.choice([0.02, 0.05, 0.1, 0.3])
    some = [rng.sample(range(size), max(2, int(size * share)) if size > 1 else 1) for size in rows.shape]
    if how == "bits":
        for _ in range(max(1, int(rows.size * share))):
            rows[rng.randrange(len(rows)), rng.randrange(rows.shape[1])] ^= 1 << rng.randrange(8)
    elif how == "row":
        rows[some[0]] = rows[some[0], :1]
    elif how == "column":
        rows[:, some[1]] = rows[:1, some[1]]
    else:
        rows[some[0]] = rows[some[0][::-1]]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{how} of {tensor.name}, {share:.0%}"


def _wiring(model: ModelProto, rng: random.Random) -> str:
    """A node reads another value of the same shape and encoding, or its inputs changed places."""
    graph = model.graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
    }
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and shapes.get(node.input[0]):
            shapes.setdefault(node.output[0], shapes[node.input[0]])
    order = {name: place for place, node in enumerate(graph.node) for name in node.output}
    reads = [
        (node, place)
        for node in graph.node
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear")
        for place, name in enumerate(node.input)
        if name in order and shapes.get(name)
    ]
    node, place = rng.choice(reads)
    name = node.input[place]
    others = [other for other in order if other != name and order[other] < order[name] and _fits(other, name, shapes)]
    if len(node.input) > 1 and (not others or rng.random() < 0.3):
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return f"inputs of {node.name} changed places"
    node.input[place] = rng.choice(others or [name])
    return f"{node.name} reads {node.input[place]} for {name}"


def _fits(other: str, name: str, shapes: Mapping[str, Sequence[int]]) -> bool:
    return shapes.get(other) == shapes[name]


def judge_all(count: int, seed: int, work: Path, known: Collection[int] = ()) -> Iterator[Verdict]:
    """The verdicts on `count` faults but those `known`: by turns of both models and of all buckets."""
    numbers = np.random.default_rng(seed)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        ladders = [
            Ladder(work / "attention", attention(), "sequence", lambda size, number: sentence(size, number)),
            Ladder(work / "convolutions", convolutions(), "frames", lambda size, _: _sound(size, numbers)),
        ]
    for number in (number for number in range(count) if number not in known):
        rng = random.Random(f"{seed}/{number}")
        ladder = ladders[number % len(ladders)]
        bucket = str(LENGTHS[number // len(ladders) % len(LENGTHS)])
        kind = rng.choice(["encoding", "weight", "wiring"])
        model = onnx.load(ladder.models[bucket].folder / MODEL)
        change = inject(model, kind, rng)
        yield judged(ladder, Fault(number, kind, bucket, change), model, work / str(number))


def _sound(size: int, numbers: np.random.Generator) -> Arrays:
    return {"x": numbers.normal(0, numbers.uniform(0.3, 1.5), (1, 8, size)).astype(np.float32)}


def table(verdicts: Sequence[Verdict]) -> str:
    """How many faults the compiler refused, and of the others how many were seen, by kind."""
    lines = [f"{'':10} {'faults':>7} {'refused':>8} {'shown':>6} {'before':>7} {'share':>6} {'now':>5}"]
    for kind in ("encoding", "weight", "wiring", "all"):
        mine = [each for each in verdicts if kind in (each.fault.kind, "all")]
        ran = [each for each in mine if not each.refused]
        counts = Counter({"shown": 0})
        for each in ran:
            counts.update(shown=each.exhaustive, before=each.before, share=each.share, now=each.now)
        lines.append(
            f"{kind:10} {len(mine):7} {len(mine) - len(ran):8} {counts['shown']:6} {counts['before']:7}"
            f" {counts['share']:6} {counts['now']:5}"
        )
    return "\n".join(lines)


def read(kept: Path | None) -> list[Verdict]:
    """The verdicts of earlier runs."""
    lines = kept.read_text("utf-8").splitlines() if kept is not None and kept.exists() else []
    found = map(json.loads, lines)
    return [Verdict(**{**each, "fault": Fault(**each["fault"]), "counts": tuple(each["counts"])}) for each in found]


def keep(verdict: Verdict, kept: Path) -> None:
    """Add a verdict to those that later runs know."""
    with kept.open("a", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(asdict(verdict))}\n")


def main() -> int:
    """0 if no fault is missed now that was seen before."""
    parser = argparse.ArgumentParser(prog="python -m tests.injected_faults", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="go on after the verdicts in it, and add to them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no other fault after so many")
    chosen = parser.parse_args()
    until = time.monotonic() + 60 * chosen.minutes
    verdicts = read(chosen.kept)
    with tempfile.TemporaryDirectory() as work:
        known = {verdict.fault.number for verdict in verdicts}
        for verdict in judge_all(chosen.count, chosen.seed, Path(work), known):
            verdicts.append(verdict)
            if chosen.kept is not None:
                keep(verdict, chosen.kept)
            if verdict.exhaustive != verdict.now or verdict.before != verdict.now:
                print(verdict, flush=True)
            if len(verdicts) % _TOLD == 0 and len(verdicts) < chosen.count:
                print(table(verdicts), flush=True)
            if time.monotonic() > until:
                break
    counts = sorted({(int(each.fault.bucket), each.counts) for each in verdicts})
    print(", ".join(f"bucket {name}: {now} samples, {before} before" for name, (before, now) in counts))
    print(Counter(each.refused.partition("\n")[0] for each in verdicts if each.refused).most_common(5))
    print(f"{len(verdicts)} of {chosen.count} faults\n{table(verdicts)}")
    return int(any(each.before and not each.now for each in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
