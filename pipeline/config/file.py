"""What may be written in `configs/<model>.yaml`, as types.

These dataclasses are the only definition of the file. Decoding, `configs/config.schema.json` and `docs/config.md` are
made from them, and the text of the latter two from the docstrings here (`python -m pipeline.config.docs`). The rest of
the program uses :class:`pipeline.config.load.ModelConfig`, which has the merged and resolved values.
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
    SOURCE_FOLDER,
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

    path: Annotated[Path, SOURCE_FOLDER, path_under(CONFIGS)]
    """Folder of the model, relative to the config file or absolute."""


@dataclass(frozen=True)
class ComponentFile:
    """One ONNX file of the model. Its external data is found and fetched with it."""

    file: OnnxFile
    """The file's path in the source. Name the float model if there is one: an ONNX file that is quantized for CPUs is
    turned into the floats that it stands for. With `language_model`, it is a GGUF file with any quantization that is
    common in llama.cpp, `model.safetensors`, or the `model.safetensors.index.json` of several files. `config.json`,
    `tokenizer.json` and `tokenizer_config.json` beside it are fetched with it; name `chat_template.jinja` and
    `generation_config.json` under `files`."""
    padding: Mapping[TensorName, float] = field(default_factory=dict)
    """Value to fill each input with up to the bucket's length; 0 for an input that is not named, which is right for
    masks, ids and latents."""
    constants: Mapping[TensorName, ConstantValue] = field(default_factory=dict)
    """Inputs of this component that always have one value. They are added to the model's `constants` and go before
    them."""
    begin: tuple[TensorName, ...] = ()
    """Values that become the inputs of this component; what computes them is left out. They are named as in the ONNX
    file. If a length in the middle of a file depends on data, the file can be built in two parts, one with `cut` and
    one with `begin`; and what a file draws at random can become an input. Samples have these values, or the inputs of
    the file, which is then run on the CPU to compute them."""
    cut: tuple[TensorName, ...] = ()
    """Values that become the outputs of this component in place of the file's own. The application computes what comes
    after them, such as a non-maximum suppression. They are named as in the ONNX file; a build that is refused because
    of such a part says which values come before it. Samples may still have inputs that only that part reads."""
    quantization: QuantizationOverride | Fp16 | Auto | Climb | None = None
    """What this component does differently from the model's `quantization`."""
    score: FunctionRef | None = None
    """A score for this component, in place of `verification.score`."""
    outputs: Outputs = field(default_factory=dict)
    """How single outputs of this component are judged, in place of `verification.outputs`."""
    truth: Truth | None = None
    """What this component is compared with, in place of `verification.truth`."""
    thresholds: ThresholdsFile | None = None
    """What this component must keep to, where it differs from the model's `thresholds`."""


@dataclass(frozen=True)
class Verification:
    """How the accuracy of what was built is measured, before it ships."""

    enabled: bool = True
    """With `false`, nothing is measured, and the manifest and the end of the build say so. The other keys then have no
    effect, and calibration uses all samples."""
    samples: Reader | None = None
    """Where samples come from that calibration did not see. It is written like `calibration`, and must have other
    samples. When left out, every fourth sample of `calibration` is held out for this."""
    score: FunctionRef | None = None
    """A function that scores outputs on the task, as `calibration/<file>.py:<function>`; called as
    `function(samples, outputs)`, or with the original's outputs as a third argument if it takes one."""
    outputs: Outputs = field(default_factory=dict)
    """How single outputs, or slices of them, are judged, by name or label:
    `{boxes: {slice: ":, :4"}, scores: {slice: ":, 4:", max_abs_error: 0.02}}`. For a model with one component; where
    there are several, under `components.<name>.outputs`."""
    truth: Truth = "unpadded"
    """What a bucket is compared with: `unpadded`, the original on samples as they come; `padded`, the original on
    samples that are padded to the bucket, for applications that always pad; `exact`, the original on only those samples
    that have exactly the bucket's lengths, for models that can't be padded and are built for each length in use."""
    quiet: bool = True
    """Whether a model that takes a logarithm of something that scales with an input, such as a spectrum, is also judged
    on quieter samples: the loudest held-out ones, fading in steps to silence, and at a 64th; and one that is silent.
    Say `false` for inputs that are never quieter than the samples."""
    reading: Literal["measured", "required"] = "measured"
    """Whether a model may be built if neither onnxruntime nor ONNX's reference evaluator runs its ONNX file, or if
    llama.cpp (extra `llamacpp`) does not run its GGUF file, so that nothing shows whether it was read as it is meant:
    with `measured` the manifest and the end of the build say so, with `required` the build fails."""
    emulator_samples: Annotated[int, Between(0, 100_000)] | None = None
    """The most samples of a bucket to run on the emulator; 0 for none. When left out, as many as `emulator_seconds`
    allow."""
    emulator_seconds: Annotated[int, Between(1, 1_000_000)] = 30
    """The time for emulating a component for a target, in CPU seconds. It is an estimate from the graphs, so that no
    clock decides how many samples are run. The samples that are worst on the CPU come first, then those that come near
    the edges of operators. All large buckets share half of the time, and one sample of each is run whatever it takes. A
    small bucket, with samples of less than a quarter of a second, may take twice the time for itself, and so may a
    large one whose first samples show unusually large errors."""


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
    refused, as a driver does not load what a newer SDK made. Not checked when left out."""
    compile: Literal["host", "device"] | None = None
    """Where its contexts are compiled: `host` is any host that has the compiler, `device` only a host with this SoC
    (Linux or Windows on ARM64). When left out, it is `device` for HTP v68, as binaries that x86_64 makes for it fail on
    the device (https://github.com/microsoft/onnxruntime/issues/26686), and `host` for others."""
    optimization: Annotated[int, Between(0, 3)] | None = None
    """How long QNN's compiler looks for a faster graph, 0 to 3; 3 when left out."""
    priority: Literal["low", "normal", "normal_high", "high"] | None = None
    """The priority of the contexts among all that the NPU runs; QNN's default, normal, when left out."""
    performance_mode: PerformanceMode | None = None
    """The clocks that an application asks of the NPU for these contexts, by the names of QNN's EP. It changes no
    context: it is noted in the manifest and in a release, and the release's runtime asks for it. QNN's default when
    left out."""
    rpc_latency_us: Annotated[int, Between(1, 10_000)] | None = None
    """For how many microseconds the CPU polls for the NPU's answer before it sleeps. Like `performance_mode`, it is for
    applications. QNN's default when left out."""
    provider_options: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)
    """Further options of QNN's EP for the compiler, by the EP's names, with values in quotes:
    `{enable_htp_fp16_clamp_overflow: "1"}`. A name that the EP does not know is refused here, as the EP would ignore
    it."""


