"""`doit buckets:<model>` as a task: which steps come before it. Reads no model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.load import ModelConfig
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace

LENGTHS = {"name": "lengths", "long": "lengths", "default": "", "help": "a file with a length a line"}
"""The option, as doit takes it."""


@dataclass(frozen=True)
class BucketPlanning:
    """One model whose buckets can be planned, and the steps of its build."""

    config: ModelConfig
    steps: Sequence[Step]
    workspace: Workspace

    def needed(self, given: Sequence[str]) -> list[str]:
        """The steps that come first: all buckets' shapes, and the calibration set unless `given` has a file."""
        with_samples = not any(word.startswith("--lengths") for word in given)
        calibration = f"samples:{self.config.name}/calibration"
        return [each.id for each in self.steps if each.stage == "rewrite" or (with_samples and each.id == calibration)]

    def print_plans(self, lengths: str) -> None:
        """Print the table of plans; raises PipelineError."""
        from pipeline.propose.bucket_command import print_plans  # reads models

        print_plans(self.config, self.steps, self.workspace, lengths)
