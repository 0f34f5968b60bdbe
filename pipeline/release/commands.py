"""What is done with releases by doit's tasks, without doit: package, publish, verify, check, clean.

Imported whenever doit runs, so what does the work is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from pipeline.config import ModelConfig
from pipeline.findings import Finding
from pipeline.plan import Step
from pipeline.workspace import Workspace


def needed(config: ModelConfig, steps: Sequence[Step]) -> tuple[list[str], list[Step]]:
    """What must be done before a model is packaged: tasks that must succeed, and steps that may fail their gates.

    Usually that is the model's build. Where the config names artifacts that may ship unverified, a build would stop at
    their gates; then it is all steps but these and what comes after them, which are brought up to date afterwards.
    """
    if config.release is None:
        return [], []
    if not config.release.unverified:
        return [f"build:{config.name}"], []
    from pipeline.release.skipped import is_gated

    late: dict[str, Step] = {}
    for step in steps:
        if is_gated(step, config.release.unverified) or any(name in late for name in step.after):
            late[step.id] = step
    return [step.id for step in steps if step.id not in late], [*late.values()]


def package_model(
    config: ModelConfig,
    steps: Sequence[Step],
    targets: Collection[str],
    workspace: Workspace,
    bring_up_to_date: Callable[[Step], None],
) -> None:
    """Write the archives of a model and say so; raises PipelineError."""
    from pipeline.release.package import archive_paths, package, release_of

    release = release_of(config)
    archive_paths(config, targets, workspace)  # refuses before anything is done
    for step in needed(config, steps)[1]:
        bring_up_to_date(step)
    if not release.licenses:
        print(f"{config.name}: no licence of the model goes in: release.licenses names none")
    for made in package(config, steps, targets, workspace):
        size = made.path.stat().st_size
        how = "written" if made.written else "current"
        print(f"{made.path.relative_to(workspace.root).as_posix()}: {how}, {size} bytes, sha256 {made.sha256}")
        for lapse in made.lapses:
            print(f"  not verified, as asked for: {lapse.artifact}, {lapse.gate}: {lapse.why}")


def check_archives(configs: Iterable[ModelConfig], workspace: Workspace) -> Iterator[Finding]:
    """What is wrong with the archives in this checkout."""
    from pipeline.release import on_disk

    expected = {path for config in configs for path in _all_paths(config, workspace)}
    return on_disk.check(expected, workspace)


def remove_archives(config: ModelConfig, workspace: Workspace) -> list[Path]:
    """Delete the archives of a model; the files deleted. Raises StoreError."""
    from pipeline.release import on_disk

    return on_disk.remove(config.name, _all_paths(config, workspace), workspace)


def _all_paths(config: ModelConfig, workspace: Workspace) -> list[Path]:
    from pipeline.release.package import archive_paths

    if config.release is None:
        return []
    return [*archive_paths(config, [target.soc for target in config.targets], workspace).values()]


def publish_models(
    configs: Iterable[ModelConfig], targets: Collection[str], workspace: Workspace, urls: Sequence[str]
) -> None:
    """Publish the archives of these models to each of the destinations.

    One that is refused does not stop others; all but the first refusal are printed.

    Raises:
        PipelineError: the first refusal.
    """
    from pipeline.errors import PipelineError
    from pipeline.release.package import archive_paths
    from pipeline.release.publish import publish

    refused: list[PipelineError] = []
    paths = [path for config in configs for path in archive_paths(config, targets, workspace).values()]
    for path, url in ((path, url) for path in paths for url in urls or [""]):
        try:
            print(publish(path, url), flush=True)
        except PipelineError as error:
            refused.append(error)
    for other in refused[1:]:
        print(f"error: {other}", flush=True)
    if refused:
        raise refused[0]


def verify_files(files: Sequence[str], key: str) -> None:
    """Check archives and say what they are; raises PipelineError."""
    from pipeline.errors import ConfigError
    from pipeline.release.verify import verify_release

    if not files:
        raise ConfigError("no file is named", where="command line", remedy="doit verify-release [--key KEY] FILE…")
    for file in files:
        print("\n".join(verify_release(Path(file), Path(key) if key else None).lines()))
