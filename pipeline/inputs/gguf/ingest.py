"""A GGUF file as a component: its graph, its weights in float32, its tokenizer, and facts."""

from __future__ import annotations

from onnx import ModelProto

from pipeline.contracts.ingest import Facts
from pipeline.contracts.language import LanguageFacts
from pipeline.errors import SourceError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import CONVERTED, MODEL, signature
from pipeline.graph.language.architectures import BUILDERS
from pipeline.graph.language.builder import OPSET, GraphBuilder
from pipeline.graph.language.names import TEMPLATE, TOKENIZER
from pipeline.graph.shapes.axes import model_axes
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.language import GgufWeights, hyper_of
from pipeline.inputs.gguf.tokenizer import special, stops, tokenizer_json
from pipeline.model import StageRequest, StageResult


def ingest_language(request: StageRequest, name: str) -> StageResult:
    """Write ``model.onnx`` and ``converted.bin``, ``tokenizer.json``, and the chat template if there is one.

    One tensor is in memory at a time, of tables a piece.

    Raises:
        SourceError: the source has no such file.
        ModelError: the file is damaged, or its model is none that can be built.
    """
    if name not in request.inputs["fetch"].files:
        raise SourceError(
            f"the source has no file {name!r}",
            why=f"it has {', '.join(sorted(request.inputs['fetch'].files)) or 'none'}",
            remedy="correct 'file' of this component in the config",
        )
    file = read_gguf(request.inputs["fetch"].folder / name)
    hyper = hyper_of(file)
    tokenizer = tokenizer_json(file)
    with BlobWriter(request.out / CONVERTED) as blob:
        builder = GraphBuilder(hyper, GgufWeights(file, hyper), blob)
        BUILDERS[hyper.architecture](builder)
        raw = builder.model(hyper.architecture)
    (request.out / MODEL).write_bytes(raw)
    (request.out / TOKENIZER).write_text(tokenizer, "utf-8", newline="\n")
    template = file.text("tokenizer.chat_template")
    if template:
        (request.out / TEMPLATE).write_text(template, "utf-8", newline="\n")
    begins = file.flag("tokenizer.ggml.add_bos_token")
    bos = (
        special(file, "bos")
        if (begins if begins is not None else file.text("tokenizer.ggml.model") == "llama")
        else None
    )
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
            stops=stops(file),
            bos=bos,
            pad=special(file, "padding"),
        ),
    )
    return StageResult(facts.to_json())
