"""bundle: write the files beside a language model's contexts that onnxruntime-genai and Genie open.

Inputs: ``ingest``, ``context/<bucket>``, and ``table`` where embeddings stay on the host. Output: for genai
``genai_config.json`` and ``inputs.onnx``, for Genie ``genie_config.json`` and ``htp_backend_ext_config.json``, for both
``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``, if there is one, and ``embedding.bin``, if that
is on the host. This stage looks for faults that neither engine would notice; the build's gates judge them.
"""

from __future__ import annotations

from pipeline.contracts import ingest
from pipeline.contracts.bundle import Facts, Params
from pipeline.contracts.context import PartFacts
from pipeline.graph.language.names import TABLE
from pipeline.inputs.bundle_files import write_bundle
from pipeline.model import StageRequest, StageResult
from pipeline.qnn.engines.graphs import read_graphs


def run(request: StageRequest) -> StageResult:
    """Write the files and look at them again.

    Raises:
        CompileError: a binary can't be read.
    """
    params = Params.from_json(request.params)
    language = ingest.Facts.from_json(request.inputs["ingest"].facts).language
    assert language is not None
    given = [request.inputs[f"context/{bucket}"] for bucket in params.buckets]
    graphs = read_graphs([(each.folder, PartFacts.from_json(each.facts)) for each in given])
    # Of a model whose table is in its graphs there is none.
    table = request.inputs["table"].folder / TABLE if "table" in request.inputs else None
    facts: Facts = write_bundle(request.inputs["ingest"].folder, language, graphs, params.target, request.out, table)
    for engine, config in facts.configs.items():
        print(f"{engine}: {config}")
    for engine, why in facts.unwritten.items():
        print(f"nothing for {engine}: {why}")
    for fault in facts.faults:
        print(f"wrong: {fault}")
    return StageResult(facts.to_json())
