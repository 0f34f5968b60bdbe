"""Small random graphs with edge values, through the ladder and past it: `python -m tests.random_graphs --count 200`.

Each graph is quantized or left in float16, compiled and emulated, and judged as a build judges it, on as many samples
as a build would run. Then all of its samples are emulated. It is wrong if the build says "passed" and all samples say
otherwise.

Several graphs are one model while they are compiled and emulated, as starting QNN costs more than any of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.config.thresholds import Thresholds
from pipeline.contracts.measures import Figures, Measured, Subject
from pipeline.contracts.scheme import Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.errors import PipelineError
from pipeline.graph.accuracy.emulation.sample_order import sample_order
from pipeline.graph.accuracy.figures.accuracy import Outputs
from pipeline.graph.accuracy.figures.edges import criteria
from pipeline.graph.accuracy.figures.measuring import measure, spans_of
from pipeline.graph.accuracy.figures.output_structure import makeup_of_outputs
from pipeline.graph.accuracy.figures.subjects import choose
from pipeline.graph.accuracy.verdict import TOTAL, shortfalls
from pipeline.graph.cpu import Arrays, load_session, run
from pipeline.graph.files.model_file import save_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.quantizer import quantize
from pipeline.graph.rewrites import REWRITES
from pipeline.qnn.child import compile_apart, run_apart
from tests.conformance.batches import merged

X_ELITE = HtpTarget(60, 73, 8)
FORMATS = ("fp16", "uint16", "uint8")
EDGES = (0.0, -0.0, 1e-9, -2e-8, 6e-8, 1e-4, -1e-4, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 16.0, -16.0, 200.0, -900.0)
"""Values at which operators change what they do, or float16 does."""

_WIDTH = 6
_CALIBRATED, _HELD_OUT = 16, 64
_UNARY = (
    "Abs", "Ceil", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg",
    "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt", "Square", "Tanh",
)  # fmt: skip
_BINARY = ("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub")
_OTHER = ("Clip", "Gemm", "LayerNorm", "ReduceMax", "ReduceMean", "ReduceSum", "Where")


@dataclass(frozen=True)
class Case:
    """A random graph, samples to calibrate and to measure with, and a number format."""

    number: int
    form: str
    model: ModelProto
    calibration: Sequence[Arrays]
    held_out: Sequence[Arrays]


@dataclass(frozen=True)
class Outcome:
    """What the ladder says of a graph on the samples that a build would run, and on all; empty for passed."""

    number: int
    form: str
    ops: str
    ran: int
    of: int
    build: str
    exhaustive: str

    @property
    def is_wrong(self) -> bool:
        """Whether a build would ship what all samples refuse."""
        return not self.build and bool(self.exhaustive)


class _Graph:
    """A graph that grows node by node."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.values = ["x"]

    def constant(self, value: float | NDArray[Any]) -> str:
        name = f"c{len(self.constants)}"
        array = value if isinstance(value, np.ndarray) else np.array(value, np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"{op}_{len(self.nodes)}", **attributes))
        return name

    def any(self) -> str:
        """A value, a late one more often than not."""
        return self.values[int(self.rng.triangular(0, len(self.values) - 1, len(self.values) - 0.99))]

    def grow(self, op: str) -> None:
        given = self.any()
        weights = self.rng.normal(size=_WIDTH).astype(np.float32)
        weights[self.rng.random(_WIDTH) < 0.2] *= 1e-4  # near-dead channels
        if op == "Gelu":
            half, inverse = self.constant(0.5), self.constant(2**-0.5)
            one = self.constant(1.0)
            erf = self.node("Erf", self.node("Mul", given, inverse))
            made = self.node("Mul", self.node("Mul", given, self.node("Add", erf, one)), half)
        elif op == "Square":
            made = self.node("Pow", given, self.constant(2))
        elif op == "Sqrt":
            made = self.node("Sqrt", self.node("Pow", given, self.constant(2)))
        elif op in ("Log", "Reciprocal"):
            floor = self.constant(self.rng.choice([1e-10, 1e-5, 1e-2]))
            made = self.node(op, self.node("Clip", given, floor))
        elif op == "Exp":
            made = self.node("Exp", self.node("Clip", given, "", self.constant(8)))
        elif op in _UNARY:
            made = self.node(op, given, **({"axis": -1} if op == "Softmax" else {}))
        elif op == "Div":
            square = self.node("Mul", *[self.any()] * 2)
            made = self.node("Div", given, self.node("Add", square, self.constant(0.1)))
        elif op == "Pow":
            made = self.node("Pow", given, self.constant(self.rng.choice([2, 3])))
        elif op in _BINARY:
            made = self.node(op, given, self.any() if self.rng.random() < 0.6 else self.constant(weights))
        else:
            made = self._other(op, given, weights)
        self.values.append(made)

    def _other(self, op: str, given: str, weights: NDArray[Any]) -> str:
        match op:
            case "Clip":
                low, high = sorted(self.rng.choice([-3.0, -1.0, 0.0, 1.0, 6.0], 2, replace=False))
                return self.node("Clip", given, self.constant(low), self.constant(high))
            case "Gemm":
                matrix = (self.rng.normal(size=(_WIDTH, _WIDTH)) * np.abs(weights)).astype(np.float32)
                return self.node("Gemm", given, self.constant(matrix), self.constant(weights))
            case "LayerNorm":
                return self.node("LayerNormalization", given, self.constant(weights), axis=-1, epsilon=1e-5)
            case "Where":
                asked = self.node("Greater", given, self.constant(self.rng.choice([0.0, 0.5])))
                return self.node("Where", asked, self.any(), self.constant(weights))
        axes = {"axes": [-1]} if op != "ReduceSum" else {}
        more = [self.constant(np.array([-1], np.int64))] if op == "ReduceSum" else []
        return self.node("Add", given, self.node(op, given, *more, keepdims=1, **axes))


