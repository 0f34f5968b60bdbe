"""Finds faults that Genie and onnxruntime-genai accept in silence and compute wrong results from.

The binaries are the reference. Genie checks fields and shapes itself and reports what is wrong with them;
:mod:`pipeline.qnn.engines.genie` asks it. Each check here finds a fault that Genie 1.21 was seen to accept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.contracts.language import LanguageFacts
from pipeline.contracts.target import HtpTarget
from pipeline.graph.language.builder import MASKED
from pipeline.graph.language.host_table import DTYPE
from pipeline.graph.language.names import EMBEDDED, TABLE, TOKENIZER
from pipeline.model import Json
from pipeline.qnn.engines import genai_config, genie_config
from pipeline.qnn.engines.graphs import LOGITS, MASK, SpokenGraph, cache_names, longest_pair
from pipeline.qnn.engines.tokenizer_files import read_vocabulary

_SEEN = 65535
_ENGINE = ("dialog", "engine")
_ROPE = (*_ENGINE, "model", "positional-encoding")
_SHARE = 0.02
"""The share by which an engine's value for masked scores may differ from the one that the graph was calibrated with."""


def graph_faults(graphs: Sequence[SpokenGraph], facts: LanguageFacts) -> Iterator[str]:
    """What is wrong with the graphs for every engine, in sentences."""
    for graph in graphs:
        name = graph.context_model
        mask, logits = graph.input(MASK), graph.output(LOGITS)
        if mask is None or logits is None:
            yield f"{name} has no {MASK if mask is None else LOGITS}"
            continue
        if mask.encoding:
            seen, masked = (mask.encoding.scale * (at - mask.encoding.zero_point) for at in (_SEEN, 0))
            if seen != 0:
                yield f"{_SEEN} of the attention mask of {name} means {seen:g}, and engines write it for 0"
            elif abs(masked - MASKED) > _SHARE * abs(MASKED):
                yield f"0 of the attention mask of {name} means {masked:g}; the graph was made for {MASKED:g}"
        if logits.shape != (1, graph.sequence, facts.vocabulary):
            wanted = f"[1, {graph.sequence}, {facts.vocabulary}]"
            yield f"the logits of {name} are {[*logits.shape]}; engines read those of every token, {wanted}"
    tables = {str(graph.edges.get(EMBEDDED)) for graph in graphs}
    if len(tables) > 1:
        yield f"{EMBEDDED} is encoded in {len(tables)} ways, and rows of one table are to be that"
    for into, out in cache_names(facts):
        known = {str(graph.edges.get(name)) for graph in graphs for name in (into, out)}
        if len(known) > 1:
            yield f"{into} and {out} are encoded in {len(known)} ways, and what a run makes is what the next one takes"


def table_faults(folder: Path, graphs: Sequence[SpokenGraph], facts: LanguageFacts) -> Iterator[str]:
    """What is wrong with the table of embeddings in `folder`: engines copy whatever lies where a row should be."""
    rows = graphs[0].edges.get(EMBEDDED)
    if rows is None:
        return
    path, wanted = folder / TABLE, 2 * facts.vocabulary * facts.hidden
    size = path.stat().st_size if path.is_file() else 0
    if size != wanted:
        yield f"{TABLE} has {size} bytes; {facts.vocabulary} rows of {facts.hidden} numbers of 16 bits have {wanted}"
    if rows.dtype != DTYPE:
        yield f"the graphs take rows of {rows.dtype}; {TABLE} has {DTYPE}"


