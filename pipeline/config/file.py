"""What may be written in `configs/<model>.yaml`, as types.

These dataclasses are the only definition of the file: decoding, `configs/config.schema.json` and `docs/config.md` are
made from them, the text in the latter two from the docstrings here (`python -m pipeline.config.docs`). What the rest of
the program uses is :class:`pipeline.config.load.ModelConfig`, which has the merged and resolved values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pipeline.config.judging import Outputs, ThresholdsFile, Truth
from pipeline.config.quantization import BUDGET_MINUTES, Auto, Climb, Fp16, Quantization, QuantizationOverride
from pipeline.config.readers import Reader
from pipeline.config.written_values import (
    CONFIGS,
    Axis,
    AxisValue,
    ConstantValue,
    FunctionRef,
    Name,
    OnnxFile,
    RepoName,
    Revision,
    SourceFile,
    TensorName,
    path_under,
)
from pipeline.config.yaml.field_types import Between, Distinct, Pattern, Size
from pipeline.contracts.context import Compiler
from pipeline.contracts.export import ExportKind
from pipeline.frozen import dataclass

UnverifiedName = Annotated[
    str,
    Pattern(r"[^/\x00-\x1f]{1,100}(?:/[^/\x00-\x1f]{1,100}){0,2}", "<component>/<bucket>/<target>, or its beginning"),
]


@dataclass(frozen=True)
class HubSource:
    """A repository on the Hugging Face hub. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` are honoured."""

    hub: RepoName
    """Repository, as `owner/name`."""
    revision: Revision
    """Commit to build from, 40 hex digits. A branch or tag is taken too: the first fetch pins the commit it stands for
    in `configs/pins.yaml`, and later builds stay on that one."""


@dataclass(frozen=True)
class LocalSource:
    """A folder on this machine."""

    path: Annotated[
        Path, Pattern(r"[^\\\x00-\x1f]+", "a folder, relative to the config file or absolute"), path_under(CONFIGS)
    ]
    """Folder of the model, relative to the config file or absolute."""


@dataclass(frozen=True)
class ComponentFile:
    """One ONNX file of the model. Its external data is found and fetched with it."""

    file: OnnxFile
    """The file's path in the source. Name the float model where there is one: of an ONNX file that is quantized for
    CPUs the floats that it stands for are built. With `language_model`, a GGUF file, of any quantization that llama.cpp
    is commonly used with, or `model.safetensors`, or the `model.safetensors.index.json` of several: `config.json`,
    `tokenizer.json` and `tokenizer_config.json` beside it are fetched with it, `chat_template.jinja` and
    `generation_config.json` where `files` names them."""
    padding: Mapping[TensorName, float] = field(default_factory=dict)
    """Value to fill each input with up to the bucket's length; 0 for an input that is not named, which is right for
    masks, ids and latents."""
    constants: Mapping[TensorName, ConstantValue] = field(default_factory=dict)
    """Inputs of this component that always have one value, besides and before those of the model's `constants`."""
    begin: tuple[TensorName, ...] = ()
    """Values that this component begins at: they become its inputs, and what computes them goes. Named as in the ONNX
    file. So a file is built in two parts, one with `cut` and one with `begin`, where a length in its middle depends on
    data; and what the file draws at random becomes an input. Samples have these values, or the inputs of the file: then
    the file is run on the CPU for them."""
    cut: tuple[TensorName, ...] = ()
    """Values that this component ends at, in place of the file's outputs: what stands behind them, as non-maximum
    suppression, is left to the application. Named as in the ONNX file; a build that is refused for such a part says
    which values stand before it. Samples may have the inputs that go with it."""
    quantization: QuantizationOverride | Fp16 | Auto | Climb | None = None
    """What this component does differently from the model's `quantization`."""
    score: FunctionRef | None = None
    """A score for this component, in place of `verification.score`."""
    outputs: Outputs = field(default_factory=dict)
    """How single outputs of this component are judged, in place of `verification.outputs`."""
    truth: Truth | None = None
    """What this component is held against, in place of `verification.truth`."""
    thresholds: ThresholdsFile | None = None
    """What this component must keep to, where it differs from the model's `thresholds`."""


@dataclass(frozen=True)
class Verification:
    """How the accuracy of what was built is measured, before it ships."""

    enabled: bool = True
    """`false` measures nothing, and the manifest and the end of the build say so. The other keys are then without
    effect, and calibration uses all samples."""
    samples: Reader | None = None
    """Where samples that calibration did not see come from; written like `calibration`, and not the same samples. When
    left out, every fourth sample of `calibration` is held out for this."""
    score: FunctionRef | None = None
    """A function that scores outputs on the task, as `calibration/<file>.py:<function>`; called as
    `function(samples, outputs)`, or with the original's outputs as a third argument if it takes one."""
    outputs: Outputs = field(default_factory=dict)
    """How single outputs, or slices of them, are judged, by name or label:
    `{boxes: {slice: ":, :4"}, scores: {slice: ":, 4:", max_abs_error: 0.02}}`. For a model with one component; where
    there are several, under `components.<name>.outputs`."""
    truth: Truth = "unpadded"
    """What a bucket is held against: `unpadded`, the original on samples as they come; `padded`, the original on
    samples that are padded to the bucket, for applications that always pad; `exact`, only samples that have exactly the
    bucket's lengths, for models that can't be padded and are built for each length that is used."""
    quiet: bool = True
    """Whether samples are judged quieter as well, where the model takes a logarithm of what scales with an input, as of
    a spectrum: the loudest held-out ones, fading in steps to silence, at a 64th, and one silent. `false` for inputs
    that are never quieter than the samples."""
    emulator_samples: Annotated[int, Between(0, 100_000)] | None = None
    """Most samples of a bucket to run on the emulator; 0 for none. As many as `emulator_seconds` allow when left
    out."""
    emulator_seconds: Annotated[int, Between(1, 1_000_000)] = 30
    """Emulation to spend on a component for a target, in CPU seconds by an estimate from its graphs, so that no clock
    decides how many samples are run: the worst on the CPU first, then those that touch edges of operators. All large
    buckets share half of it, and one sample is run of each whatever it takes. A small bucket, of less than a quarter of
    a second a sample, may take twice as much for itself, and so may a large one whose first samples show more than is
    usual."""


PerformanceMode = Literal[
    "burst", "sustained_high_performance", "high_performance", "balanced", "low_balanced",
    "high_power_saver", "power_saver", "low_power_saver", "extreme_power_saver", "default",
]  # fmt: skip
OptionValue = Annotated[str, Pattern(r"[A-Za-z0-9._-]{1,64}", 'a value in quotes, such as "1"')]


@dataclass(frozen=True)
class TargetOptions:
    """A target with compile options of its own."""

    soc: str
    """A SoC, by any name of the catalogue."""
    vtcm_mb: Annotated[int, Between(1, 64)] | None = None
    """Megabytes of the chip's VTCM that a context may use; the catalogue's figure when left out."""
    driver_sdk: Annotated[str, Pattern(r"[0-9]{1,3}(?:\.[0-9]{1,4}){1,2}", "a QAIRT version, such as 2.40")] | None = (
        None
    )
    """The QAIRT version of the driver on the oldest device to run on, such as `2.40`. A build with a newer QAIRT is
    refused: a driver does not load what a newer SDK made. Not looked at when left out."""
    compile: Literal["host", "device"] | None = None
    """Where its contexts are compiled: `host`, wherever the compiler is; `device`, only on a host with this SoC (Linux
    or Windows on ARM64). `device` for HTP v68 when left out, as binaries that x86_64 makes for it fail on the device
    (https://github.com/microsoft/onnxruntime/issues/26686); else `host`."""
    optimization: Annotated[int, Between(0, 3)] | None = None
    """How long QNN's compiler looks for a faster graph, 0 to 3; 3 when left out."""
    priority: Literal["low", "normal", "normal_high", "high"] | None = None
    """The priority of the contexts among all that the NPU runs; QNN's default, normal, when left out."""
    performance_mode: PerformanceMode | None = None
    """The clocks that an application asks of the NPU for these contexts, as QNN's EP calls them. It changes no context:
    it is in the manifest and in a release, whose runtime asks for it. QNN's default when left out."""
    rpc_latency_us: Annotated[int, Between(1, 10_000)] | None = None
    """Microseconds for which the CPU polls for the NPU's answer before it sleeps; for applications, as
    `performance_mode`. QNN's default when left out."""
    provider_options: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)
    """Further options of QNN's EP for the compiler, by its own names, values in quotes:
    `{enable_htp_fp16_clamp_overflow: "1"}`. A name that the EP does not know is refused, as it would take it in
    silence."""


@dataclass(frozen=True)
class ModelLimits:
    """What one step may take before it is ended. They change no output: a step that stays within them is not rerun."""

    minutes: Annotated[int, Between(1, 100_000)] = 120
    """Wall time of a step. A compiler that hangs would otherwise be found in the morning."""
    memory_mb: Annotated[int, Between(64, 16_000_000)] | None = None
    """Memory of a step's processes together, in MB. All but a tenth of the machine's when left out."""


@dataclass(frozen=True)
class ReleaseSettings:
    """What `doit package` puts into a release, beside context models, binaries and the notices of the compiler."""

    version: Annotated[
        str, Pattern(r"[0-9A-Za-z](?:[0-9A-Za-z.+_-]{0,62}[0-9A-Za-z])?", "a version, such as '1.0' in quotes")
    ]
    """Version of the release; a part of the archive's name."""
    files: Annotated[tuple[SourceFile, ...], Distinct()] = ()
    """Files of the source that an application needs, such as `[tokenizer.json]`."""
    licenses: Annotated[tuple[SourceFile, ...], Distinct()] = ()
    """Files of the source that say how the model is licensed."""
    qdq: bool = False
    """Whether the QDQ models go in, to run on the CPU where no context can."""
    split: Literal["none", "targets"] = "none"
    """`targets` makes an archive for each target; binaries that are for several are pruned to the one."""
    unverified: Annotated[tuple[UnverifiedName, ...], Distinct()] = ()
    """Artifacts that go in although they failed their thresholds, or nothing was measured of them: each as
    `<component>`, `<component>/<bucket>` or `<component>/<bucket>/<target>`. The release says so inside."""


ContextLength = Annotated[int, Between(16, 1 << 20)]
PrefillLength = Annotated[int, Between(2, 1 << 16)]
ContextLengths = Annotated[tuple[ContextLength, ...], Size(1, 8, expected="1 to 8 lengths"), Distinct()]
PrefillLengths = Annotated[tuple[PrefillLength, ...], Size(1, 8, expected="1 to 8 sizes"), Distinct()]


@dataclass(frozen=True)
class LanguageModel:
    """A language model, built as two buckets of one component: `prefill` takes a window of tokens, decode takes one.

    Both keep to the graph contract of onnxruntime-genai's `decoder-pipeline` and of Qualcomm's Genie.
    """

    context: ContextLength | ContextLengths = 512
    """Tokens that attention sees, those of the run included. At least twice `prefill`. Of several, as `[512, 2048]`,
    each has a prefill and a decode of its own, which share their weights."""
    prefill: PrefillLength | PrefillLengths = 128
    """Tokens that a prefill run takes. Of several, as `[32, 128]`, each is built for every context that is at least
    twice as long."""
    embedding: Literal["uint8", "uint16", "host"] = "uint16"
    """Type in which the table of embeddings is stored; in 16 bits it is a quarter of a small model's binary. It has 8
    where weights have 4. With `host` it is in no binary: `embedding.bin` beside the contexts has it in 16 bits, and who
    runs them looks rows up."""
    emulate: Literal["twins", "shipped"] = "twins"
    """What runs on the emulator: with `shipped`, the graphs that ship. Else those, too, where the emulator takes no
    longer for them than it takes to compile and run small twins, of the same weights and encodings with a prefill of
    16 and a context of 64; where it does, the twins."""
    parts: Literal["auto"] | Annotated[int, Between(1, 64)] = "auto"
    """Into how many contexts the model is split, by layers: `auto` makes as few as hold its weights at 1 GiB each, as
    integers are stored and floats in 16 bits."""

    @property
    def contexts(self) -> tuple[int, ...]:
        """All lengths of context, the shortest first."""
        return tuple(sorted(self.context)) if isinstance(self.context, tuple) else (self.context,)

    @property
    def prefills(self) -> tuple[int, ...]:
        """All sizes of prefill, the smallest first."""
        return tuple(sorted(self.prefill)) if isinstance(self.prefill, tuple) else (self.prefill,)


AxisValues = Annotated[
    tuple[AxisValue, ...], Size(1, 256, expected="at least one value, such as [64], and 256 at most")
]
AxisBuckets = Annotated[
    Mapping[Axis, AxisValues],
    Size(1, expected="at least one axis, such as {sequence: [64]}"),
]
Point = Annotated[Mapping[Axis, AxisValue], Size(1, expected="at least one axis")]
PointBuckets = Annotated[tuple[Point, ...], Size(1, 256, expected="at least one point, and 256 at most"), Distinct()]


@dataclass(frozen=True)
class ModelFile:
    """One model: where it comes from, what is built of it, and for which targets. The file's name names the model."""

    source: HubSource | LocalSource
    """Where the model's files come from."""
    components: Annotated[Mapping[Name, ComponentFile], Size(1, 64, expected="at least one component, and 64 at most")]
    """The ONNX files that make up the model, by names of your choosing; the names appear in steps and artifacts."""
    targets: Annotated[
        tuple[str | TargetOptions, ...],
        Size(1, 64, expected="at least one target, such as [sm8650], and 64 at most"),
        Distinct(),
    ]
    """The SoCs to build for, each by any name of the catalogue, such as `sm8650` or `snapdragon-x-elite`."""
    files: Annotated[tuple[SourceFile, ...], Distinct()] = ()
    """Further files to fetch from the source, for calibration code to use. Components, their external data and the
    text reader's tokenizer are fetched anyway."""
    fixed: Mapping[Axis, AxisValue] = field(default_factory=dict)
    """Axes with the same value in all buckets, such as `{batch: 1}`. Samples must have just that; they are padded to
    `buckets` alone. An axis without a name goes by its place, in quotes for YAML's sake: `{'x[0]': 1}`."""
    constants: Mapping[TensorName, ConstantValue] = field(default_factory=dict)
    """Inputs that always have one value where the model is used, such as `{sr: 16000}`, in every component that has
    them. They are computed with beforehand, `If` branches that they choose included, and are inputs no more: who gives
    one all the same has to give this value. A number fills an input of fixed shape; lists give all its elements."""
    buckets: AxisBuckets | PointBuckets = ()
    """The shapes to build: the values of a length axis, as `{sequence: [32, 64, 128]}`, or of several, as
    `{height: [320, 640], width: [320, 640]}`: their first values make a bucket, their second ones the next, and so on,
    if `cross` says nothing else. A list of points, as `[{text_length: 64, latent_length: 64}]`, says the same bucket by
    bucket. Without it there is one bucket, `all`, in which only `fixed` applies."""
    language_model: LanguageModel | None = None
    """Build a language model from GGUF or safetensors: `{context: 512, prefill: 128}`. Its buckets follow from this;
    without `calibration` conversations of the project serve, and without `quantization` it is built with weights of 8
    bits, a cache of 8 bits, and the residual stream in float16."""
    cross: bool = False
    """Build a bucket for every combination of the values in `buckets`, not only for those in the same place."""
    calibration: Reader | None = None
    """Samples to take the ranges of activations from. Only a model whose components are all fp16 may leave it out."""
    quantization: Quantization | Fp16 | Auto | Climb = field(default_factory=lambda: Climb(BUDGET_MINUTES))
    """How numbers are represented on the chip; a component may differ under `components.<name>.quantization`. When left
    out, w8a16 is built, in blocks of 32 and rounded by `gptq`, and where that misses a threshold, the build looks for
    what keeps to it."""
    verification: Verification = field(default_factory=Verification)
    """Samples and a score, by which the accuracy of what was built is measured."""
    thresholds: ThresholdsFile = field(default_factory=ThresholdsFile)
    """What artifacts must keep to; a component may differ under `components.<name>.thresholds`."""
    packing: Literal["separate", "buckets", "socs", "auto"] = "separate"
    """What shares a context binary, to be smaller: `separate`, nothing, so that each runs by itself; `buckets`, all
    buckets for a target, which have the same weights; `socs`, all targets of a bucket; `auto` estimates the bytes of
    each and takes the smallest."""
    compiler: Compiler = "onnxruntime-qnn"
    """What makes the context binaries. `qairt` is the tools of the QAIRT SDK, in the folder that QAIRT_SDK_ROOT names;
    with `packing: separate` and weights without blocks. It never ran with an SDK ([outputs.md](outputs.md))."""
    outputs: Annotated[tuple[ExportKind, ...], Distinct()] = ()
    """What else is made, for other engines: `pte`, an ExecuTorch program for each component and target in which each
    bucket is a method; `dlc`, the graph of each bucket before HTP's compiler, for Qualcomm's tools."""
    limits: ModelLimits = field(default_factory=ModelLimits)
    """What one step of this model may take before it is ended."""
    release: ReleaseSettings | None = None
    """What `doit package` makes of the model; there is nothing to package when left out."""
    on_request: bool = False
    """Build this model only when it is named, as in `doit build:<model>`; plain `doit build` passes it by, and so does
    a stage alone, as `doit blame`."""
