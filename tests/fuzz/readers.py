"""The readers that take foreign bytes, each as a function of the bytes and an empty folder."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from pipeline.build.worker import load_answer
from pipeline.config.load import load
from pipeline.contracts.ingest import Facts
from pipeline.contracts.samples import Reading
from pipeline.contracts.values import TensorSpec
from pipeline.errors import PipelineError
from pipeline.graph.files import lean_parse
from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.files.model_file import MODEL, load_graph, tensor_array, tensor_pieces
from pipeline.graph.shapes import folding
from pipeline.graph.shapes.axes import DimError, axis_names, dim_size
from pipeline.inputs.gguf.source import gguf_source
from pipeline.inputs.language_source import LanguageSource
from pipeline.inputs.pins import read_pins
from pipeline.inputs.safetensors.hyper import hyper_of_folder
from pipeline.inputs.safetensors.source import safetensors_source
from pipeline.inputs.samples import arrays, text
from pipeline.inputs.samples.conform import Interface
from pipeline.inputs.samples.lines import read_lines
from pipeline.inputs.samples.request import ReadRequest
from pipeline.inputs.source import external_names, local_files, sides_of
from pipeline.plan.planner import plan
from pipeline.propose.interface import look_at
from pipeline.qnn.format import context_binary, context_model
from pipeline.qnn.format.dlc import read_records
from pipeline.qnn.format.flexible import digests, read_flexible
from pipeline.release import prune
from pipeline.store import sealed_json
from pipeline.store.manifests import read_manifest
from tests.support.configs import load_all
from tests.support.gguf_files import TinySizes
from tests.support.safetensors_files import tiny_config
from tests.support.stage_runs import given, run_stage

_IDS = Interface((TensorSpec("input_ids", "int64", (1, "n")),), {"8": {"n": 8}}, {})


@dataclass(frozen=True)
class Reader:
    """`read(data, folder)` may raise PipelineError; `kind` is the structure of its bytes (tests/fuzz/mutate.py).

    `native`: foreign code may end the process, so the reader is only called in one that may end.
    """

    read: Callable[[bytes, Path], object]
    kind: str
    native: bool = False


def _written(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _wire(data: bytes, folder: Path) -> None:
    path = _written(data, folder, MODEL)
    with contextlib.suppress(PipelineError):
        external_names(MODEL, path)
    parse_lean(path)
    look_at(MODEL, path)


def _model(data: bytes, folder: Path) -> None:
    """As a build takes a model in, to where the compiler would get it; weights are in `w.bin` if they say so."""
    source = folder / "source"
    _written(data, source, MODEL)
    _written(bytes(4096), source, "w.bin")
    local_files(source, [MODEL])
    with patch.object(folding, "_LONGEST_S", 1.0):
        _built(source, folder)


def _built(source: Path, folder: Path) -> None:
    ingest = run_stage("ingest", folder / "ingest", {"file": MODEL}, {"fetch": given(source, {})})
    named = Facts.from_json(ingest.facts).axes
    shape = run_stage("shape", folder / "shape", {"axes": dict.fromkeys(named, 8)}, {"ingest": ingest})
    run_stage("rewrite", folder / "rewrite", {}, {"shape": shape})


def _tensor(data: bytes, folder: Path) -> None:
    tensor = TensorProto()
    with contextlib.suppress(DecodeError):
        tensor.ParseFromString(data)
    if not lean_parse._texts_are_utf8(tensor):  # parse_lean lets no such tensor through
        return
    _written(bytes(4096), folder, "w.bin")
    with contextlib.suppress(PipelineError):
        for _ in tensor_pieces(tensor, folder):
            pass
    tensor_array(tensor, folder)


def _dim(data: bytes, _: Path) -> None:
    name = data.decode("utf-8", "replace")
    names = axis_names(name)
    with contextlib.suppress(DimError):
        dim_size(name, dict.fromkeys(names, 3))


def _config(data: bytes, folder: Path) -> None:
    path = _written(data, folder, "configs/mine.yaml")
    with contextlib.suppress(PipelineError):
        load_all(path.parent)
    for _ in itertools.islice(plan(load(path)), 10_000):
        pass


def _pins(data: bytes, folder: Path) -> None:
    read_pins(_written(data, folder, "pins.yaml"))


def _request(folder: Path, reader: str, **more: str) -> ReadRequest:
    return ReadRequest(
        Reading.from_json({"reader": reader, "max_samples": 50, **more}),
        {"net": _IDS},
        {},
        folder / "source",
        folder / "samples",
    )


def _arrays(data: bytes, folder: Path) -> None:
    _written(data, folder, "samples/0.npz")
    for _ in arrays.read(_request(folder, "npz")):
        pass


def _array(data: bytes, folder: Path) -> None:
    _written(data, folder, "samples/0.npy")
    for _ in arrays.read(_request(folder, "npz")):
        pass


def _lines(data: bytes, folder: Path) -> None:
    for name in ("a.txt", "b.tsv"):
        with contextlib.suppress(PipelineError):
            for _ in read_lines(_written(data, folder, name), 1000):
                pass


def _tokenizer(data: bytes, folder: Path) -> None:
    _written(data, folder, "source/tokenizer.json")
    _written("one two three\n한국어 ... [CLS] \u202e!\n".encode(), folder, "samples")
    for _ in text.read(_request(folder, "text")):
        pass


def _dlc(data: bytes, folder: Path) -> None:
    path = _written(data, folder, "a.bin")
    with contextlib.suppress(PipelineError):
        for record in read_records(path):
            for _ in record.chunks():
                pass
    digests(read_flexible(path))


def _binary(data: bytes, folder: Path) -> None:
    context_binary.read_binaries(_written(data, folder, "a.bin"))


def _context(data: bytes, folder: Path) -> None:
    model = load_graph(_written(data, folder, "a_ctx.onnx"))
    for node in context_model.partitions(model):
        context_model.partition_name(node)
    context_model.binary_names(model)
    context_model.is_flexible(model)
    context_model.set_compatibility(model, context_model.parsed_compatibility(model, "a_ctx.onnx").of([57]))


def _prune(data: bytes, folder: Path) -> None:
    """A folder of artifacts whose manifest is `data`."""
    _written(data, folder, "socs/manifest.json")
    prune.prune_folder(folder / "socs", ["sm8650"], folder / "out")


def _manifest(data: bytes, folder: Path) -> None:
    """A manifest in the store whose seal is right."""
    path = _written(data, folder, "manifest.json")
    read_manifest(path)
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(data)
        if isinstance(content, dict) and content:
            path.write_bytes(sealed_json.dump({key: value for key, value in content.items() if key != "sha256"}))
    manifest = read_manifest(path)
    if manifest is not None:
        for name in manifest.files:
            assert (folder / "in" / name).resolve().is_relative_to((folder / "in").resolve())
        parts = manifest.facts.get("parts")
        for bucket in parts if isinstance(parts, dict) else ():
            manifest.part(bucket)


def _answer(data: bytes, folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):  # what the crew takes for a worker that died
        load_answer(_written(data, folder, "answer.json"))


def _gguf(data: bytes, folder: Path) -> None:
    _spoken(gguf_source(_written(data, folder, "a.gguf")))


def _safetensors(data: bytes, folder: Path) -> None:
    """Weights beside a config that is sound."""
    path = _written(data, folder, "model.safetensors")
    _written(json.dumps(tiny_config(TinySizes(), 288, "llama")).encode(), folder, "config.json")
    _written(b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}', folder, "tokenizer.json")
    _written(b"{}", folder, "tokenizer_config.json")
    _spoken(safetensors_source(path))


def _spoken(source: LanguageSource) -> None:
    for name in ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"):
        if source.weights.shape(name) is not None:
            for _ in source.weights.pieces(name):
                pass


def _sides(data: bytes, folder: Path) -> None:
    """An index, a config.json and a tokenizer_config.json, all of the same bytes."""
    for name in ("model.safetensors.index.json", "config.json"):
        _written(data, folder, name)
    with contextlib.suppress(PipelineError):
        for name in sides_of("model.safetensors.index.json", folder / "model.safetensors.index.json"):
            assert (folder / name).resolve().is_relative_to(folder.resolve())
    hyper_of_folder(folder / "config.json")


READERS: Mapping[str, Reader] = {
    "wire": Reader(_wire, "protobuf"),
    "model": Reader(_model, "protobuf", native=True),
    "tensor": Reader(_tensor, "protobuf"),
    "gguf": Reader(_gguf, "bytes"),
    "safetensors": Reader(_safetensors, "bytes"),
    "sides": Reader(_sides, "json"),
    "dim": Reader(_dim, "text"),
    "config": Reader(_config, "text"),
    "pins": Reader(_pins, "text"),
    "npz": Reader(_arrays, "bytes"),
    "npy": Reader(_array, "bytes"),
    "lines": Reader(_lines, "text"),
    "tokenizer": Reader(_tokenizer, "json", native=True),
    "dlc": Reader(_dlc, "bytes"),
    "binary": Reader(_binary, "bytes", native=True),
    "context": Reader(_context, "protobuf"),
    "prune": Reader(_prune, "json"),
    "manifest": Reader(_manifest, "json"),
    "answer": Reader(_answer, "json"),
}
