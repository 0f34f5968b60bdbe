"""A language model that was built, ready to answer: QDQ models on this machine's CPU, or contexts on the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.load import Bucket, ModelConfig
from pipeline.contracts import ingest, quantize
from pipeline.contracts.language import Edges, LanguageFacts, Lengths
from pipeline.errors import ConfigError
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_on_cpu
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.names import TABLE
from pipeline.graph.language.speaker import RunnableGraph, Speaker
from pipeline.inputs.samples.chat import Voice
from pipeline.model import Manifest
from pipeline.plan import stage_params
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn.child import compile_apart
from pipeline.qnn.engines.emulated_loop import emulated_speaker
from pipeline.qnn.engines.graphs import read_graphs
from pipeline.store.manifests import read_manifest

CPU, EMULATOR = "the QDQ model on this machine's CPU", "QNN's emulator of the NPU, on this machine's CPU"


def built_output(model: str, workspace: Workspace, step: Step) -> Manifest:
    """The output of a step of a model. Raises ConfigError: it is not built."""
    manifest = read_manifest(workspace.current(step))
    if manifest is None:
        raise ConfigError(f"{model} is not built yet", where=step.id, remedy=f"run 'doit build:{model}'")
    return manifest


class ChatModel:
    """What steps of a language model left, in a folder: its graphs by bucket, its tokenizer, and facts."""

    def __init__(self, config: ModelConfig, steps: Sequence[Step], workspace: Workspace, folder: Path) -> None:
        """Put it into the empty `folder`.

        Raises:
            ConfigError: a step has no output.
            DamagedError: an output is damaged.
        """
        self.config, self._folder = config, folder
        by_id = {step.id: step for step in steps}
        component = next(iter(config.components))

        def output(name: str) -> Manifest:
            return built_output(config.name, workspace, by_id[name])

        ingested = output(f"ingest:{config.name}/{component}")
        language = ingested.read(ingest.Facts.from_json).language
        assert language is not None
        self.language: LanguageFacts = language
        self.edges: dict[str, Edges] = {}
        workspace.store.place(ingested, folder / "ingest")
        longest = max(sum(bucket.axes.values()) for bucket in config.buckets)
        ends = sorted(
            (bucket for bucket in config.buckets if sum(bucket.axes.values()) == longest),
            key=lambda bucket: bucket.axes["sequence"],
        )
        self._pair = (ends[0], ends[-1])
        for bucket in self._pair:
            name = f"quantize:{config.name}/{component}"
            part = output(name).part(bucket.name) if name in by_id else None
            if part is None:
                part = output(f"rewrite:{config.name}/{component}/{bucket.name}")
            else:
                self.edges[bucket.name] = part.read(quantize.PartFacts.from_json).edges
            workspace.store.place(part, folder / bucket.name)
        self.voice = Voice(folder / "ingest", language)

    def on_cpu(self) -> Speaker:
        """A speaker over onnxruntime's CPU."""
        decode, prefill = (self._on_cpu(bucket) for bucket in self._pair)
        return Speaker(self.language, decode, prefill, self.edges.get(self._pair[1].name))

    def emulated(self) -> Speaker:
        """A speaker over the emulator: graphs are compiled by themselves, as it takes no shared binary.

        Raises:
            PipelineError: the compiler does not take a graph.
        """
        target = stage_params.of_target(self.config.targets[0])
        made = []
        for bucket in self._pair:
            out = self._folder / f"context-{bucket.name}"
            out.mkdir()
            context = compile_apart(self._folder / bucket.name / MODEL, bucket.name, target, out)
            made.append((out, context))
        both, work = self._folder / "contexts", self._folder / "runs"
        both.mkdir()
        work.mkdir()
        for out, context in made:
            for name in (context.context_model, *context.binaries):
                (out / name).rename(both / name)
        if (table := self._folder / self._pair[0].name / TABLE).is_file():
            shutil.copyfile(table, both / TABLE)
        graphs = read_graphs([(both, context) for _, context in made])
        return emulated_speaker(both, self.language, graphs, target, work)

    def _on_cpu(self, bucket: Bucket) -> RunnableGraph:
        folder = self._folder / bucket.name
        session, rows = load_session(folder / MODEL), rows_of(folder, self.language)
        axes: Mapping[str, int] = bucket.axes
        return RunnableGraph(Lengths(axes["sequence"], axes["past"]), lambda feed: run_on_cpu(session, rows(feed)))
