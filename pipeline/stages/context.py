"""context: compile for HTP, every bucket and target that the step is about, into context models and binaries.

Inputs: ``model/<bucket>``, a static QDQ model, or a static float model to run in float16; ``packing`` where the form of
the binaries is chosen. Params: ``component``, ``buckets`` (name -> axes), ``form``, ``targets`` (``soc_model``,
``htp_arch``, ``vtcm_mb``, None: the compiler's choice); ``compile: device`` where contexts are compiled on the device,
which is seen to before, and is in the key so that those of another host are not taken for them.

    separate    one bucket, one target     <component>_<bucket>_ctx.onnx, and a .bin of its own
    buckets     one target                 the same for each bucket, and one .bin that they share
    socs        one bucket                 one of each; the .bin holds a context for each target

Facts: ``form``, and ``parts``, for each bucket ``bucket``, ``axes`` and the facts of a
:class:`pipeline.qnn.readback.Context`. Where another form was chosen, nothing is made, and ``parts`` is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pipeline.graph.model_file import MODEL
from pipeline.model import PARTS, Json, StageRequest, StageResult
from pipeline.qnn.target import HtpTarget


def run(request: StageRequest) -> StageResult:
    """Compile, or leave it where another form was chosen.

    Raises:
        CompileError: QNN did not produce the context that was asked for.
        ModelError, QuantizationError: the model is one that QNN can't compile.
    """
    form = str(request.params["form"])
    if "packing" in request.inputs and request.inputs["packing"].facts["chosen"] != form:
        print(f"{form}: not chosen")
        return StageResult({"form": form, PARTS: {}})
    component = request.params["component"]
    buckets = cast("Mapping[str, dict[str, Json]]", request.params["buckets"])
    targets = [HtpTarget.from_json(target) for target in cast("list[Mapping[str, Json]]", request.params["targets"])]
    models = {f"{component}_{bucket}": request.inputs[f"model/{bucket}"].folder / MODEL for bucket in buckets}
    contexts = _compiled(form, str(component), models, targets, request.out)
    parts: dict[str, Json] = {}
    for bucket, axes in buckets.items():
        facts = contexts[f"{component}_{bucket}"]
        files: dict[str, Json] = {name: name for name in _files(facts)}
        parts[bucket] = {"files": files, "facts": {"bucket": bucket, "axes": axes, **facts}}
        nodes = cast("list[Json]", facts["cpu_nodes"])
        print(f"{component}_{bucket}: {facts['partitions']} partitions, {len(nodes)} nodes on the CPU")
    return StageResult({"form": form, PARTS: parts})


def _compiled(
    form: str, component: str, models: Mapping[str, Path], targets: list[HtpTarget], out: Path
) -> dict[str, dict[str, Json]]:
    """The facts of each context, by the name of its model."""
    # Not above: where another form was chosen, nothing of QNN is loaded.
    from pipeline.qnn.compile import compile_context, compile_flexible, compile_shared

    name, model = next(iter(models.items()))
    if form == "socs":
        return {name: compile_flexible(model, name, targets, out).facts()}
    if form == "buckets" and len(models) > 1:
        shared = compile_shared(models, targets[0], out, binary=f"{component}_ctx_qnn.bin")
        return {name: context.facts() for name, context in shared.items()}
    return {name: compile_context(model, name, targets[0], out).facts()}


def _files(facts: Mapping[str, Json]) -> list[str]:
    return [str(facts["context_model"]), *cast("list[str]", facts["binaries"])]
