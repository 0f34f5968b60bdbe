"""context: compile every bucket and target of the step for HTP, into context models and binaries.

Inputs: ``model/<bucket>``, a static QDQ model, or a static float model to run in float16; ``packing`` where the form of
the binaries is chosen.

    separate    one bucket, one target     <component>_<bucket>_ctx.onnx, and a .bin of its own
    buckets     one target                 the same for each bucket, and one .bin that they share
    socs        one bucket                 one of each; the .bin holds a context for each target

A language model that one context can't hold is split by layers: one context model for each bucket all the same, and a
.bin for each part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.contracts.context import CompiledModel, Facts, Params, Part
from pipeline.contracts.packing import Form, PackingChoice
from pipeline.contracts.target import HtpTarget
from pipeline.errors import ConfigError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.language.parts import cuts
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Compile, or make nothing if `packing` chose another form.

    Raises:
        ConfigError: a language model in parts was to be for several targets in one binary.
        CompileError: QNN did not produce the context that was asked for.
        ModelError, QuantizationError: the model is one that QNN can't compile.
    """
    params = Params.from_json(request.params)
    form, component = params.form, params.component
    if "packing" in request.inputs and PackingChoice.from_json(request.inputs["packing"].facts).chosen != form:
        print(f"{form}: not chosen")
        return StageResult(Facts(form, parts={}).to_json())
    models = {f"{component}_{bucket}": request.inputs[f"model/{bucket}"].folder / MODEL for bucket in params.buckets}
    at = _cuts(next(iter(models.values())), params)
    if params.compiler == "qairt":
        from pipeline.qnn.compiling.qairt import compile_by_sdk

        ((name, model),) = models.items()
        contexts = {name: compile_by_sdk(model, name, params.targets[0], request.out)}
    elif at:
        contexts = _compiled_in_parts(form, component, models, at, params.targets, request.out)
    else:
        contexts = _compiled(form, component, models, params.targets, request.out)
    parts = {}
    for bucket, axes in params.buckets.items():
        made = contexts[f"{component}_{bucket}"]
        parts[bucket] = Part.of(made, bucket, axes)
        print(f"{component}_{bucket}: {made.partitions} partitions, {len(made.cpu_nodes)} nodes on the CPU")
    return StageResult(Facts(form, parts).to_json())


def _cuts(model: Path, params: Params) -> tuple[str, ...]:
    """The values at which a language model is split, the same in all buckets, as they share the weights."""
    return () if params.parts is None else cuts(load_graph(model), params.parts or None)


def _compiled_in_parts(
    form: Form,
    component: str,
    models: Mapping[str, Path],
    at: Sequence[str],
    targets: Sequence[HtpTarget],
    out: Path,
) -> dict[str, CompiledModel]:
    from pipeline.qnn.compiling.parts import compile_parts

    if form == "socs":
        raise ConfigError(
            "a language model that is split into parts can't be for several targets in one binary",
            why=f"its weights take {len(at) + 1} contexts",
            remedy="write packing: buckets, or packing: separate",
        )
    name = next(iter(models))
    return compile_parts(models, at, targets[0], out, stem=component if form == "buckets" else name)


def _compiled(
    form: Form, component: str, models: Mapping[str, Path], targets: Sequence[HtpTarget], out: Path
) -> dict[str, CompiledModel]:
    """What was compiled, by the name of its model."""
    # Not above: where another form was chosen, nothing of QNN is loaded.
    from pipeline.qnn.compiling.compile import compile_context, compile_flexible, compile_shared

    name, model = next(iter(models.items()))
    if form == "socs":
        return {name: compile_flexible(model, name, targets, out)}
    if form == "buckets" and len(models) > 1:
        return compile_shared(models, targets[0], out, binary=f"{component}_ctx_qnn.bin")
    return {name: compile_context(model, name, targets[0], out)}
