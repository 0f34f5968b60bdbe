"""Publishes what the steps of a model made to `artifacts/<model>/`: all of it, or the components that passed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial

from pipeline.build import failed
from pipeline.build.gated_steps import GatedSteps
from pipeline.config.load import ModelConfig
from pipeline.errors import PipelineError
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.release.commands import package_model
from pipeline.release.published import artifacts
from pipeline.release.published.artifact_folders import folders


def shares_binaries(config: ModelConfig) -> bool:
    """Whether targets of a model may share binaries, so that it is built for all of its targets or for none."""
    return config.packing in ("socs", "auto")


class Publishing:
    """The artifacts of the models that a command is about.

    `steps` has the steps of a build of each model, by the model's name. `is_whole` is false if the command line chose
    some of the targets: folders of the others are then no leftovers.
    """

    def __init__(
        self, workspace: Workspace, gated: GatedSteps, steps: Mapping[str, Sequence[Step]], is_whole: bool
    ) -> None:
        self._workspace, self._gated, self._steps, self._is_whole = workspace, gated, steps, is_whole

    def is_published(self, config: ModelConfig) -> bool:
        """Whether the folders of a model hold what its steps made, and nothing that an older build left there."""
        try:
            found = folders(config, self._steps[config.name], self._workspace)
        except PipelineError:
            return False
        dropped = []
        if self._all_folders(config):
            dropped = artifacts.leftovers(config.name, found, self._workspace)
            artifacts.tell_strangers(config.name, found, self._workspace)
        published = [artifacts.is_published(folder, self._workspace) for folder in found]  # each tells what it finds
        return not dropped and all(published)

    def publish(self, config: ModelConfig) -> None:
        """Publish all of a model. Raises PipelineError."""
        steps = self._steps[config.name]
        for step in steps if self._gated.remade else ():  # it may have come out otherwise after others had used it
            self._gated.bring(step)
        self._gated.healed(partial(self._write, config, steps), steps)
        failed.forget(config.name, self._workspace)

    def publish_rest(self, models: Iterable[ModelConfig], checked: Set[str]) -> dict[str, list[str]]:
        """Publish the components that passed, of models with others that failed. Returns model -> missing components.

        A folder that a build without failures made is left as it is: its files belong together. Raises PipelineError.
        """
        found: dict[str, list[str]] = {}
        for config in models:
            steps = self._steps[config.name]
            missing = sorted({each.component for each in steps if each.component and each.id not in checked})
            rest = [each for each in steps if each.component not in missing]
            if len(missing) == len(config.components) or not {each.id for each in rest} <= checked:
                continue
            for step in rest if self._gated.remade else ():  # as when all of a model is published
                self._gated.bring(step)
            wanted = [
                folder
                for folder in folders(config, rest, self._workspace, missing)
                if not artifacts.is_whole(folder.path)
            ]
            for folder in wanted:
                artifacts.publish(folder, self._workspace)
            if wanted:
                found[config.name] = missing
        return found

    def package(self, config: ModelConfig, targets: Collection[str]) -> bool:
        """Make the releases of a model for `targets`. Returns whether one was written. Raises PipelineError."""
        steps, bring = self._steps[config.name], self._gated.bring_ungated  # packaging decides which gates count
        return self._gated.healed(partial(package_model, config, steps, targets, self._workspace, bring), steps, bring)

    def _write(self, config: ModelConfig, steps: Sequence[Step]) -> None:
        workspace, wanted = self._workspace, folders(config, steps, self._workspace)
        for folder in wanted:
            artifacts.publish(folder, workspace)
        if self._all_folders(config):
            for path in artifacts.leftovers(config.name, wanted, workspace):
                artifacts.remove_folder(path, workspace.memo)
                name = path.relative_to(workspace.root).as_posix()
                workspace.store.tell(f"removed {name}: the config of {config.name} does not make it any more")

    def _all_folders(self, config: ModelConfig) -> bool:
        return self._is_whole or shares_binaries(config)