def random_case(number: int, seed: int) -> Case:
    """The graph of this number; the same for the same seed."""
    rng = np.random.default_rng([seed, number])
    graph = _Graph(rng)
    for op in rng.choice((*_UNARY, *_BINARY, *_OTHER), int(rng.integers(2, 7))):
        graph.grow(str(op))
    shape = [4, _WIDTH]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(graph.values[-1], TensorProto.FLOAT, shape)],
            graph.constants,
        ),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    calibration, held_out = ([_sample(rng, shape) for _ in range(count)] for count in (_CALIBRATED, _HELD_OUT))
    return Case(number, FORMATS[number % len(FORMATS)], model, calibration, held_out)


def _sample(rng: np.random.Generator, shape: Sequence[int]) -> Arrays:
    """Normal numbers, of which some samples have a few at an edge."""
    array = rng.normal(size=shape) * rng.choice([0.01, 1.0, 4.0])
    if rng.random() < 0.2:
        array[rng.random(shape) < 0.2] = rng.choice(EDGES)
    return {"x": array.astype(np.float32)}


def judge_batch(cases: Sequence[Case], most: int, work: Path) -> Iterator[Outcome]:
    """The outcome of each case; a batch that QNN refuses is cut in halves until the one that it refuses is alone."""
    prepared: list[_Prepared] = []
    for case in cases:
        try:
            prepared.append(_prepare(case, work / f"case_{case.number}"))
        except PipelineError as error:
            yield _outcome(case, 0, f"refused: {error.what}", "")
    if prepared:
        yield from _judged(prepared, most, work)


@dataclass(frozen=True)
class _Prepared:
    """A case whose model was rewritten and quantized, with the outputs of the original and of that on the CPU."""

    case: Case
    model: ModelProto
    truth: list[Outputs]
    above: list[Outputs]
    subjects: Mapping[str, Subject]
    order: list[int]
    refused: str


def _prepare(case: Case, folder: Path) -> _Prepared:
    folder.mkdir(parents=True)
    save_graph(case.model, folder / "original.onnx")
    truth = _on_cpu(folder / "original.onnx", case.held_out)
    subjects = choose(truth, makeup_of_outputs(GraphIndex(case.model, folder)), {}, "")
    model = ModelProto()
    model.CopyFrom(case.model)
    for rewrite in REWRITES:
        rewrite.apply(model, folder)
    model = onnx.shape_inference.infer_shapes(model)
    save_graph(model, folder / "rewritten.onnx")
    rungs = {"rewrite": _on_cpu(folder / "rewritten.onnx", case.held_out)}
    observer = Observer(folder / "rewritten.onnx")
    touched = [criteria(observer, feed) for feed in case.held_out]
    if case.form != "fp16":
        model = quantize(
            model, folder, _ranges(observer, case.calibration), Scheme(case.form, "uint8", per_channel=True)
        ).model
        save_graph(model, folder / "quantized.onnx")
        rungs["quantization"] = _on_cpu(folder / "quantized.onnx", case.held_out)
    names, last, refused = _names(case), truth, ""
    total: Measured = {}
    for rung, outputs in rungs.items():
        refused = refused or _said(rung, measure(subjects, names, last, outputs), subjects)
        last, total = outputs, measure(subjects, names, truth, outputs)
    worst = [names.index(figures.worst_sample) for figures in total.values()]
    each = [measure(subjects, [name], [true], [got]) for name, true, got in zip(names, truth, last, strict=True)]
    errors_db = [min(_db(figures) for figures in found.values()) for found in each]
    refused = refused or _said(TOTAL, total, subjects)
    return _Prepared(case, model, truth, last, subjects, sample_order(touched, worst, errors_db), refused)


