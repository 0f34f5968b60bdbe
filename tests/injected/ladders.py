"""Models with three buckets each, quantized and verified, and what the emulator makes of one that has a fault."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto
from tokenizers import Tokenizer

from pipeline.contracts import ingest, verify
from pipeline.errors import PipelineError
from pipeline.graph.cpu import Arrays
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.shapes.buckets import axis_lengths, pad, smallest_bucket
from pipeline.inputs.samples.references import Reference, kept
from pipeline.model import StageInput
from tests.bench.models import HELD_OUT, SENTENCES
from tests.support.graphs import attention, convolutions, encoder, sentence
from tests.support.on_htp import on_chip
from tests.support.stage_runs import Component, part

DEAREST_S = 3.2
"""Seconds of emulation that a sample of the largest bucket is taken to cost: MiniLM, 128 tokens."""
SAMPLES = 16
"""Held-out samples of each bucket."""
Outputs = dict[str, np.ndarray]


class Ladder:
    """A model with three buckets, quantized and verified; `order` has the samples of a bucket that faults run on."""

    def __init__(
        self,
        root: Path,
        model: ModelProto,
        axis: str,
        lengths: Sequence[int],
        call: Callable[[int, int], Arrays],
        *,
        faulty: Sequence[int] = (),
        most: int = SAMPLES,
    ) -> None:
        """`call` gives the inputs of a length and a number; faults are in buckets `faulty`, or in all."""
        ranges = {size: range(size // 2 + 1, size + 1) for size in lengths}
        calibration = [call(length, length) for sizes in ranges.values() for length in [*sizes][-6:]]
        held_out = [
            call([*sizes][(7 * number) % len(sizes)], 1000 * size + number)
            for size, sizes in ranges.items()
            for number in range(SAMPLES)
        ]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            component = Component(root / "component", model, {str(size): {axis: size} for size in lengths})
            quantized = component.quantize_all(component.calibrate(calibration))
            self.models = {name: part(quantized, name) for name in component.buckets}
            samples = component.samples(held_out)
            verified = {name: component.verify(name, samples, model) for name, model in self.models.items()}
        self.facts = {name: verify.Facts.from_json(each.facts) for name, each in verified.items()}
        self.faulty = [str(size) for size in faulty or lengths]
        self.order = {name: facts.order[:most] for name, facts in self.facts.items()}
        self.bases = {
            name: verify.Basis(facts.samples, DEAREST_S * int(name) / max(lengths))
            for name, facts in self.facts.items()
        }
        self.references = {name: self._references(name, verified[name]) for name in self.faulty}
        self._padded = dict(self._feeds(component, held_out))

    def ran(self, bucket: str, model: ModelProto, work: Path) -> dict[int, Outputs] | str:
        """What the emulator makes of a bucket's model, by the places of the samples; or why QNN does not take it."""
        work.mkdir(parents=True)
        onnx.save(model, work / MODEL)
        order = self.order[bucket]
        feeds = [self._padded[bucket][place] for place in order]
        try:
            made = on_chip(StageInput(work, {}, {}), feeds, work / "context").outputs
        except (PipelineError, BrokenProcessPool) as error:  # QNN refuses it, or ends its process
            return str(error) or type(error).__name__
        known = self.references[bucket]
        return {
            place: {name: outputs[name][tuple(map(slice, truth.shape))] for name, truth in known[place].truth.items()}
            for place, outputs in zip(order, made, strict=True)
        }

    def _references(self, bucket: str, verified: StageInput) -> Mapping[int, Reference]:
        facts = self.facts[bucket]
        outputs = sorted({subject.output for subject in facts.subjects.values()})
        return kept(verified.folder, range(facts.samples), outputs, ())

    def _feeds(self, component: Component, held_out: Sequence[Arrays]) -> Iterator[tuple[str, list[Arrays]]]:
        inputs = ingest.Facts.from_json(component.ingest.facts).inputs
        for name, axes in component.buckets.items():
            mine = [feed for feed in held_out if smallest_bucket(axis_lengths(feed, inputs), component.buckets) == name]
            yield name, [pad(feed, inputs, axes, {}) for feed in mine]


def _attention(root: Path, seed: int) -> Ladder:
    return Ladder(root, attention(), "sequence", (16, 32, 64), sentence)


def _encoder(root: Path, seed: int) -> Ladder:
    return Ladder(root, encoder(), "sequence", (16, 32, 64), sentence)


def _convolutions(root: Path, seed: int) -> Ladder:
    numbers = np.random.default_rng(seed)

    def sound(length: int, number: int) -> Arrays:
        return {"x": numbers.normal(0, numbers.uniform(0.3, 1.5), (1, 8, length)).astype(np.float32)}

    return Ladder(root, convolutions(), "frames", (16, 32, 64), sound)


def _minilm(folder: Path) -> Callable[[Path, int], Ladder]:
    """The real MiniLM of a folder: faults in its bucket of 32 tokens, run on half of the samples."""

    def made(root: Path, seed: int) -> Ladder:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        lines = [*SENTENCES.read_text("utf-8").splitlines(), *HELD_OUT.read_text("utf-8").splitlines()]

        def words(length: int, number: int) -> Arrays:
            """Sentences of the project, one after the other, as many tokens as are asked for."""
            start = number % len(lines)
            ids = tokenizer.encode(" ".join([*lines[start:], *lines[:start]])).ids
            ids = [*ids[: length - 1], ids[-1]]
            return {"input_ids": np.array([ids]), "attention_mask": np.ones((1, length), np.int64)}

        model = onnx.load(folder / "model.onnx")
        return Ladder(root, model, "sequence", (32, 64, 128), words, faulty=(32,), most=SAMPLES // 2)

    return made


def ladders(minilm: Path | None = None) -> dict[str, Callable[[Path, int], Ladder]]:
    """How each model is made, in an empty folder and with a seed, by its name."""
    found: dict[str, Callable[[Path, int], Ladder]] = {
        "attention": _attention,
        "convolutions": _convolutions,
        "encoder": _encoder,
    }
    return found if minilm is None else {**found, "minilm": _minilm(minilm)}
