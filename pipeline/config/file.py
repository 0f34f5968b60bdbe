"""What may be written in `configs/<model>.yaml`, as types.

These dataclasses are the only definition of the file: decoding, `configs/config.schema.json` and `docs/config.md` are
made from them, the text in the latter two from the docstrings here (`python -m pipeline.config_docs`). What the rest of
the program uses is :class:`pipeline.config.ModelConfig`, which has the merged and resolved values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pipeline.config_quantization import Auto, Fp16, Quantization, QuantizationOverride
from pipeline.yamltypes.forms import Bases, Between, Convert, Distinct, Pattern, Size

PROJECT = "project"
"""Base of paths in a config but `source.path`: the folder that holds `configs/`."""
CONFIGS = "configs"
"""Base of `source.path`: the folder of the config file."""

NAME = Pattern(
    r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$))[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?",
    "a name of at most 64 of a-z, 0-9, '.', '_', '-', a letter or digit at both ends, and none that Windows reserves",
)
"""What models and components may be called: the name becomes a part of file names on every system."""


@dataclass(frozen=True)
class PythonFunction:
    """A function of the project's own code, written `calibration/file.py:function`."""

    file: Path
    function: str


def _path_under(base: str) -> Convert:
    # normpath, not resolve: a link stays the name its owner gave it.
    return Convert(lambda text, bases: Path(os.path.normpath(bases[base] / text)))


def _python_function(text: str, bases: Bases) -> PythonFunction:
    file, _, function = text.rpartition(":")
    path = Path(os.path.normpath(bases[PROJECT] / file))
    try:
        # Of the folder itself no link is followed: it must be the project's own.
        inside = path.resolve().is_relative_to(bases[PROJECT].resolve() / "calibration")
    except (OSError, RuntimeError) as error:  # a loop of links, or a name too long for the file system
        raise ValueError(f"'{file}' can't be resolved ({error}); expected a file in calibration/") from error
    if not inside:
        raise ValueError(f"'{file}' leads out of calibration/; expected code that is kept there")
    return PythonFunction(path, function)


_SEGMENT = r"(?!\.{1,2}(?:/|$))[^/\\:*?\x22<>|\x00-\x1f]+"

Name = Annotated[str, NAME]
Axis = Annotated[str, Pattern(r"[^\x00-\x1f]{1,100}", "the name of a length axis")]
AxisValue = Annotated[int, Between(1, 2**31 - 1)]
TensorName = Annotated[str, Pattern(r"[^\x00-\x1f]{1,500}", "the name of a model input")]
SourceFile = Annotated[str, Pattern(rf"{_SEGMENT}(?:/{_SEGMENT})*", "a path in the source, with '/' and without '..'")]
OnnxFile = Annotated[
    str, Pattern(rf"(?=.*\.onnx$){_SEGMENT}(?:/{_SEGMENT})*", "an .onnx file in the source, with '/' and without '..'")
]
ProjectPath = Annotated[
    Path, Pattern(r"[^\\\x00-\x1f]+", "a path, relative to the project or absolute, with '/'"), _path_under(PROJECT)
]
UnverifiedName = Annotated[
    str,
    Pattern(r"[^/\x00-\x1f]{1,100}(?:/[^/\x00-\x1f]{1,100}){0,2}", "<component>/<bucket>/<target>, or its beginning"),
]
SampleLimit = Annotated[int, Between(1, 1_000_000)]
FunctionRef = Annotated[
    PythonFunction,
    Pattern(
        r"calibration/(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-]+\.py:[A-Za-z_][A-Za-z0-9_]*",
        "calibration/<file>.py:<function>",
    ),
    Convert(_python_function),
]


@dataclass(frozen=True)
class HubSource:
    """A repository on the Hugging Face hub. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` are honoured."""

    hub: Annotated[
        str,
        Pattern(
            r"(?!.*(?:--|\.\.))[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}",
            "a repository as owner/name",
        ),
    ]
    """Repository, as `owner/name`."""
    revision: Annotated[
        str,
        Pattern(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._/+-]{0,254}", "a commit of 40 hex digits, a branch or a tag"),
    ]
    """Commit to build from, 40 hex digits. A branch or tag is taken too: the first fetch pins the commit it stands for
    in `configs/pins.yaml`, and later builds stay on that one."""


@dataclass(frozen=True)
class LocalSource:
    """A folder on this machine."""

    path: Annotated[
        Path, Pattern(r"[^\\\x00-\x1f]+", "a folder, relative to the config file or absolute"), _path_under(CONFIGS)
    ]
    """Folder of the model, relative to the config file or absolute."""


@dataclass(frozen=True)
class ThresholdsFile:
    """What an artifact must keep to; a build that misses one fails. Figures are SQNR in dB if nothing else is said."""

    padding_db: float | None = None
    """Fixed shape and padded, against the original; 60 when left out."""
    rewrite_db: float | None = None
    """Rewritten for HTP, against the rung above; 60 when left out."""
    quantization_db: float | None = None
    """The QDQ model, against the rung above; what `total_db` says when left out."""
    compile_db: float | None = None
    """The context on the emulator, against the rung above; what `total_db` says when left out."""
    total_db: float | None = None
    """The last rung that was measured, against the original; 20 when left out."""
    cosine: float | None = None
    """Least cosine between the outputs of the last rung and the original's; not looked at when left out."""
    score_change: float | None = None
    """The most that the score may differ from the original's; not looked at when left out."""
    max_cpu_nodes: Annotated[int, Between(0, 1_000_000)] | None = None
    """Nodes that may run on the CPU, conversions at the graph's edge not counted; 0 when left out."""
    max_partitions: Annotated[int, Between(1, 1_000_000)] | None = None
    """Parts that the NPU may run the model in; 1 when left out."""


