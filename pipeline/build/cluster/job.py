"""The messages between a build and a worker of a cluster: a step to make, and its result. No data, no path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

from pipeline.build.work import Work
from pipeline.config.load import ModelLimits
from pipeline.contracts.codec import Contract, left_out
from pipeline.errors import BY_NAME, PipelineError
from pipeline.frozen import dataclass
from pipeline.model import Json, Manifest
from pipeline.plan.resolve import Resolved
from pipeline.store.manifests import dump_manifest, parse_manifest


@dataclass(frozen=True)
class StepJob(Contract):
    """A step that reads nothing but outputs of other steps.

    `params` is JSON; `inputs` has the manifest of each role as the store writes it. `code` and `tools` are what the
    key counts of the build's own code and packages: a worker must have the same.
    """

    key: str
    stage: str
    name: str
    config: str
    minutes: int
    code: str
    tools: Mapping[str, str]
    params: str
    inputs: Mapping[str, str]
    memory_mb: int | None = left_out()

    @classmethod
    def of(cls, resolved: Resolved, code: str, tools: Mapping[str, str]) -> Self:
        """The job of a step."""
        work = Work.of(resolved.step)
        return cls(
            key=resolved.key,
            stage=work.stage,
            name=work.name,
            config=work.config,
            minutes=work.limits.minutes,
            memory_mb=work.limits.memory_mb,
            code=code,
            tools=tools,
            params=json.dumps(resolved.params.to_json()),
            inputs={role: dump_manifest(each).decode() for role, each in resolved.inputs.items()},
        )

    @property
    def work(self) -> Work:
        """The step without its configuration."""
        return Work(self.stage, self.name, self.config, ModelLimits(self.minutes, self.memory_mb))

    def parameters(self) -> dict[str, Json]:
        """The parameters of the stage."""
        return dict(json.loads(self.params))

    def manifests(self) -> dict[str, Manifest]:
        """The manifest of each role; raises ValueError for a damaged one."""
        found = {role: parse_manifest(text.encode()) for role, text in self.inputs.items()}
        good = {role: manifest for role, manifest in found.items() if manifest is not None}
        if len(good) < len(found):
            raise ValueError(f"the manifests of {sorted(found.keys() - good.keys())} are damaged")
        return good


@dataclass(frozen=True)
class StepFailure(Contract):
    """An error of :mod:`pipeline.errors`, by the name of its class and its parts."""

    kind: str
    what: str
    where: str
    why: str
    remedy: str

    @classmethod
    def of(cls, error: PipelineError) -> Self:
        """The failure that tells of an error."""
        kind = next(name for name, each in reversed(BY_NAME.items()) if isinstance(error, each))
        return cls(kind, error.what, error.where, error.why, error.remedy)

    def error(self) -> PipelineError:
        """The error to raise."""
        return BY_NAME[self.kind](self.what, where=self.where, why=self.why, remedy=self.remedy)


@dataclass(frozen=True)
class Answer(Contract):
    """The result of a job on the worker called `worker`.

    Without a refusal or a failure, its output is in the shared store. `refusal` says what of the worker is not as the
    build has it; nothing ran then. `is_cut_off` is true of a failure to read or write data, for which the worker is at
    fault and not the step. `log` is the end of the step's log.
    """

    worker: str
    refusal: str = ""
    failure: StepFailure | None = None
    seconds: float = 0.0
    log: str = ""
    is_cut_off: bool = False
