"""alone: compile one bucket of a language model by itself, where what ships is a binary that all buckets share.

The emulator takes no shared binary. This stage gives the same graph a binary of its own, which the emulator runs and
engines open. `context` and `alone` do not wait for each other.

Inputs: ``model``, the bucket's QDQ model, or a float model to run in float16. Output: what `context` makes of the form
``separate``; nothing for a model in parts, of which twins are emulated in its place.
"""

from __future__ import annotations

from pipeline.contracts.alone import Params
from pipeline.contracts.context import Facts, Part
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.language.parts import cuts
from pipeline.model import StageRequest, StageResult
from pipeline.qnn.compiling.compile import compile_context


def run(request: StageRequest) -> StageResult:
    """Compile the bucket.

    Raises:
        CompileError: QNN did not produce the context that was asked for.
        ModelError, QuantizationError: the model is one that QNN can't compile.
    """
    params = Params.from_json(request.params)
    ((bucket, axes),) = params.buckets.items()
    model = request.inputs["model"].folder / MODEL
    if params.parts is not None and cuts(load_graph(model), params.parts or None):
        print("in parts: not compiled a second time")
        return StageResult(Facts("separate", {}).to_json())
    made = compile_context(model, f"{params.component}_{bucket}", params.target, request.out)
    print(f"{params.component}_{bucket}: {made.partitions} partitions, by itself")
    return StageResult(Facts("separate", {bucket: Part.of(made, bucket, axes)}).to_json())
