"""A language model from a source of any form, and how it is made into the graph of a component."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from pipeline.contracts.ingest import Facts
from pipeline.contracts.language import LanguageFacts
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import CONVERTED, MODEL, WEIGHTS, signature
from pipeline.graph.language.architectures import BUILDERS
from pipeline.graph.language.builder import OPSET, GraphBuilder
from pipeline.graph.language.hyper import Hyper, Weights
from pipeline.graph.language.names import TEMPLATE, TOKENIZER
from pipeline.graph.shapes.axes import model_axes
from pipeline.model import StageRequest, StageResult


@dataclass(frozen=True)
class LanguageSource:
    """Sizes and weights, the texts of tokenizer.json and of the chat template, and special tokens.

    `stops` are the tokens that end an answer. `bos` begins every text if it is not None. `named` has the texts of the
    tokens that a chat template calls by the names in :data:`pipeline.graph.language.names.TOKEN_NAMES`.
    """

    hyper: Hyper
    weights: Weights
    tokenizer: str
    template: str | None
    stops: tuple[int, ...]
    bos: int | None
    pad: int | None
    named: Mapping[str, str]


def ingest_language(request: StageRequest, name: str, read: Callable[[Path], LanguageSource]) -> StageResult:
    """Write ``model.onnx``, ``tokenizer.json``, the chat template if there is one, and ``converted.bin`` with norms.

    The graph reads its weights from ``weights.bin``, the file of the source, and from ``weights_2.bin`` and so on if
    the source has several. `read` opens the file `name` of the source. One tensor at a time is in memory, or a piece of
    a table.

    Raises:
        ModelError: the file is damaged, or its model is not supported.
    """
    given = request.inputs["fetch"]
    source = read(given.folder / name)
    hyper = source.hyper
    kept: dict[Path, str] = {}

    def blob_of(path: Path) -> str:
        number = len(kept) + 1
        return kept.setdefault(path, WEIGHTS if number == 1 else WEIGHTS.replace(".", f"_{number}."))

    with BlobWriter(request.out / CONVERTED) as blob:
        builder = GraphBuilder(hyper, source.weights, blob, blob_of)
        BUILDERS[hyper.architecture](builder)
        raw = builder.model(hyper.architecture)
    (request.out / MODEL).write_bytes(raw)
    (request.out / TOKENIZER).write_text(source.tokenizer, "utf-8", newline="\n")
    if source.template:
        (request.out / TEMPLATE).write_text(source.template, "utf-8", newline="\n")
    model = ModelProto.FromString(raw)
    known = signature(model)
    print(f"{name}: {hyper.architecture}, {hyper.layers} layers of {hyper.hidden}, {hyper.vocabulary} tokens")
    facts = Facts(
        inputs=known.inputs,
        outputs=known.outputs,
        constants={},
        opset=OPSET,
        nodes=len(model.graph.node),
        axes={axis: tuple(inputs) for axis, inputs in model_axes(model).items()},
        language=LanguageFacts(
            architecture=hyper.architecture,
            layers=hyper.layers,
            hidden=hyper.hidden,
            heads=hyper.heads,
            kv_heads=hyper.kv_heads,
            head_dim=hyper.head_dim,
            vocabulary=hyper.vocabulary,
            context=min(hyper.context, hyper.window or hyper.context),
            rotations=hyper.rotations,
            stops=source.stops,
            bos=source.bos,
            pad=source.pad,
            named=source.named,
        ),
    )
    reused = {name: ("fetch", path.relative_to(given.folder).as_posix()) for path, name in kept.items()}
    return StageResult(facts.to_json(), reused)
