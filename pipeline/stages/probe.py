"""probe: find the first values of one bucket that the emulator computes otherwise than the CPU does.

Where ``emulate`` measures outputs, this measures values between nodes: it compiles the model again with some of them as
outputs, a few times, and runs one sample; see :mod:`pipeline.qnn.probe` for what that can show and what not.

Inputs: ``ingest``, ``samples``, ``model`` (what was compiled: QDQ or float), and optionally ``emulate``, whose worst
sample is then run. Params: ``component``, ``bucket``, ``axes``, ``buckets``, ``padding``, ``part`` (of the samples),
``soc_model``, ``htp_arch``, ``vtcm_mb``, and optionally ``thresholds`` (rung -> dB). Facts: ``sample`` (null: there is
none), ``values`` (how many were measured), ``first_wrong`` (``compile`` -> rows as in ``blame``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pipeline.graph.blame import first_wrong, thresholds
from pipeline.graph.buckets import model_inputs, pad
from pipeline.graph.model_file import MODEL
from pipeline.model import Json, StageRequest, StageResult
from pipeline.qnn.probe import probe
from pipeline.qnn.target import HtpTarget
from pipeline.readers.held_out import ScoredSample, held_out

MOST_COMPILES = 3
"""Compiles that one search takes at most: the first one or two find the stretch, the last looks at all of it."""


def run(request: StageRequest) -> StageResult:
    """Search for the first values that go wrong.

    Raises:
        CalibrationError: a sample fits no bucket, or the model can't compute it.
    """
    inputs = model_inputs(request.inputs["ingest"].facts)
    samples = held_out(request.inputs["samples"].folder, request.params, inputs).samples
    if not samples:
        print(f"not measured: bucket {request.params['bucket']} holds none of the samples")
        return StageResult({"sample": None, "values": 0, "first_wrong": {"compile": []}})
    sample = _worst(request, samples)
    axes = cast("Mapping[str, int]", request.params["axes"])
    rules = cast("Mapping[str, float]", request.params["padding"])
    least = thresholds(request.params)["compile"]
    with tempfile.TemporaryDirectory(prefix="probe-", dir=request.out.parent, ignore_cleanup_errors=True) as work:
        rows = probe(
            request.inputs["model"].folder / MODEL,
            pad(sample.inputs, inputs, axes, rules),
            HtpTarget.from_json(request.params),
            Path(work),
            threshold_db=least,
            most_compiles=MOST_COMPILES,
        )
    wrong = first_wrong(rows, least)
    told = [
        *(row.line() for row in rows),
        f"{sample.name}: {len(wrong)} of {len(rows)} values are the first under {least:g} dB",
    ]
    text = "\n".join(told) + "\n"
    print(text, end="")
    (request.out / "report.txt").write_text(text, "utf-8", newline="\n")
    facts: dict[str, Json] = {
        "sample": sample.name,
        "values": len(rows),
        "first_wrong": {"compile": [row.facts() for row in wrong]},
    }
    return StageResult(facts)


def _worst(request: StageRequest, samples: Sequence[ScoredSample]) -> ScoredSample:
    """The sample that the emulator was worst on, the first one if that isn't known."""
    known: set[str] = set()
    if "emulate" in request.inputs:
        rungs = cast("Mapping[str, Mapping[str, Mapping[str, Json]]]", request.inputs["emulate"].facts["rungs"])
        figures = rungs.get("compile", {}).values()
        known = {str(figure["worst_sample"]) for figure in figures}
    return next((sample for sample in samples if sample.name in known), samples[0])
