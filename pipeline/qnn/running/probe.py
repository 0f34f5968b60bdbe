"""Finds where a compiled model begins to compute otherwise than the CPU, by its values on the emulator.

A context shows its outputs only, so the model is compiled again with values in the middle as outputs. That changes it a
little: what is an output can't be fused away, and is rounded to its encoding where the compiler might have kept more.
An error that shows in the plain context and in no probe came from such a fusion. Outputs are therefore few at a time:
a first compile with values spread over the graph finds the stretch where it goes wrong, the next ones look into that.

Whole numbers that are computed of whole numbers are looked at as well: no precision changes those.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from pipeline.contracts.blame import OF_INTEGERS
from pipeline.contracts.measures import Reason
from pipeline.contracts.target import HtpTarget
from pipeline.errors import PipelineError
from pipeline.graph.accuracy.blame.blame import Row, first_wrong, nearest
from pipeline.graph.accuracy.blame.reasons import COMPILE
from pipeline.graph.accuracy.figures.value_errors import ValueSums
from pipeline.graph.accuracy.figures.worst_sample import error_db
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.graph.ir.index import FLOATS, WHOLE, GraphIndex, element_type
from pipeline.graph.ir.traverse import label, reads
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS, computing_node, encoding_of, standing_for
from pipeline.ladder import EXACT_DB
from pipeline.progress import tell
from pipeline.qnn.child import compile_apart, run_apart

Arrays = Mapping[str, NDArray[Any]]

AT_ONCE = 12
"""How many values one compile shows."""

_NAME = "probe"


@dataclass(frozen=True)
class Probed:
    """What a search found: rows in the graph's order, and the model's outputs on the CPU and on the emulator.

    All are of the sample at `place`. The outputs are empty where nothing could be run.
    """

    rows: list[Row]
    place: int
    expected: Arrays
    got: Arrays


def probe(
    model: Path,
    samples: Sequence[Arrays],
    target: HtpTarget,
    work: Path,
    *,
    threshold_db: float,
    most_compiles: int = 3,
    judged: Sequence[Collection[str]] = (),
) -> Probed:
    """Compare values of a model, QDQ or float, on the emulator with those on the CPU, for one sample.

    The sample is the first whose outputs are under `threshold_db`, or else the one with the worst outputs. `judged`
    has the outputs that count for each sample, an empty entry for all; without `judged`, all outputs count.
    Samples are padded to the model's shape. `work` is an empty folder on the model's file system. At most
    `most_compiles` compiles look ever closer at values under `threshold_db`. A compile that fails, as one with more
    outputs may, ends the search. Rows are in the graph's order and include the model's outputs;
    :func:`pipeline.graph.accuracy.blame.blame.first_wrong` finds the first wrong ones among them.
    """
    probed = _ProbedModel(model, samples, judged)
    span = probed.values
    rows: list[Row] = []
    for number in range(most_compiles):
        chosen = _evenly(span, AT_ONCE)
        if not chosen and number:
            break
        tell(f"compile {number + 1} of {most_compiles} at most")
        folder = work / str(number)
        folder.mkdir()
        try:
            probed.measure(chosen, target, folder, threshold_db)
        except PipelineError as error:
            print(f"{len(chosen)} values could not be looked at on the emulator: {error}")
            if number == 0 and probed.leave_out_whole():
                span = probed.values
                continue
            break
        rows = probed.rows()
        wrong = first_wrong(rows, threshold_db)
        if not wrong:
            break
        fine = [row.value for row in rows if row.sqnr_db is not None and row.sqnr_db >= threshold_db]
        span = probed.between(wrong[0].value, fine)
    return Probed(rows, probed.place or 0, probed.expected, probed.got)


class _ProbedModel:
    """A model that is compiled again and again, with other values as outputs each time."""

    def __init__(self, path: Path, samples: Sequence[Arrays], judged: Sequence[Collection[str]]) -> None:
        self._path = path
        self._samples = samples
        self._judged = judged or [()] * len(samples)
        self.place: int | None = None
        self._index = GraphIndex(load_graph(path), path.parent)
        self._sums: dict[str, ValueSums] = {}
        self._whole: dict[str, _Whole] = {}
        self.expected: Arrays = {}
        self.got: Arrays = {}
        last = [computing_node(self._index, name) for name in self._index.outputs]
        outputs = {name for node in last if node is not None for name in node.output}
        self.values = [
            name
            for node in self._index.model.graph.node
            for name in node.output
            if node.op_type not in Q_OPS and name not in outputs and (self._is_float(name) or self._is_whole(node))
        ]

    def leave_out_whole(self) -> bool:
        """Look only at floats from here on. Returns whether there were whole numbers to leave out."""
        count = len(self.values)
        self.values = [name for name in self.values if self._is_float(name)]
        return 0 < len(self.values) < count

    def measure(self, values: Sequence[str], target: HtpTarget, folder: Path, threshold_db: float) -> None:
        """Compile with these values as outputs, run on the emulator and on the CPU, and add up the differences.

        The first time all samples are run, and one of them is chosen.
        """
        for blob in self._path.parent.iterdir():
            if blob != self._path and blob.is_file():
                _link(blob, folder / blob.name)
        path = folder / f"{_NAME}.onnx"
        model, shown = self._showing(values)
        save_graph(model, path)
        session = load_session(path)
        names = [value.name for value in model.graph.output]
        (folder / "context").mkdir()
        (folder / "run").mkdir()
        compiled = compile_apart(path, _NAME, target, folder / "context")
        samples = self._samples if self.place is None else [self._samples[self.place]]
        chip = run_apart(folder / "context", compiled.context_model, target, samples, folder / "run")
        found: list[tuple[Arrays, Arrays]] = [
            (run(session, sample), dict(zip(names, each, strict=True)))
            for sample, each in zip(samples, chip, strict=True)
        ]
        at = 0
        if self.place is None:
            shown_db = [
                error_db({name: cpu[name] for name in names or self._index.outputs}, got)
                for (cpu, got), names in zip(found, self._judged, strict=True)
            ]
            under = (place for place, db in enumerate(shown_db) if db < threshold_db)
            self.place = at = next(under, min(range(len(found)), key=shown_db.__getitem__))
        cpu, given = found[at]
        self.expected, self.got = self._outputs(cpu), self._outputs(given)
        for name, array in given.items():
            if array.dtype.kind in "iub":
                self._whole[name] = _Whole.of(cpu[name], array)
            elif array.dtype.kind == "f":
                value = shown.get(name, name)
                self._sums[value] = ValueSums(encoding_of(self._index, standing_for(self._index, value) or ""))
                self._sums[value].add(cpu[name], array)

    def _outputs(self, values: Arrays) -> Arrays:
        return {name: values[name] for name in self._index.outputs}

    def rows(self) -> list[Row]:
        """What was measured so far, in the graph's order."""
        measured = {*self._sums, *self._whole}
        before = nearest(self._index, measured)
        order = [name for node in self._index.model.graph.node for name in node.output if name in measured]
        return [self._row(value, before[value]) for value in order]

    def between(self, value: str, fine: Sequence[str]) -> list[str]:
        """Values not measured yet from which `value` is made, without those from which a value of `fine` is made."""
        before = self._ancestors([value])
        suspects = before - self._ancestors([name for name in fine if name in before]) - {*self._sums, *self._whole}
        return [name for name in self.values if name in suspects]

    def _row(self, value: str, inputs: tuple[str, ...]) -> Row:
        node = computing_node(self._index, value)
        assert node is not None
        if value in self._whole:
            return self._whole_row(value, node, inputs)
        sums = self._sums[value]
        text = None if sums.total_db is not None and sums.total_db >= EXACT_DB else COMPILE.get(node.op_type)
        return Row(
            value=value,
            node=label(node),
            op=node.op_type,
            inputs=inputs,
            sqnr_db=sums.total_db,
            observed=sums.observed,
            encoding=encoding_of(self._index, standing_for(self._index, value) or ""),
            reason=Reason("compile", text) if text else None,
        )

    def _whole_row(self, value: str, node: NodeProto, inputs: tuple[str, ...]) -> Row:
        """The row of a value of whole numbers, without a reason if floats decide them: a precision may change these."""
        whole = self._whole[value]
        reason = Reason(OF_INTEGERS, whole.text) if whole.text and self._is_whole(node) else None
        return Row(value, label(node), node.op_type, inputs, whole.sqnr_db, whole.observed, reason=reason)

    def _showing(self, values: Sequence[str]) -> tuple[ModelProto, dict[str, str]]:
        """The model with these values as further outputs, and the value that each new output shows.

        A quantized value is shown by a DequantizeLinear of its own: as an output, the one that a node reads would no
        longer belong to that node, and QNN would compute the node in float.
        """
        model = ModelProto()
        model.CopyFrom(self._index.model)
        shown = {}
        for value in values:
            quantizer = next(
                (node for node in self._index.readers.get(value, []) if node.op_type == "QuantizeLinear"), None
            )
            name = value
            if quantizer is not None:
                name = self._index.unused(f"{value}_{_NAME}")
                inputs = [quantizer.output[0], *quantizer.input[1:]]
                model.graph.node.append(
                    helper.make_node("DequantizeLinear", inputs, [name], name, domain=quantizer.domain)
                )
                shown[name] = value
            model.graph.output.append(ValueInfoProto(name=name, type=self._index.types[value]))
        return model, shown

    def _ancestors(self, values: Sequence[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(values)
        while waiting:
            node = self._index.makers.get(waiting.pop())
            fresh = set(reads(node)) - found if node is not None else set()
            found |= fresh
            waiting += fresh
        return found

    def _is_float(self, name: str) -> bool:
        return element_type(self._index, name) in FLOATS

    def _is_whole(self, node: NodeProto) -> bool:
        """Whether a node computes whole numbers of whole numbers."""
        kinds = [element_type(self._index, name) for name in (*reads(node), *node.output) if name]
        return all(kind in WHOLE for kind in kinds) and bool(node.input)


@dataclass(frozen=True)
class _Whole:
    """The comparison of whole numbers of one sample: how many are equal, and what differs first."""

    sqnr_db: float
    observed: Range
    text: str = ""

    @classmethod
    def of(cls, expected: NDArray[Any], got: NDArray[Any]) -> _Whole:
        truth, made = expected.ravel(), got.ravel()
        observed = Range(float(truth.min(initial=0)), float(truth.max(initial=0)))
        places = np.flatnonzero(truth != made)
        if not places.size:
            return cls(EXACT_DB, observed)
        first = places[0]
        text = f"{places.size} of {truth.size} differ, the first is {made[first]} for {truth[first]}"
        return cls(10 * math.log10(truth.size / places.size), observed, text)


def _evenly(values: Sequence[str], count: int) -> list[str]:
    """`count` of the values at even distances, with the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[len(values) * (number + 1) // count - 1] for number in range(count)]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
