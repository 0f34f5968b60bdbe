"""The kinds of steps: a record for each stage, from which plan, keys, costs, configuration and doit's tasks are made.

A new stage is a name and a record here, and a module in `pipeline/stages/` with its contract in `pipeline/contracts/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.frozen import dataclass

StageName = Literal[
    "fetch",
    "ingest",
    "shape",
    "rewrite",
    "samples",
    "calibrate",
    "correlate",
    "precision",
    "quantize",
    "verify",
    "words",
    "reading",
    "packing",
    "context",
    "alone",
    "bundle",
    "emulate",
    "export",
    "converse",
    "blame",
    "probe",
]

_ONNX = ("numpy", "onnx", "onnxruntime")
_QNN = (*_ONNX, "onnxruntime-qnn", "qairt")


@dataclass(frozen=True)
class Stage:
    """A kind of step.

    `doc` is the text of `doit list`. `tools` are the packages whose version can change the output: those that the
    stage's code computes with, which a test holds against the imports, and `qairt`, the SDK inside onnxruntime-qnn.
    `asked` are packages of an extra that the stage asks where they are installed: their answers are in the output.
    `on_demand` stages are no part of a build.

    A step that never ran is assumed to take `seconds`, and `base_mb` of memory plus `per_input_byte` times the bytes of
    its inputs: measured on float32 models of 1 and 90 MB and rounded up, as too low a guess may cost a build, and too
    high a guess only some parallelism, once. `at_once`: how many of its largest children run side by side where memory
    allows it.
    """

    doc: str
    tools: tuple[str, ...]
    seconds: float
    base_mb: int
    per_input_byte: float
    asked: tuple[str, ...] = ()
    on_demand: bool = False
    at_once: int = 1


# In the order they run. `fetch` parses ONNX files only to see which files they name.
STAGES: Mapping[str, Stage] = {
    "fetch": Stage("Download a model's files from the hub, or take them from a folder.", (), 1, 100, 0),
    "ingest": Stage("Check one component and put its weights into one file.", _ONNX, 1, 100, 1.5),
    "shape": Stage("Fix every dimension of a component for one bucket.", _ONNX, 0.3, 100, 0.5),
    "rewrite": Stage("Rewrite what HTP would compute wrongly or not at all.", _ONNX, 0.3, 100, 0.5),
    "samples": Stage("Turn the calibration set into input arrays.", (*_ONNX, "jinja2", "tokenizers"), 0.5, 150, 0.5),
    "calibrate": Stage("Measure the range of every activation over all buckets.", _ONNX, 3, 200, 2),
    "correlate": Stage(
        "Measure how the inputs of each weight vary together, for rounding that looks at the data.", _ONNX, 10, 500, 2.5
    ),
    "precision": Stage(
        "Search for the cheapest quantization of a component that keeps to its thresholds.", _QNN, 60, 500, 4
    ),
    "quantize": Stage(
        "Quantize the weights of a component once, and make the QDQ model of each bucket.", _ONNX, 2, 200, 1.5
    ),
    "verify": Stage(
        "Measure what padding, rewriting and quantizing one bucket costs, on held-out samples.", _ONNX, 5, 200, 3
    ),
    "words": Stage(
        "Write down held-out speech by the original and by what was made of it, and compare the words.",
        (*_ONNX, "tokenizers"),
        30,
        300,
        4,
    ),
    "reading": Stage(
        "Hold what ingest made of a component against the source's own file, on held-out samples.",
        (*_ONNX, "jinja2", "tokenizers"),
        3,
        200,
        3,
        asked=("xllamacpp",),
    ),
    "packing": Stage(
        "Estimate how large the binaries become when buckets or targets share them, and choose.", _ONNX, 0.3, 120, 0
    ),
    "context": Stage(
        "Compile for HTP: one bucket for one target, or several buckets or targets into one binary.", _QNN, 5, 300, 6
    ),
    "alone": Stage(
        "Compile one bucket of a language model with a binary of its own, which the emulator and engines take.",
        _QNN,
        5,
        300,
        6,
    ),
    "bundle": Stage(
        "Write what onnxruntime-genai and Genie open beside the contexts of a language model.",
        ("jinja2", "numpy", "onnx", "onnxruntime-qnn", "qairt", "tokenizers"),
        2,
        200,
        0.5,
    ),
    "emulate": Stage(
        "Run the context of one bucket on the emulator and measure what compiling costs.", _QNN, 20, 400, 4, at_once=2
    ),
    "export": Stage(
        "Put the contexts of a component for one target into a file of another engine.",
        (*_QNN, "flatbuffers"),
        1,
        200,
        2,
    ),
    "converse": Stage(
        "Ask Genie, onnxruntime-genai and the reference loop what follows a prompt, on the emulator.",
        (*_QNN, "jinja2", "tokenizers"),
        60,
        500,
        3,
        asked=("onnxruntime-genai",),
    ),
    "blame": Stage(
        "Rank the values of one bucket by what quantizing them costs (not part of a build).",
        _ONNX,
        10,
        300,
        4,
        on_demand=True,
    ),
    "probe": Stage(
        "Find where the context of one bucket begins to compute otherwise than the CPU (not part of a build).",
        _QNN,
        20,
        400,
        6,
        on_demand=True,
    ),
}
