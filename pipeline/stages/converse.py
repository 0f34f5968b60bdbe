"""converse: ask onnxruntime-genai, Genie and the reference loop for the answer to one prompt, on QNN's emulator.

The prompt is the one of several whose answer is furthest from a tie on the CPU. Engines round cosines in their own way,
which decides between two tokens that are almost equally likely. Each engine should give the CPU's answer. If one does
not, or if no engine is installed, the loop answers on the emulator, and that answer counts.

The emulator takes no shared binary, so engines open the contexts that `alone` compiled. Their inputs and outputs are
compared with those of the shipped ones. The small twins answer a prompt of two windows. If weights are in blocks, those
of the twins are by channel: engines can't tell, and the emulator takes a tenth of the time.

Inputs: ``ingest``, ``samples``, ``context/<bucket>``, ``alone/<bucket>`` where buckets share a binary,
``model/<bucket>`` (what was compiled), ``twin/<bucket>``. No output but facts; the build's gates judge them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from onnxruntime import InferenceSession

from pipeline.contracts import ingest
from pipeline.contracts.context import CompiledModel, PartFacts
from pipeline.contracts.converse import Facts, Params, Spoken
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_on_cpu
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.loop import Arrays
from pipeline.graph.language.names import TABLE
from pipeline.graph.language.speaker import Memory, RunnableGraph, Speaker
from pipeline.graph.quantization.qdq.weights_by_channel import count_in_blocks, write_by_channel
from pipeline.graph.shapes.cost import macs
from pipeline.inputs.bundle_files import GENAI, GENIE, write_bundle
from pipeline.inputs.samples.chat import Voice
from pipeline.inputs.samples.spoken import texts_of
from pipeline.model import StageRequest, StageResult
from pipeline.qnn.child import compile_apart
from pipeline.qnn.engines import asking
from pipeline.qnn.engines.emulated_loop import answer
from pipeline.qnn.engines.graphs import SpokenGraph, longest_pair, read_graphs, shares_binaries

MACS_PER_SECOND = 0.5e9
"""As in :mod:`pipeline.stages.emulate`: only the order of magnitude matters."""
_MORE, _ANSWERED = 2, 3
"""How many tokens a prompt has beyond the first window, and how many an answer has."""
_MODEL, _TWIN = "model", "twin"
_PROMPTS = 8
"""How many prompts are tried on the CPU. They begin at different places, as texts may begin with the same tokens."""
_NONE = "no conversation is held out"


def run(request: StageRequest) -> StageResult:
    """Ask each engine that is on this host.

    Raises:
        VerificationError: the reference loop itself can't run.
    """
    params = Params.from_json(request.params)
    language = ingest.Facts.from_json(request.inputs["ingest"].facts).language
    assert language is not None
    with TemporaryDirectory(dir=request.out.parent) as work:
        facts = _Conversation(request, params, language, Path(work)).facts()
    for engine, spoken in facts.engines.items():
        print(f"{engine} {spoken.version}: {spoken.refused or f'{len(spoken.tokens)} tokens'}")
    for who, why in facts.unasked.items():
        print(f"{who} was not asked: {why}")
    return StageResult(facts.to_json())


class _Conversation:
    def __init__(self, request: StageRequest, params: Params, language: LanguageFacts, work: Path) -> None:
        self._request, self._params, self._language, self._work = request, params, language, work
        self._source = request.inputs["ingest"].folder
        self._table = request.inputs[f"{_MODEL}/{next(iter(params.buckets))}"].folder / TABLE

    def facts(self) -> Facts:
        """The facts of the step: the prompt and all answers."""
        shipped = self._shipped()
        twin = max(self._params.twins.values(), key=lambda axes: (sum(axes.values()), axes["sequence"]))
        name = "x".join(str(size) for size in twin.values())
        if (parts := len(shipped[0].binaries)) > 1:
            why = f"the model is in {parts} parts, which are not compiled a second time to be asked about"
            return Facts(prompt=0, twin=name, expected=(), engines={}, unasked={"the reference loop": why})
        folder, graphs = self._unshared(shipped)
        differences = tuple(_differences(shipped, graphs)) if shares_binaries(shipped) else None
        written = write_bundle(self._source, self._language, graphs, self._params.target, folder, self._table)
        unasked = dict(written.unwritten)
        asked = [engine for engine in (GENIE, GENAI) if engine not in unasked]
        for engine in [engine for engine in asked if engine not in asking.installed()]:
            unasked[engine] = "it is not installed on this host"
            asked.remove(engine)
        engines = {engine: self._opened(engine, folder) for engine in asked}
        texts = [text.tokens for text in texts_of(self._request.inputs["samples"].folder, self._params)]
        if why := self._too_long() if texts else _NONE:
            unasked["the reference loop"] = why
            return Facts(prompt=0, twin=name, expected=(), engines=engines, differences=differences, unasked=unasked)
        role = _MODEL if {*self._params.twins} == {*self._params.buckets} else _TWIN
        if role == _TWIN:
            folder, graphs = self._compiled()
            if self._in_blocks():
                name += ", weights by channel"
            write_bundle(self._source, self._language, graphs, self._params.target, folder, self._table)
        prompt, expected = self._clearest(prompts_of(texts, twin["sequence"] + _MORE), graphs, role)
        for engine in asked:
            if engines[engine].refused is None:
                engines[engine] = self._spoken(engine, folder, prompt, texts)
        emulated = any(spoken.refused is None and spoken.tokens != expected for spoken in engines.values())
        if emulated or not asked:
            work, target = self._empty("loop"), self._params.target
            expected = answer(folder, self._language, graphs, prompt, _ANSWERED, target, work)
        return Facts(
            prompt=len(prompt),
            twin=name,
            expected=expected,
            emulated=emulated or not asked,
            engines=engines,
            differences=differences,
            unasked=unasked,
        )

    def _opened(self, engine: str, folder: Path) -> Spoken:
        """Whether an engine opens the graphs of the shipped shapes."""
        work = self._empty(f"open-{engine}")
        told = asking.ask_genie(folder, work) if engine == GENIE else asking.ask_genai(folder, work, (), 0)
        return Spoken(version=told.version, opened=not told.refused, refused=told.refused or None)

    def _spoken(self, engine: str, folder: Path, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> Spoken:
        """The answer of an engine to the prompt, on the twins, and how it splits texts into tokens."""
        work = self._empty(engine)
        alike = None
        if engine == GENIE:
            told = asking.ask_genie(folder, work, prompt, _ANSWERED)
        else:
            tokenizer = Voice(self._source).tokenizer
            given = [tokenizer.decode([*text], skip_special_tokens=False) for text in texts]
            wanted = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in given]
            told = asking.ask_genai(folder, work, prompt, _ANSWERED, given)
            alike = (sum(one == other for one, other in zip(told.encoded, wanted, strict=False)), len(wanted))
        tokens = _before(told.tokens, self._language.stops)
        refused = told.refused or None
        return Spoken(version=told.version, opened=True, tokens=tokens, texts=alike, refused=refused)

    def _shipped(self) -> tuple[SpokenGraph, ...]:
        given = [self._request.inputs[f"context/{bucket}"] for bucket in self._params.buckets]
        return read_graphs([(each.folder, PartFacts.from_json(each.facts)) for each in given])

    def _unshared(self, shipped: Sequence[SpokenGraph]) -> tuple[Path, tuple[SpokenGraph, ...]]:
        """The graphs of the shipped shapes, each with a binary of its own."""
        folder, role = self._empty("shipped"), "alone" if shares_binaries(shipped) else "context"
        made: list[tuple[Path, CompiledModel]] = []
        for bucket in self._params.buckets:
            given = self._request.inputs[f"{role}/{bucket}"]
            context = PartFacts.from_json(given.facts)
            for name in (context.context_model, *context.binaries):
                os.link(given.folder / name, folder / name)
            made.append((folder, context))
        return folder, read_graphs(made)

    def _clearest(
        self, prompts: Sequence[Sequence[int]], graphs: Sequence[SpokenGraph], role: str
    ) -> tuple[Sequence[int], tuple[int, ...]]:
        """The prompt after which the model, on the CPU, is surest of all tokens of its answer, and that answer."""
        sessions, rows = _OneSession(), rows_of(self._table.parent, self._language)

        def runnable(graph: SpokenGraph) -> RunnableGraph:
            axes = {"sequence": graph.sequence, "past": graph.total - graph.sequence}
            bucket = next(name for name, each in self._params.twins.items() if each == axes)
            path = self._model(role, bucket)
            return RunnableGraph(Lengths(**axes), lambda feed: sessions.run(path, rows(feed)))

        decode, prefill = longest_pair(graphs)
        return clearest(Speaker(self._language, runnable(decode), runnable(prefill), decode.edges), prompts)

    def _model(self, role: str, bucket: str) -> Path:
        """The model file that is compiled for a bucket."""
        model = self._request.inputs[f"{role}/{bucket}"].folder / MODEL
        if role != _TWIN or not self._in_blocks():
            return model
        folder = self._work / f"{bucket}-by-channel"
        if not folder.exists():
            folder.mkdir()
            write_by_channel(model, folder)
        return folder / MODEL

    def _compiled(self) -> tuple[Path, tuple[SpokenGraph, ...]]:
        """The small twins."""
        folder = self._empty(_TWIN)
        made = []
        for bucket in self._params.twins:
            out = self._empty(f"{_TWIN}-{bucket}")
            name = f"{self._params.component}_{bucket}"
            context = compile_apart(self._model(_TWIN, bucket), name, self._params.target, out)
            for name in (context.context_model, *context.binaries):
                (out / name).rename(folder / name)
            made.append((folder, context))
        return folder, read_graphs(made)

    def _in_blocks(self) -> bool:
        """Whether twins have weights in blocks."""
        folders = [self._request.inputs[f"{_TWIN}/{bucket}"].folder for bucket in self._params.twins]
        return any(count_in_blocks(load_graph(folder / MODEL)) for folder in folders)

    def _too_long(self) -> str:
        """Why the twins are not run: an engine would take too long, by an estimate. Empty if they are run."""
        models = [self._request.inputs[f"twin/{bucket}"].folder / MODEL for bucket in self._params.twins]
        costs = sorted(macs(load_graph(model)) / MACS_PER_SECOND for model in models)
        seconds = 2 * costs[-1] + (_ANSWERED - 1) * costs[0]
        if seconds <= self._params.most_seconds:
            return ""
        return f"an answer takes some {seconds:.0f} s on the emulator, emulator_seconds is {self._params.most_seconds}"

    def _empty(self, name: str) -> Path:
        folder = self._work / name
        folder.mkdir()
        return folder


def prompts_of(texts: Sequence[Sequence[int]], length: int) -> list[Sequence[int]]:
    """Different prompts of a length, of each text in turn, first from its beginning; shorter if no text is as long."""
    starts = range(0, max(map(len, texts)) - length + 1, length)
    windows = [tuple(text[start : start + length]) for start in starts for text in texts]
    whole = [window for window in dict.fromkeys(windows) if len(window) == length]
    return [*whole[:_PROMPTS]] or [max(texts, key=len)]


def clearest(speaker: Speaker, prompts: Sequence[Sequence[int]]) -> tuple[Sequence[int], tuple[int, ...]]:
    """The prompt after which a speaker is surest of all tokens of its answer, and the answer; the first of equals.

    All are read before any is answered, so that the graph that reads need not be in memory with the one that answers.
    """
    read: list[tuple[Sequence[int], Memory]] = []
    for prompt in prompts:
        speaker.forget()
        speaker.read(prompt)
        read.append((prompt, speaker.memory))
    answered = []
    for prompt, memory in read:
        speaker.resume(memory)
        steps = [(token, speaker.lead) for token in speaker.answer(_ANSWERED)]
        sureness = len(steps), min((lead for _, lead in steps), default=0.0)
        answered.append((sureness, prompt, tuple(token for token, _ in steps)))
    _, prompt, said = max(answered, key=lambda each: each[0])
    return prompt, said


class _OneSession:
    """Runs models on the CPU, of which one at a time is in memory."""

    def __init__(self) -> None:
        self._open: tuple[Path, InferenceSession] | None = None

    def run(self, path: Path, feed: Arrays) -> Arrays:
        """The outputs of the model in a file."""
        if self._open is None or self._open[0] != path:
            self._open = None  # its memory is needed
            self._open = path, load_session(path)
        return run_on_cpu(self._open[1], feed)


def _differences(shipped: Sequence[SpokenGraph], unshared: Sequence[SpokenGraph]) -> Iterator[str]:
    """Each way in which graphs of a shared binary differ at their edges from the same graphs by themselves."""
    for mine, other in zip(shipped, unshared, strict=True):
        for kind, left, right in (
            ("inputs", mine.info.inputs, other.info.inputs),
            ("outputs", mine.info.outputs, other.info.outputs),
        ):
            theirs = {tensor.name: tensor for tensor in right}
            if {tensor.name for tensor in left} != theirs.keys():
                yield f"{mine.context_model} has other {kind} in the shared binary than by itself"
            for tensor in left:
                if tensor.name in theirs and tensor != theirs[tensor.name]:
                    told = (f"{each} ({each.encoding})" for each in (tensor, theirs[tensor.name]))
                    yield f"{mine.context_model}: in the shared binary {next(told)}, by itself {next(told)}"


def _before(tokens: Sequence[int], stops: Sequence[int]) -> tuple[int, ...]:
    """The tokens before the first that ends an answer."""
    return tuple(tokens[: next((at for at, token in enumerate(tokens) if token in stops), len(tokens))])