@dataclass(frozen=True)
class ComponentFile:
    """One ONNX file of the model. Its external data is found and fetched with it."""

    file: OnnxFile
    """The file's path in the source. The float model: one that is quantized already is refused."""
    padding: Mapping[TensorName, float] = field(default_factory=dict)
    """Value to fill each input with up to the bucket's length; 0 for an input that is not named, which is right for
    masks, ids and latents."""
    quantization: QuantizationOverride | Fp16 | Auto | None = None
    """What this component does differently from the model's `quantization`."""
    score: FunctionRef | None = None
    """A score for this component, in place of `verification.score`."""
    thresholds: ThresholdsFile | None = None
    """What this component must keep to, where it differs from the model's `thresholds`."""


@dataclass(frozen=True)
class TextReader:
    """Lines of text through the model's own tokenizer, one sample a line."""

    reader: Literal["text"]
    """`text`."""
    file: ProjectPath
    """UTF-8 text, relative to the project; one sample a line, empty lines skipped."""
    tokenizer: SourceFile = "tokenizer.json"
    """A `tokenizer.json` in the model's source; fetched with the model."""
    max_length: Annotated[int, Between(1, 1_000_000)] | None = None
    """Longest sample in tokens; what is longer is cut. The largest bucket when left out."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class NpzReader:
    """A folder of `.npz` files, one sample a file; arrays are named like the inputs and fit the largest bucket."""

    reader: Literal["npz"]
    """`npz`."""
    folder: ProjectPath
    """The folder, relative to the project. Files are read in the order of their names."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class PythonReader:
    """A Python function that makes the samples."""

    reader: Literal["python"]
    """`python`."""
    run: FunctionRef
    """The function, as `calibration/<file>.py:<function>`; the file is in the project's `calibration/` folder."""
    file: ProjectPath | None = None
    """A file that the function reads, relative to the project. A change to it makes calibration run again."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class RecordReader:
    """A function that runs the float components as the application does; what goes into each of them is recorded."""

    reader: Literal["record"]
    """`record`."""
    run: FunctionRef
    """The function `run(sessions, sample)`, as `calibration/<file>.py:<function>`; the file is in the project's
    `calibration/` folder."""
    file: ProjectPath
    """UTF-8 text, relative to the project; each line that is not empty is one `sample`."""
    max_samples: SampleLimit = 128
    """Use no more lines than this, from the first on."""


Reader = TextReader | NpzReader | PythonReader | RecordReader


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
    emulator_samples: Annotated[int, Between(0, 100_000)] = 16
    """Most samples of a bucket to run on the emulator, the worst on the CPU among them; 0 for none."""
    emulator_seconds: Annotated[int, Between(1, 1_000_000)] = 30
    """Emulation to spend on a context, by an estimate from the size of the model that is the same on every machine.
    Two samples are run even if that takes longer."""


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


@dataclass(frozen=True)
class Limits:
    """What one step may take before it is ended. They change no output: a step that stays within them is not rerun."""

    minutes: Annotated[int, Between(1, 100_000)] = 120
    """Wall time of a step. A compiler that hangs would otherwise be found in the morning."""
    memory_mb: Annotated[int, Between(64, 16_000_000)] | None = None
    """Memory of a step's processes together, in MB. All but a tenth of the machine's when left out."""


@dataclass(frozen=True)
class Release:
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


AxisValues = Annotated[
    tuple[AxisValue, ...], Size(1, 256, expected="at least one value, such as [64], and 256 at most"), Distinct()
]
AxisBuckets = Annotated[
    Mapping[Axis, AxisValues],
    Size(1, 1, "one axis here; where several move together, a list of points such as [{text: 64, latent: 64}]"),
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
    """Axes with the same value in all buckets, such as `{batch: 1}`."""
    buckets: AxisBuckets | PointBuckets = ()
    """The shapes to build: the values of one length axis, as `{sequence: [32, 64, 128]}`, or a list of points, as
    `[{text_length: 64, latent_length: 64}]`, when several axes move together. Values are not crossed. Without it there
    is one bucket, `all`, in which only `fixed` applies."""
    calibration: Reader | None = None
    """Samples to take the ranges of activations from. Only a model whose components are all fp16 may leave it out."""
    quantization: Quantization | Fp16 | Auto = field(default_factory=Quantization)
    """How numbers are represented on the chip; a component may differ under `components.<name>.quantization`."""
    verification: Verification = field(default_factory=Verification)
    """Samples and a score, by which the accuracy of what was built is measured."""
    thresholds: ThresholdsFile = field(default_factory=ThresholdsFile)
    """What artifacts must keep to; a component may differ under `components.<name>.thresholds`."""
    packing: Literal["separate", "buckets", "socs", "auto"] = "separate"
    """What shares a context binary, to be smaller: `separate`, nothing, so that each runs by itself; `buckets`, all
    buckets for a target, which have the same weights; `socs`, all targets of a bucket; `auto` estimates the bytes of
    each and takes the smallest."""
    limits: Limits = field(default_factory=Limits)
    """What one step of this model may take before it is ended."""
    release: Release | None = None
    """What `doit package` makes of the model; there is nothing to package when left out."""
    on_request: bool = False
    """Build this model only when it is named, as in `doit build:<model>`; plain `doit build` passes it by."""