def genie_faults(folder: Path, graphs: Sequence[SpokenGraph], facts: LanguageFacts, target: HtpTarget) -> Iterator[str]:
    """What is wrong with a Genie bundle in `folder`, in sentences; graphs are those of its binaries."""
    config, extension = (_read(folder / name) for name in (genie_config.CONFIG, genie_config.EXTENSIONS))
    total = max(graph.total for graph in graphs)
    expected: list[tuple[tuple[str, ...], Json, str]] = [
        (("dialog", "context", "size"), total, "the graphs see"),
        (("dialog", "context", "n-vocab"), facts.vocabulary, "the logits' width is"),
        (("dialog", "context", "eos-token"), [*facts.stops], "the model ends with"),
        ((*_ENGINE, "backend", "QnnHtp", "kv-dim"), facts.head_dim, "the cache has heads of"),
        ((*_ROPE, "rope-dim"), facts.head_dim // 2, "the graphs take half of a head,"),
        ((*_ROPE, "rope-theta"), facts.rotations[""].theta, "the source has"),
        ((*_ENGINE, "backend", "extensions"), genie_config.EXTENSIONS, "the file is"),
    ]
    if rows := graphs[0].edges.get(EMBEDDED):
        expected += [
            (("dialog", "embedding", "lut-path"), TABLE, "the table is"),
            (("dialog", "embedding", "size"), facts.hidden, "a row has"),
            (("dialog", "embedding", "datatype"), "ufixed16", "the graphs take"),
            (("dialog", "embedding", "quant-param", "scale"), rows.scale, "the graphs take"),
            (("dialog", "embedding", "quant-param", "offset"), -rows.zero_point, "the graphs take"),
        ]
    elif _at(config, "dialog", "embedding") is not None:
        yield f"{genie_config.CONFIG} has a table of embeddings, which the graphs have themselves"
    for path, wanted, said in expected:
        found = _at(config, *path)
        if found != wanted:
            yield f"{path[-1]} of {genie_config.CONFIG} is {_told(found)}; {said} {_told(wanted)}"
    binaries = _at(config, *_ENGINE, "model", "binary", "ctx-bins")
    listed = [str(name) for name in binaries] if isinstance(binaries, list) else []
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield f"{genie_config.CONFIG} lists {name} {listed.count(name)} times: its graphs would be loaded again"
    if missing := sorted({binary for graph in graphs for binary in graph.binaries} - {*listed}):
        yield f"{genie_config.CONFIG} does not list {', '.join(missing)}"
    devices = _at(extension, "devices")
    device = devices[0] if isinstance(devices, list) and devices else None
    for key, wanted in (("soc_model", target.soc_model), ("dsp_arch", f"v{target.htp_arch}")):
        if (found := _at(device, key)) != wanted:
            yield f"{key} of {genie_config.EXTENSIONS} is {_told(found)}; the binaries are for {_told(wanted)}"
    for soc in sorted({graph.soc_model for graph in graphs} - {target.soc_model}):
        yield f"a binary is for SoC {soc}, not for {target.soc_model}"
    pad = _at(config, "dialog", "context", "pad-token")
    if not isinstance(pad, int) or not 0 <= pad < facts.vocabulary:
        yield f"pad-token of {genie_config.CONFIG} is {_told(pad)}, which is no token"


def genai_faults(folder: Path, graphs: Sequence[SpokenGraph], facts: LanguageFacts) -> Iterator[str]:
    """What is wrong with a folder of onnxruntime-genai, in sentences."""
    config = _read(folder / genai_config.CONFIG)
    prefill = longest_pair(graphs)[1]
    sequence, total = prefill.sequence, prefill.total
    zeros = {edge.zero_point for graph in graphs for name, edge in graph.edges.items() if name.startswith("past_")}
    expected: list[tuple[tuple[str, ...], Json, str]] = [
        (("model", "context_length"), total, "the graphs see"),
        (("model", "vocab_size"), facts.vocabulary, "the logits' width is"),
        (("model", "eos_token_id"), [*facts.stops], "the model ends with"),
        (("model", "decoder", genai_config.WINDOW, "window_size"), sequence, "prefill takes"),
        (("model", "decoder", genai_config.WINDOW, "pad_value"), min(zeros, default=None), "zero of the cache is"),
    ]
    for path, wanted, said in expected:
        if (found := _at(config, *path)) != wanted:
            yield f"{path[-1]} of {genai_config.CONFIG} is {_told(found)}; {said} {_told(wanted)}"
    if len(zeros) > 1:
        yield f"zero of the cache is {sorted(zeros)}, and {genai_config.CONFIG} has one pad_value"
    if total < 2 * sequence:
        yield f"onnxruntime-genai takes a context of two windows or more, and {total} is less than twice {sequence}"


def tokenizer_faults(folder: Path, facts: LanguageFacts) -> Iterator[str]:
    """What is wrong with the tokenizer in `folder`: Genie opens an empty one, and ends the process at a question."""
    size = read_vocabulary(folder / TOKENIZER).size
    if not size:
        yield f"{TOKENIZER} has no tokens"
    elif size > facts.vocabulary:
        yield f"{TOKENIZER} has {size} tokens, the logits are of {facts.vocabulary}"


def _read(path: Path) -> Json:
    try:
        found: Json = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _at(raw: Json, *keys: str) -> Json:
    for key in keys:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw


def _told(value: Json) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
