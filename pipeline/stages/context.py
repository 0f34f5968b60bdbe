"""context: compile for HTP, every bucket and target that the step is about, into context models and binaries.

Inputs: ``model/<bucket>``, a static QDQ model, or a static float model to run in float16; ``packing`` where the form of
the binaries is chosen.

    separate    one bucket, one target     <component>_<bucket>_ctx.onnx, and a .bin of its own
    buckets     one target                 the same for each bucket, and one .bin that they share
    socs        one bucket                 one of each; the .bin holds a context for each target
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.contracts.context import CompiledModel, Facts, Params, Part, PartFacts
from pipeline.contracts.packing import Form, PackingChoice
from pipeline.contracts.target import HtpTarget
from pipeline.graph.files.model_file import MODEL
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Compile, or leave it where another form was chosen.

    Raises:
        CompileError: QNN did not produce the context that was asked for.
        ModelError, QuantizationError: the model is one that QNN can't compile.
    """
    params = Params.from_json(request.params)
    form, component = params.form, params.component
    if "packing" in request.inputs and PackingChoice.from_json(request.inputs["packing"].facts).chosen != form:
        print(f"{form}: not chosen")
        return StageResult(Facts(form, parts={}).to_json())
    models = {f"{component}_{bucket}": request.inputs[f"model/{bucket}"].folder / MODEL for bucket in params.buckets}
    contexts = _compiled(form, component, models, params.targets, request.out)
    parts = {}
    for bucket, axes in params.buckets.items():
        made = contexts[f"{component}_{bucket}"]
        facts = PartFacts.from_json({**made.to_json(), "bucket": bucket, "axes": {**axes}})
        parts[bucket] = Part({name: name for name in (made.context_model, *made.binaries)}, facts)
        print(f"{component}_{bucket}: {made.partitions} partitions, {len(made.cpu_nodes)} nodes on the CPU")
    return StageResult(Facts(form, parts).to_json())


def _compiled(
    form: Form, component: str, models: Mapping[str, Path], targets: Sequence[HtpTarget], out: Path
) -> dict[str, CompiledModel]:
    """What was compiled, by the name of its model."""
    # Not above: where another form was chosen, nothing of QNN is loaded.
    from pipeline.qnn.compile import compile_context, compile_flexible, compile_shared

    name, model = next(iter(models.items()))
    if form == "socs":
        return {name: compile_flexible(model, name, targets, out)}
    if form == "buckets" and len(models) > 1:
        return compile_shared(models, targets[0], out, binary=f"{component}_ctx_qnn.bin")
    return {name: compile_context(model, name, targets[0], out)}
