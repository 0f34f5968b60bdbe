"""Writes and checks the files that engines open beside the contexts of a language model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.contracts.bundle import Facts
from pipeline.contracts.language import LanguageFacts
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CalibrationError
from pipeline.graph.language.inputs_model import inputs_model
from pipeline.graph.language.names import TABLE, TEMPLATE, TOKENIZER
from pipeline.inputs.samples.chat import Message, Voice
from pipeline.model import Json
from pipeline.qnn.engines import bundle_checks, genai_config, genie_config
from pipeline.qnn.engines.graphs import SpokenGraph, longest_pair
from pipeline.qnn.engines.tokenizer_files import TOKENIZER_CONFIG, read_vocabulary, spare_token, tokenizer_config

GENAI, GENIE = "genai", "genie"
_TURNS: Sequence[Message] = (
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
)


def write_bundle(
    source: Path,
    language: LanguageFacts,
    graphs: Sequence[SpokenGraph],
    target: HtpTarget,
    out: Path,
    table: Path | None = None,
) -> Facts:
    """Write the files of all engines to `out`. `source` is the output of ingest, `graphs` are those of its contexts.

    `table` is the file of embeddings if the host looks them up, else None. Faults are in the facts, not raised.
    """
    if table is not None and table.is_file():
        shutil.copyfile(table, out / TABLE)
    for name in (TOKENIZER, TEMPLATE):
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    template = (source / TEMPLATE).read_text("utf-8") if (source / TEMPLATE).is_file() else None
    vocabulary = read_vocabulary(source / TOKENIZER)
    said, begins = _said(source, language)
    spare = spare_token(vocabulary, f"{template or ''}{said}", language)
    pad = next((token for token in (spare, language.pad, *language.stops) if token is not None), 0)
    _write(out / TOKENIZER_CONFIG, tokenizer_config(vocabulary, template, language, pad))
    unwritten = {
        engine: why
        for engine, why in (
            (GENAI, _no_genai(graphs, spare)),
            (GENIE, genie_config.why_not(language, graphs)),
        )
        if why
    }
    faults = [*bundle_checks.graph_faults(graphs, language), *bundle_checks.tokenizer_faults(out, language)]
    faults += bundle_checks.table_faults(out, graphs, language)
    configs = {}
    if GENAI not in unwritten:
        configs[GENAI] = genai_config.CONFIG
        _write(out / genai_config.CONFIG, genai_config.genai_config(language, graphs, pad))
        _, prefill = longest_pair(graphs)
        (out / genai_config.INPUTS).write_bytes(inputs_model(language, prefill.total, prefill.edges))
        faults += bundle_checks.genai_faults(out, graphs, language)
    if GENIE not in unwritten:
        configs[GENIE] = genie_config.CONFIG
        _write(out / genie_config.CONFIG, genie_config.genie_config(language, graphs, pad, begins=begins))
        _write(out / genie_config.EXTENSIONS, genie_config.extension_config(graphs))
        faults += bundle_checks.genie_faults(out, graphs, language, target)
    return Facts(configs=configs, unwritten=unwritten, faults=tuple(faults), pad=pad, begins=begins)


def _said(source: Path, language: LanguageFacts) -> tuple[str, bool]:
    """A short conversation as the chat template writes it, and whether the model's first token is missing there."""
    voice = Voice(source, replace(language, bos=None))
    try:
        said = voice.render(_TURNS, answer=True, where=TEMPLATE)
        first = voice.encode(_TURNS, answer=True)[:1]
    except CalibrationError as error:
        print(f"{error.what}: {error.why}")
        return "", language.bos is not None
    return said, language.bos is not None and first != [language.bos]


def _no_genai(graphs: Sequence[SpokenGraph], spare: int | None) -> str:
    """Why onnxruntime-genai can't run a model; "" if it can."""
    if any(edge.dtype != "uint8" for graph in graphs for name, edge in graph.edges.items() if name.startswith("past_")):
        return "its cache is not of unsigned 8 bits"
    if not any(name.startswith("past_") for graph in graphs for name in graph.edges):
        return "its cache is not of 8 bits"
    if spare is None:
        return "every token may be in a prompt, and it takes one of them for padding"
    return ""


def _write(path: Path, value: Mapping[str, Json]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8", newline="\n")