@dataclass(frozen=True)
class ModelLimits:
    """What one step may use before it is ended. Limits change no output: changing them reruns no step."""

    minutes: Annotated[int, Between(1, 100_000)] = 120
    """Wall time of a step, so that a compiler that hangs does not block a build for ever."""
    memory_mb: Annotated[int, Between(64, 16_000_000)] | None = None
    """Memory of all processes of a step together, in MB. When left out, nine tenths of the machine's memory."""


@dataclass(frozen=True)
class ReleaseSettings:
    """What `doit package` puts into a release, beside context models, binaries and the notices of the compiler."""

    version: Annotated[
        str, Pattern(r"[0-9A-Za-z](?:[0-9A-Za-z.+_-]{0,62}[0-9A-Za-z])?", "a version, such as '1.0' in quotes")
    ]
    """Version of the release, which is part of the archive's name."""
    files: Annotated[tuple[SourceFile, ...], Distinct()] = ()
    """Files of the source that an application needs, such as `[tokenizer.json]`."""
    licenses: Annotated[tuple[SourceFile, ...], Distinct()] = ()
    """Files of the source that say how the model is licensed."""
    qdq: bool = False
    """Whether the QDQ models go in, to run on the CPU if no context can run."""
    split: Literal["none", "targets"] = "none"
    """`targets` makes an archive for each target; binaries for several targets are pruned to the one."""
    unverified: Annotated[tuple[UnverifiedName, ...], Distinct()] = ()
    """Artifacts that go in although they missed a threshold, or were not measured: each is given as `<component>`,
    `<component>/<bucket>` or `<component>/<bucket>/<target>`. The release notes it inside."""


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
    """How many tokens attention sees, including those of the run; at least twice `prefill`. With several lengths, such
    as `[512, 2048]`, each has a prefill and a decode of its own, and all share their weights."""
    prefill: PrefillLength | PrefillLengths = 128
    """How many tokens a prefill run takes. With several sizes, such as `[32, 128]`, each is built for every context
    that is at least twice as long."""
    embedding: Literal["uint8", "uint16", "host"] = "uint16"
    """Type in which the table of embeddings is stored; in 16 bits it is a quarter of a small model's binary. With
    weights of 4 bits, it has 8. With `host` it is in no binary: the file `embedding.bin` beside the contexts has
    it in 16 bits, and the application looks up rows in it."""
    emulate: Literal["twins", "shipped"] = "twins"
    """What runs on the emulator. With `shipped`, these are always the graphs that ship. With `twins`, small graphs with
    the same weights and encodings, a prefill of 16 and a context of 64, run in their place, unless compiling and
    running the twins would take longer than running the shipped graphs."""
    parts: Literal["auto"] | Annotated[int, Between(1, 64)] = "auto"
    """How many contexts the model's layers are split into. `auto` makes the fewest that hold the weights with 1 GiB
    each, counting integers as they are stored and floats in 16 bits."""

    @property
    def contexts(self) -> tuple[int, ...]:
        """The lengths of context, the shortest first."""
        return tuple(sorted(self.context)) if isinstance(self.context, tuple) else (self.context,)

    @property
    def prefills(self) -> tuple[int, ...]:
        """The sizes of prefill, the smallest first."""
        return tuple(sorted(self.prefill)) if isinstance(self.prefill, tuple) else (self.prefill,)


