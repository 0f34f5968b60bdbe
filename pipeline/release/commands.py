"""Does what doit's tasks for releases do, without doit: package, publish, verify, check, clean.

doit imports this module at every start, so functions import what does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipeline.config.file import PerformanceMode
from pipeline.config.load import ModelConfig
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store.finding import FsckFinding

if TYPE_CHECKING:
    from pipeline.release.records.ssh import Ssh


def needed(config: ModelConfig, steps: Sequence[Step]) -> tuple[list[str], list[Step]]:
    """What packaging a model needs: tasks that must succeed before, and steps that packaging brings up to date itself.

    Usually the only task is the model's build. If the config lets artifacts ship unverified, the build would stop at
    their gates. Then the tasks are all steps before these gates, and packaging makes the other steps itself.
    """
    if config.release is None:
        return [], []
    if not config.release.unverified:
        return [f"build:{config.name}"], []
    from pipeline.release.published.skipped import is_gated

    late: dict[str, Step] = {}
    for step in steps:
        if is_gated(step, config.release.unverified) or any(name in late for name in step.after):
            late[step.id] = step
    return [step.id for step in steps if step.id not in late], [*late.values()]


def nothing_to_package(configs: Iterable[ModelConfig]) -> str:
    """Says why `doit package` without a name packages none of these models."""
    configs = list(configs)
    if later := [config.name for config in configs if config.release]:
        return f"Nothing to package, as only on request: {', '.join(f'doit package:{name}' for name in later)}"
    files = ", ".join(config.path.name for config in configs) or "a config"
    return f"Nothing to package: there is no 'release' section in {files}; docs/releases.md says what goes into one"


def check_signing_key() -> None:
    """Raise ConfigError if the environment names a signing key that can't be used."""
    if os.environ.get("PIPELINE_SIGNING_KEY"):
        from pipeline.release.signing_key import private_key  # imports cryptography

        private_key(os.environ)


def package_model(
    config: ModelConfig,
    steps: Sequence[Step],
    targets: Collection[str],
    workspace: Workspace,
    bring_up_to_date: Callable[[Step], None],
) -> bool:
    """Write the archives of a model and print a line on each. Returns whether one was written. Raises PipelineError."""
    from pipeline.release.archives.package import archive_paths, package, release_of

    release = release_of(config)
    archive_paths(config, targets, workspace)  # refuses early
    for step in needed(config, steps)[1]:
        bring_up_to_date(step)
    if not release.licenses:
        print(f"{config.name}: no licence of the model goes in: release.licenses names none")
    written = False
    for made in package(config, steps, targets, workspace):
        written |= made.written
        size = made.path.stat().st_size
        how = "written" if made.written else "current"
        seal = "signed" if made.signed else "not signed"
        print(f"{made.path.relative_to(workspace.root).as_posix()}: {how}, {size} bytes, sha256 {made.sha256}, {seal}")
        if made.was_signed and not made.signed:
            print("  the archive that was there was signed, and PIPELINE_SIGNING_KEY is not set: sign it again")
        for lapse in made.lapses:
            print(f"  not verified, as asked for: {lapse.artifact}, {lapse.gate}: {lapse.why}")
    return written


def check_archives(configs: Iterable[ModelConfig], workspace: Workspace) -> Iterator[FsckFinding]:
    """Findings on the archives in this checkout."""
    from pipeline.release.archives import on_disk

    expected = {path for config in configs for path in _all_paths(config, workspace)}
    return on_disk.check(expected, workspace)


def remove_archives(config: ModelConfig, workspace: Workspace) -> list[Path]:
    """Delete the archives of a model. Returns the deleted files. Raises StoreError."""
    from pipeline.release.archives import on_disk

    return on_disk.remove(config.name, _all_paths(config, workspace), workspace)


def _all_paths(config: ModelConfig, workspace: Workspace) -> list[Path]:
    from pipeline.release.archives.package import archive_paths

    if config.release is None:
        return []
    return [*archive_paths(config, [target.soc for target in config.targets], workspace).values()]


def publish_models(
    configs: Iterable[ModelConfig], targets: Collection[str], workspace: Workspace, urls: Sequence[str]
) -> None:
    """Publish the archives of these models to each of the destinations.

    A refusal does not stop the others; all refusals but the first are printed.

    Raises:
        PipelineError: the first refusal.
    """
    from pipeline.errors import PipelineError
    from pipeline.release.archives.package import archive_paths
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


def check_destinations(urls: Sequence[str]) -> None:
    """Raise PipelineError if nothing can be published to one of these."""
    from pipeline.release.publish import destination_of

    for url in urls or [""]:
        destination_of(url)


