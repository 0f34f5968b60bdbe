"""What a crew needs to know of a step to run it, on any machine."""

from __future__ import annotations

from typing import Self

from pipeline.config.load import ModelLimits
from pipeline.frozen import dataclass
from pipeline.plan.steps import Step


@dataclass(frozen=True)
class Work:
    """A step without its configuration. `config` is the name of the file that `limits` are written in."""

    stage: str
    name: str
    config: str
    limits: ModelLimits

    @classmethod
    def of(cls, step: Step) -> Self:
        """The work of a step."""
        return cls(step.stage, step.name, step.config.path.name, step.config.limits)

    @property
    def id(self) -> str:
        """The name the user types."""
        return f"{self.stage}:{self.name}"
