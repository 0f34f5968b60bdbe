"""Steps: what they are, and which stages there are. Pure: looks at no file and imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from pipeline.frozen import dataclass
from pipeline.stage_table import STAGES

if TYPE_CHECKING:  # who asks which stages there are need not wait for what a config is made of
    from pathlib import Path

    from pipeline.config.load import Bucket, ModelConfig, Target
    from pipeline.contracts.codec import Contract
    from pipeline.contracts.fetch import Commit
    from pipeline.contracts.packing import Form
    from pipeline.model import Json

FORMS: tuple[Form, ...] = ("separate", "buckets", "socs")
"""What may share a context binary: nothing, all buckets for one target, or all targets of one bucket."""
ON_DEMAND = frozenset(name for name, stage in STAGES.items() if stage.on_demand)
"""Stages that run only when they are asked for."""


@dataclass(frozen=True)
class Input:
    """An upstream step whose output is an input in a `role`. `{bucket}` in it stands for the component's own bucket.

    `part`: of what the step made for several buckets, only the part for this one is an input. `facts`: only the facts
    of this contract are an input, with those of `files` that exist; `files=None` stands for all files.
    """

    role: str
    step: str
    bucket: Bucket | None = None
    part: Bucket | None = None
    facts: type[Contract] | None = None
    files: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class ClimbBasis:
    """All that decides, besides the quantize step itself, which scheme a component climbs to after it missed a gate.

    `params` are those of the gates and of the steps that judge a scheme. `scripts` are the files with score functions.
    `samples` are the held-out samples.
    """

    params: Mapping[str, Json]
    scripts: Mapping[str, Path]
    samples: Input


@dataclass(frozen=True)
class Step:
    """One unit of work, named by `id`, e.g. `context:minilm/encoder/128/sm8650`.

    `targets` are all targets that the step is about; `bucket` and `target` are None unless it is about one alone.
    Buckets in `params` are those of the config: the component's own axes are known only after its ingest. `climb` is
    set on a step that quantizes a component whose scheme may change to keep to the gates. `in_float` is set on a step
    that reads a component which may come out in float as a whole; it returns the step of an id as `precision: fp16`
    would have it. `asked` is the hub repository to fetch from, at the commit, branch or tag that the config names.
    """

    stage: str
    name: str
    config: ModelConfig
    params: Contract
    inputs: tuple[Input, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    scripts: Mapping[str, Path] = field(default_factory=dict)
    component: str | None = None
    bucket: Bucket | None = None
    targets: tuple[Target, ...] = ()
    ingests: Mapping[str, str] = field(default_factory=dict)
    climb: ClimbBasis | None = None
    in_float: Callable[[str], Step] | None = field(default=None, compare=False)
    asked: Commit | None = None

    @property
    def target(self) -> Target | None:
        """The target that the step is about."""
        return self.targets[0] if len(self.targets) == 1 else None

    @property
    def id(self) -> str:
        """The name the user types."""
        return f"{self.stage}:{self.name}"

    @property
    def after(self) -> tuple[str, ...]:
        """Ids of all steps that must be done first."""
        judged = (self.climb.samples.step,) if self.climb else ()
        return tuple(dict.fromkeys((*(given.step for given in self.inputs), *self.ingests.values(), *judged)))


def held_out_set(step: Step) -> str:
    """The id of the step that reads the samples on which the same model is measured."""
    config = step.config
    return f"samples:{config.name}/{'verification' if config.verification.samples else 'calibration'}"
