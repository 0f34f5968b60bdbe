"""The configuration of a model as frozen values, with everything merged and resolved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pipeline.config import language
from pipeline.config.buckets import Bucket, by_size
from pipeline.config.file import (
    HubSource,
    LanguageModel,
    LocalSource,
    ModelLimits,
    ReleaseSettings,
    SpeechModel,
    Verification,
)
from pipeline.config.judging import OutputFile, Truth
from pipeline.config.quantization import Auto, Fp16, Quantization
from pipeline.config.readers import Reader
from pipeline.config.targets import Target
from pipeline.config.thresholds import Thresholds
from pipeline.config.written_values import CONFIGS, PythonFunction
from pipeline.contracts.codec import NumberTree
from pipeline.contracts.context import Compiler
from pipeline.contracts.export import ExportKind
from pipeline.contracts.packing import Form
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Component:
    """One ONNX file of the model. `padding` has the inputs whose fill value was given; others are filled with 0.

    `constants` are the model's and its own; it may have no input for some of the model's. `outputs` says by label how
    single outputs are judged, `truth` what the component is compared with. `cut` has the values that become its
    outputs, `begin` those that become its inputs. `budget_minutes` is for how long other precisions are tried if this
    one misses a threshold, or falls short of `wished`; with None, only this one is built.
    """

    name: str
    file: str
    padding: Mapping[str, float]
    constants: Mapping[str, NumberTree]
    quantization: Quantization | Fp16 | Auto
    score: PythonFunction | None
    thresholds: Thresholds
    outputs: Mapping[str, OutputFile] = field(default_factory=dict)
    truth: Truth = "unpadded"
    cut: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    budget_minutes: int | None = None
    wished: Thresholds | None = None


@dataclass(frozen=True)
class ModelConfig:
    """One model, with everything merged and resolved. Paths are absolute; those in the source are POSIX and relative.

    `buckets` is sorted by size, has no duplicates and at least one entry. `calibration` is None only if all components
    are fp16. `places` maps paths such as `components.encoder.file` to `file:line:column`, for messages of later steps.
    """

    name: str
    path: Path
    source: HubSource | LocalSource
    components: Mapping[str, Component]
    files: tuple[str, ...]
    fixed: Mapping[str, int]
    buckets: tuple[Bucket, ...]
    calibration: Reader | None
    verification: Verification
    targets: tuple[Target, ...]
    packing: Form | Literal["auto"]
    limits: ModelLimits
    release: ReleaseSettings | None
    on_request: bool
    places: Mapping[str, str] = field(compare=False, repr=False)
    language: LanguageModel | None = None
    speech: SpeechModel | None = None
    outputs: tuple[ExportKind, ...] = ()
    compiler: Compiler = "onnxruntime-qnn"

    def place(self, *names: str) -> str:
        """The place of the first of these keys that the config has, as `configs/demo.yaml:12:3`; else the file."""
        file = f"{CONFIGS}/{self.path.name}"
        return next((self.places[name] for name in names if name in self.places), file)

    @property
    def twins(self) -> tuple[Bucket, ...]:
        """The small buckets that are emulated in place of those of a language model, in the same order."""
        return language.twins_of(self.language) if self.language else ()

    def buckets_on(self, axes: Collection[str]) -> tuple[Bucket, ...]:
        """The buckets of a component that has only `axes`. Buckets that are equal on these axes become one."""
        known = self._buckets_on
        if (key := frozenset(axes)) not in known:
            found: list[Bucket] = []
            for bucket in self.buckets:
                if (own := bucket.on(key)) not in found:
                    found.append(own)
            known[key] = tuple(sorted(found, key=by_size))
        return known[key]

    @cached_property
    def _buckets_on(self) -> dict[frozenset[str], tuple[Bucket, ...]]:
        """The results of :meth:`buckets_on`, kept because every step asks for them."""
        return {}