def _judged(prepared: Sequence[_Prepared], most: int, work: Path) -> Iterator[Outcome]:
    try:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            made = _on_chip(prepared, Path(folder))
    except PipelineError as error:
        if len(prepared) == 1:
            yield _outcome(prepared[0].case, 0, f"refused: {error.what}", "")
            return
        middle = len(prepared) // 2
        yield from _judged(prepared[:middle], most, work)
        yield from _judged(prepared[middle:], most, work)
        return
    for each, outputs in zip(prepared, made, strict=True):
        everything = range(len(each.truth))
        build = each.refused or _emulated(each, outputs, each.order[:most])
        yield _outcome(
            each.case, min(most, len(each.truth)), build, each.refused or _emulated(each, outputs, everything)
        )


def _emulated(each: _Prepared, outputs: Sequence[Outputs], places: Sequence[int]) -> str:
    """What the last rung says of the samples at these places."""
    names = [_names(each.case)[place] for place in places]
    truth, above, tested = ([values[place] for place in places] for values in (each.truth, each.above, outputs))
    total = measure(each.subjects, names, truth, tested, spans=spans_of(each.subjects, each.truth))
    compiled = measure(each.subjects, names, above, tested)
    return _said(TOTAL, total, each.subjects) or _said("compile", compiled, each.subjects)


def _db(figures: Figures) -> float:
    return -np.inf if figures.sqnr_db is None else figures.sqnr_db


def _said(rung: str, measured: Measured, subjects: Mapping[str, Subject]) -> str:
    missed = shortfalls(rung, measured, subjects, Thresholds())
    return f"{rung}: {missed[0].kind}, {missed[0].figures.sqnr_db} dB, {missed[0].figures.outlier}" if missed else ""


def _on_chip(prepared: Sequence[_Prepared], folder: Path) -> list[list[Outputs]]:
    out, arrays = folder / "out", folder / "arrays"
    out.mkdir()
    arrays.mkdir()
    save_graph(merged([each.model for each in prepared]), folder / "model.onnx")
    made = compile_apart(folder / "model.onnx", "batch", X_ELITE, out)
    feeds = [
        {f"n{number:04d}/x": each.case.held_out[place]["x"] for number, each in enumerate(prepared)}
        for place in range(len(prepared[0].truth))
    ]
    results = run_apart(out, made.context_model, X_ELITE, feeds, arrays)
    places = {output.name: place for place, output in enumerate(made.outputs)}
    return [
        [{name: result[places[f"n{number:04d}/{name}"]] for name in each.truth[0]} for result in results]
        for number, each in enumerate(prepared)
    ]


def _ranges(observer: Observer, feeds: Sequence[Arrays]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for feed in feeds:
        for name, array in observer.arrays(feed):
            seen = Range.of(array)
            known = found.get(name, seen)
            found[name] = Range(min(known.low, seen.low), max(known.high, seen.high))
    return {name: values.rounded() for name, values in found.items()}


def _on_cpu(path: Path, feeds: Sequence[Arrays]) -> list[Outputs]:
    session = load_session(path)
    return [run(session, feed) for feed in feeds]


def _names(case: Case) -> list[str]:
    return [f"s{number}" for number in range(len(case.held_out))]


def _outcome(case: Case, ran: int, build: str, exhaustive: str) -> Outcome:
    ops = " ".join(node.op_type for node in case.model.graph.node)
    return Outcome(case.number, case.form, ops, ran, len(case.held_out), build, exhaustive)


def judge_all(count: int, seed: int, *, most: int, batch: int = 10) -> Iterator[Outcome]:
    """The outcome of `count` graphs, of which `most` samples each are emulated for the build's own judgement."""
    cases = [random_case(number, seed) for number in range(count)]
    with tempfile.TemporaryDirectory() as work:
        for form in FORMATS:
            mine = [case for case in cases if case.form == form]
            for start in range(0, len(mine), batch):
                yield from judge_batch(mine[start : start + batch], most, Path(work))


def main() -> int:
    """0 if no graph passes that all samples refuse."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--most", type=int, default=_HELD_OUT, help="samples that the build emulates (%(default)s: all)"
    )
    chosen = parser.parse_args()
    found: list[Outcome] = []
    for outcome in judge_all(chosen.count, chosen.seed, most=chosen.most):
        found.append(outcome)
        if outcome.is_wrong:
            print(f"WRONG {outcome}", flush=True)
    kinds = Counter(outcome.build.split(":")[0] or "passed" for outcome in found)
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    wrong = sum(outcome.is_wrong for outcome in found)
    ran = f"{min(chosen.most, _HELD_OUT)} of {_HELD_OUT} samples emulated"
    print(f"{len(found)} graphs, seed {chosen.seed}, {ran}: {told}")
    print(f"{wrong} passed that all samples refuse")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
