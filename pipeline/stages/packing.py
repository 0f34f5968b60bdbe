"""packing: estimate the bytes of a component's binaries in each form, and choose the smallest.

Inputs: ``model/<bucket>``, what will be compiled. Output: ``report.txt``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.packing import Facts, Form, Params
from pipeline.graph.files.model_file import MODEL
from pipeline.model import StageRequest, StageResult
from pipeline.qnn.compiling.pack_size import Graph, estimate
from pipeline.qnn.target import SHARED_WEIGHTS_HTP_ARCH

WORTHWHILE = 0.9
"""A form that shares binaries has to save a tenth, as only binaries that share nothing are emulated as they ship."""


def run(request: StageRequest) -> StageResult:
    """Estimate and choose."""
    params = Params.from_json(request.params)
    forms, targets = params.forms, params.targets
    graphs = [Graph.of(request.inputs[f"model/{bucket}"].folder / MODEL) for bucket in params.buckets]
    estimates: dict[Form, int | None] = {form: estimate(form, graphs, len(targets)) for form in forms}
    if any(target.htp_arch < SHARED_WEIGHTS_HTP_ARCH for target in targets):
        estimates |= {form: None for form in forms if form == "buckets"}
    chosen, why = _choice({form: size for form, size in estimates.items() if size is not None}, forms[0])
    rows = "".join(f"{form:<10}{_shown(size)}\n" for form, size in estimates.items())
    text = f"{len(graphs)} buckets, {len(targets)} targets, estimated bytes of all binaries:\n{rows}{chosen}: {why}\n"
    (request.out / "report.txt").write_text(text, "utf-8")
    print(text, end="")
    return StageResult(Facts(chosen, why, estimates).to_json())


def _choice(estimates: Mapping[Form, int], plainest: Form) -> tuple[Form, str]:
    smallest = min(estimates, key=lambda form: estimates[form])
    if smallest == plainest or estimates[smallest] > WORTHWHILE * estimates[plainest]:
        return plainest, "no other form saves a tenth, and these binaries are emulated as they ship"
    saved = 1 - estimates[smallest] / estimates[plainest]
    return smallest, f"{saved:.0%} smaller than {plainest}"


def _shown(size: int | None) -> str:
    return f"{size:>15,}" if size is not None else "              - (the targets can't take it)"
