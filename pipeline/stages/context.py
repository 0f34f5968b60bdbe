"""Compile one bucket of a component for one target: context model and context binary."""

from __future__ import annotations

from pipeline.graph.model_file import MODEL
from pipeline.model import StageRequest, StageResult
from pipeline.qnn.compile import compile_context
from pipeline.qnn.target import HtpTarget


def run(request: StageRequest) -> StageResult:
    """Write `<component>_<bucket>_ctx.onnx` and `<component>_<bucket>_ctx_qnn.bin`.

    Inputs: `model`, a static QDQ model, or a static float model to run in float16. Params: `component`, `bucket`,
    `axes`, `soc_model`, `htp_arch`, `vtcm_mb` (None: the compiler's choice).

    Raises:
        CompileError: QNN did not produce the context that was asked for.
        ModelError, QuantizationError: the model is one that QNN can't compile.
    """
    params = request.params
    soc_model, htp_arch, vtcm_mb = params["soc_model"], params["htp_arch"], params["vtcm_mb"]
    assert isinstance(soc_model, int)
    assert isinstance(htp_arch, int)
    assert isinstance(vtcm_mb, int | None)
    target = HtpTarget(soc_model, htp_arch, vtcm_mb)
    name = f"{params['component']}_{params['bucket']}"
    context = compile_context(request.inputs["model"].folder / MODEL, name, target, request.out)
    print(f"{name}: {context.partitions} partitions, {len(context.cpu_nodes)} nodes on the CPU")
    return StageResult({"bucket": params["bucket"], "axes": params["axes"], **context.facts()})