@dataclass(frozen=True)
class SpeechModel:
    """A model that writes down speech, Whisper in safetensors: the components `encoder` and `decoder` of one file.

    The encoder runs once for a window of sound, the decoder once for each token, prompt and text.
    """

    tokens: Annotated[int, Between(16, 4096)] = 224
    """How many tokens the decoder remembers: those of the prompt and of a window's text. Whisper was made for 448, of
    which a text has 224 at most."""


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
    """One model: where it comes from, what is built from it, and for which targets. The model's name is the file's."""

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
    """Axes with the same value in all buckets, such as `{batch: 1}`. Samples must have exactly this value, as they are
    padded only to `buckets`. An axis without a name is called by its place, in quotes because of YAML: `{'x[0]': 1}`.
    """
    constants: Mapping[TensorName, ConstantValue] = field(default_factory=dict)
    """Inputs that always have one value in the application, such as `{sr: 16000}`, in every component that has them.
    What depends on them is computed at build time, and `If` branches are chosen by them. They are then no inputs any
    more; an application may still give them, with this value. A number fills an input of fixed shape; lists give all
    its elements."""
    buckets: AxisBuckets | PointBuckets = ()
    """The shapes to build: the values of a length axis, such as `{sequence: [32, 64, 128]}`, or of several axes, such
    as `{height: [320, 640], width: [320, 640]}`. The first values of all axes make a bucket, the second ones the next,
    and so on, unless `cross` is set. A list of points, such as `[{text_length: 64, latent_length: 64}]`, gives each
    bucket by itself. Without this key there is one bucket, `all`, in which only `fixed` applies."""
    language_model: LanguageModel | None = None
    """Build a language model from GGUF or safetensors: `{context: 512, prefill: 128}`. Its buckets follow from this.
    Without `calibration`, conversations of the project are used; without `quantization`, it is built with weights of 8
    bits, a cache of 8 bits, and the residual stream in float16."""
    speech_model: SpeechModel | None = None
    """Build a model that writes down speech from safetensors: `{tokens: 224}`. Without `calibration`, the sounds in
    `calibration/speech` are used; without `quantization`, the encoder is in float16, and the decoder has weights of 8
    bits in blocks of 32 and activations of 16."""
    cross: bool = False
    """Build a bucket for every combination of the values in `buckets`, not only for those in the same place."""
    calibration: Reader | None = None
    """Samples to take the ranges of activations from. Only a model whose components are all fp16 may leave it out."""
    quantization: Quantization | Fp16 | Auto | Climb = field(default_factory=lambda: Climb(BUDGET_MINUTES))
    """How numbers are represented on the chip; a component may differ under `components.<name>.quantization`. When left
    out, w8a16 is built, in blocks of 32 and rounded by `gptq`; if that misses a threshold, the build looks for a
    precision that keeps to all thresholds."""
    verification: Verification = field(default_factory=Verification)
    """Samples, and a score, with which the accuracy of what was built is measured."""
    thresholds: ThresholdsFile = field(default_factory=ThresholdsFile)
    """The limits that artifacts must keep to; a component may differ under `components.<name>.thresholds`."""
    packing: Literal["separate", "buckets", "socs", "auto"] = "separate"
    """Which contexts share a binary, which makes them smaller. With `separate`, none do, so that each runs by itself.
    With `buckets`, all buckets for a target do, as they have the same weights; with `socs`, all targets of a bucket.
    `auto` estimates the bytes of each and takes the smallest."""
    compiler: Compiler = "onnxruntime-qnn"
    """What makes the context binaries. `qairt` stands for the tools of the QAIRT SDK in the folder that QAIRT_SDK_ROOT
    names; it needs `packing: separate` and weights without blocks. It was never tried with an SDK
    ([outputs.md](outputs.md))."""
    outputs: Annotated[tuple[ExportKind, ...], Distinct()] = ()
    """Further files for other engines: `pte` is an ExecuTorch program for each component and target, with a method for
    each bucket; `dlc` is the graph of each bucket before HTP's compiler, for Qualcomm's tools."""
    limits: ModelLimits = field(default_factory=ModelLimits)
    """What one step of this model may use before it is ended."""
    release: ReleaseSettings | None = None
    """What `doit package` makes from the model. When left out, there is nothing to package."""
    on_request: bool = False
    """Build this model only when it is named, as in `doit build:<model>`. Commands without a model, such as
    `doit build` or `doit blame`, leave it out."""
