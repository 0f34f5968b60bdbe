"""Measures choices of precision as a build would make them: QDQ models on the CPU, and contexts on the emulator."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import numpy_helper

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.measures import Subject
from pipeline.contracts.scheme import Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError, ModelError, QuantizationError, VerificationError
from pipeline.graph.accuracy.figures.accuracy import Outputs, valid_outputs
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.accuracy.search.search import Emulation
from pipeline.graph.accuracy.search.sensitivity import Choice, Feed, Trials
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import MODEL, load_graph, save_graph
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.quantizer import quantize
from pipeline.graph.quantization.weights.correlations import Correlations
from pipeline.qnn.child import compile_apart, run_apart

EMULATED = 2
"""Samples that a choice is emulated on; the emulator takes seconds for what the CPU does in milliseconds."""


@dataclass(frozen=True)
class Example:
    """A sample as one bucket takes it, and what the original model makes of it.

    `chosen_from` are the values of the original that its ArgMax outputs were chosen from.
    """

    name: str
    feed: Feed
    truth: Outputs
    chosen_from: Outputs


@dataclass(frozen=True)
class Case:
    """One bucket: the folder of its float model, samples, and what the ladder judges of its outputs, by label."""

    bucket: str
    folder: Path
    examples: tuple[Example, ...]
    subjects: Mapping[str, Subject]

    def least_db(self, tested: Sequence[Outputs], examples: Sequence[Example] | None = None) -> float:
        """The least SQNR in dB over all subjects, computed as the ladder does; -inf if one has none.

        `tested` are the outputs for these `examples`, or for all.
        """
        given = self.examples if examples is None else examples
        return self._least_db([example.truth for example in given], tested, given)

    def compile_db(self, above: Sequence[Outputs], tested: Sequence[Outputs], examples: Sequence[Example]) -> float:
        """The least SQNR in dB of the compile rung, against the outputs of the QDQ model, the rung `above`."""
        return self._least_db(above, tested, examples)

    def _least_db(self, truth: Sequence[Outputs], tested: Sequence[Outputs], examples: Sequence[Example]) -> float:
        chosen_from = [example.chosen_from for example in examples]
        names = [example.name for example in examples]
        measured = measure(self.subjects, names, truth, tested, chosen_from=chosen_from, read=False)
        return min(-math.inf if each.sqnr_db is None else each.sqnr_db for each in measured.values())


@dataclass(frozen=True)
class Device:
    """The target that contexts are compiled for, and what they may leave to the CPU."""

    target: HtpTarget
    max_cpu_nodes: int
    max_partitions: int


class EmulatorJudge:
    """Makes the measurements that a search asks for: the least SQNR of all outputs against the original, in dB."""

    def __init__(
        self,
        cases: Sequence[Case],
        ranges: Mapping[str, Range],
        trials: Trials,
        scheme_of: Callable[[Choice], Scheme],
        device: Device,
        work: Path,
        correlations: Correlations | None = None,
    ) -> None:
        """The first of `cases` is the one that `trials` runs and that is emulated; `work` is an empty folder."""
        self._cases = cases
        self._ranges = ranges
        self._trials = trials
        self._scheme_of = scheme_of
        self._device = device
        self._work = work
        self._correlations = correlations
        self._outputs: list[Outputs] = []

    def rounded(self, choice: Choice) -> float:
        """Measures the float model with its values rounded."""
        examples = self._cases[0].examples
        names = self._trials.outputs
        outputs = [dict(zip(names, self._trials.run(choice, example.feed), strict=True)) for example in examples]
        return self._cases[0].least_db(outputs)

    def quantized(self, choice: Choice) -> float:
        """Measures the QDQ models of all buckets on the CPU. Returns the least."""
        scheme = self._scheme_of(choice)
        found = []
        for case in self._cases:
            folder = self._empty(case.bucket)
            try:
                model = load_graph(case.folder / MODEL)
                model = quantize(model, case.folder, self._ranges, scheme, correlations=self._correlations).model
            except QuantizationError as error:
                print(f"{scheme.name} can't be quantized: {error.what}")
                return -math.inf
            with BlobWriter(folder / "weights.bin") as blob:
                for tensor in model.graph.initializer:
                    tensor.CopyFrom(blob.tensor(tensor.name, numpy_helper.to_array(tensor)))
            save_graph(model, folder / MODEL)
            outputs = on_cpu(folder, case.examples, "quantization")
            found.append(case.least_db(outputs))
            if case is self._cases[0]:
                self._outputs = outputs
        return min(found)

    def emulated(self, choice: Choice) -> Emulation:
        """Measures the context of the choice that was quantized last, on the samples that it is worst on."""
        case = self._cases[0]
        folder = self._work / case.bucket
        errors = [
            case.least_db([output], [example]) for example, output in zip(case.examples, self._outputs, strict=True)
        ]
        chosen = sorted(sorted(range(len(errors)), key=errors.__getitem__)[:EMULATED])
        examples = [case.examples[number] for number in chosen]
        out = self._empty("context")
        try:
            made = compile_apart(folder / MODEL, f"trial_{case.bucket}", self._device.target, out)
            if refused := self._refusal(made):
                return Emulation(failure=refused, why=refused)
            feeds = [example.feed.inputs for example in examples]
            results = run_apart(out, made.context_model, self._device.target, feeds, self._empty("run"))
        except (CompileError, ModelError, QuantizationError, VerificationError) as error:
            print(f"can't be emulated: {error.what}")
            return Emulation(failure=type(error).__name__, why=error.what)
        names = [output.name for output in made.outputs]
        outputs = [
            valid_outputs(dict(zip(names, result, strict=True)), example.truth, "compile")
            for result, example in zip(results, examples, strict=True)
        ]
        above = [self._outputs[number] for number in chosen]
        return Emulation(case.least_db(outputs, examples), case.compile_db(above, outputs, examples))

    def _refusal(self, made: CompiledModel) -> str:
        """Why a context may not ship; empty if it may."""
        inside = [f"{node.op} {node.name!r}" for node in made.fallbacks]
        if len(inside) > self._device.max_cpu_nodes:
            return f"{len(inside)} nodes would run on the CPU, the first is {inside[0]}"
        if made.partitions > self._device.max_partitions:
            return f"it is split into {made.partitions} partitions"
        return ""

    def _empty(self, name: str) -> Path:
        folder = self._work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def on_cpu(folder: Path, examples: Sequence[Example], rung: str) -> list[Outputs]:
    """The valid part of the outputs of a bucket's model, for each example."""
    session = load_session(folder / MODEL)
    return [valid_outputs(run(session, example.feed.inputs), example.truth, rung) for example in examples]