def verify_files(files: Sequence[str], key: str, replayed: str) -> None:
    """Check archives and print what they hold; if `replayed` names a record, run that again. Raises PipelineError."""
    from pipeline.errors import ConfigError
    from pipeline.release.verify import verify_release

    if not files:
        raise ConfigError("no file is named", where="command line", remedy="doit verify-release [--key KEY] FILE…")
    for file in files:
        print("\n".join(verify_release(Path(file), Path(key) if key else None).lines()))
    if replayed:
        from pipeline.release.records.replay import replay  # imports onnxruntime

        for line in replay(Path(replayed), Path(files[0]), Path(key) if key else None):
            print(line, flush=True)


def record_releases(
    files: Sequence[str], models: Sequence[tuple[ModelConfig, Sequence[Step]]], workspace: Workspace, samples: int
) -> None:
    """Record the outputs of the contexts in archives, and print the figures. Raises PipelineError."""
    from pipeline.errors import ConfigError
    from pipeline.release.records.record import record
    from pipeline.release.verify import read_index

    if not files or samples < 1:
        why = "no archive is named" if not files else f"--samples {samples}"
        raise ConfigError("nothing to record", where="command line", why=why, remedy="doit record [--samples 2] FILE…")
    for file in files:
        name = read_index(Path(file))["model"]
        steps = next((steps for config, steps in models if config.name == name), ())
        for line in record(Path(file), steps, workspace, samples):
            print(line, flush=True)


def measure_on_device(
    given: Sequence[str],
    models: Sequence[tuple[ModelConfig, Sequence[Step]]],
    targets: Collection[str],
    workspace: Workspace,
    options: Mapping[str, Any],
) -> None:
    """Run the release of a model on a device, print the figures, and write the report. Raises PipelineError."""
    from pipeline.errors import ConfigError
    from pipeline.release.archives.package import archive_paths
    from pipeline.release.device import HowToMeasure, measure_on
    from pipeline.report.page.command import report

    config, steps = _model_of(given, models)
    archives = [*archive_paths(config, targets, workspace).values()]
    if len(archives) > 1:
        raise ConfigError(
            f"{config.name} has a release for each target, and a device is one chip",
            where="command line",
            remedy=f"name it: doit device {' '.join(given)} targets={config.targets[0].soc}",
        )
    _check_timing(options)
    ssh = _device_of(given, options)
    how = HowToMeasure(options["samples"], options["seconds"], performance_mode=options["performance_mode"])
    for line in measure_on(archives[0], steps, workspace, ssh, how):
        print(line, flush=True)
    report([(config, steps)], config.name, workspace, no_browser=True)


def check_device(
    models: Sequence[tuple[ModelConfig, Sequence[Step]]], given: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Raise PipelineError if nothing can be run on the device, before anything is built for it."""
    _model_of(given, models)
    _check_timing(options)
    check_signing_key()
    _device_of(given, options).reach()


def _model_of(
    given: Sequence[str], models: Sequence[tuple[ModelConfig, Sequence[Step]]]
) -> tuple[ModelConfig, Sequence[Step]]:
    from pipeline.errors import ConfigError
    from pipeline.plain_text import did_you_mean

    by_task = {f"build:{config.name}": (config, steps) for config, steps in models}
    if len(given) == 2 and given[1] in by_task:
        return by_task[given[1]]
    why = "nothing is named"
    if len(given) == 2:
        why = f"no model is named {given[1]!r}{did_you_mean(given[1], by_task)}"
    elif given:
        why = f"{given[0]!r} alone is named" if len(given) == 1 else f"{len(given)} words are given"
    raise ConfigError(
        "a device and a model are needed",
        where=f"command line: {' '.join(('doit device', *given))}",
        why=why,
        remedy=f"doit device HOST {next(iter(by_task), 'build:MODEL')}",
    )


def _device_of(given: Sequence[str], options: Mapping[str, Any]) -> Ssh:
    from pipeline.release.records.ssh import Ssh

    config = Path(options["ssh_config"]) if options["ssh_config"] else None
    return Ssh(given[0], options["python"], options["folder"], config)


def _check_timing(options: Mapping[str, Any]) -> None:
    from pipeline.errors import ConfigError
    from pipeline.plain_text import did_you_mean

    for name in ("samples", "seconds"):
        if options[name] < 1:
            raise ConfigError(f"--{name} {options[name]}", where="command line", remedy="give at least 1")
    mode, known = options["performance_mode"], get_args(PerformanceMode)
    if mode and mode not in known:
        raise ConfigError(
            f"--performance-mode {mode}: QNN has none of that name{did_you_mean(mode, known)}",
            where="command line",
            remedy=f"one of {', '.join(known)}",
        )


def reproduce_release(files: Sequence[str], workspace: Workspace) -> None:
    """Build a release again and print which files came out equal. Raises PipelineError."""
    from pipeline.errors import ConfigError
    from pipeline.release.reproduce import reproduce

    if len(files) != 1:
        why = f"{len(files)} are named" if files else "none is named"
        raise ConfigError(
            "one release is reproduced at a time", where="command line", why=why, remedy="doit reproduce RELEASE"
        )
    for line in reproduce(Path(files[0]), workspace):
        print(line, flush=True)
