"""All checks, in order. Each stands by itself: what one of them can't find out is told, and the next one goes on.

The groups are in the order in which a reader should mend what is wrong; the slow ones are last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.doctor import host, packages
from pipeline.doctor.finding import ENVIRONMENT, Finding, error

if TYPE_CHECKING:
    from pipeline.config import ModelConfig
    from pipeline.workspace import Workspace

_TRIED = ("snapdragon-x-elite", 60, 73)
"""The target of the trial when no config gives one."""


def examine(root: Path) -> Iterator[Finding]:
    """Findings about this host and environment, and about the project whose folder `root` is. Never raises."""
    host_facts = host.gather()
    yield from _safely("host.system", lambda: host.check(host_facts))
    package_facts = packages.gather(root / "pyproject.toml")
    wrong = [*packages.refusals(package_facts)]
    usable = not wrong and host.refusal(host_facts) is None
    yield from _safely("packages.installed", lambda: packages.check(_with_api(package_facts, root, usable=usable)))
    project = yield from _project(root, package_facts.qairt)
    yield from _compiler(root, host_facts, project, usable=usable)


@dataclass(frozen=True)
class _Project:
    """What could be read of the project: its workspace, and the models whose configs are right."""

    workspace: Workspace
    configs: Sequence[ModelConfig]


def _project(root: Path, qairt: str) -> Generator[Finding, None, _Project | None]:
    """Findings about configs, store, space and hub; what was read, None where packages are missing for that."""
    try:
        from pipeline.doctor import may_run, project, shared_store, store
        from pipeline.workspace import Workspace

        workspace = Workspace.at(root)
    except Exception as problem:  # whichever package is missing or broken: others report that
        yield _crashed("project.configs", problem)
        return None
    loaded = []
    configs: list[ModelConfig] = []

    def check_configs() -> Iterator[Finding]:
        loaded.extend(project.load_configs(root / "configs"))
        configs.extend(each.config for each in loaded if each.config is not None)
        yield from project.check_configs(loaded, workspace.pins)
        settings, wrong = may_run.check_file(root / "configs")
        yield from wrong
        yield from _safely("project.hosts", lambda: may_run.check(settings, configs, os.environ))

    def check_store() -> Iterator[Finding]:
        yield from store.check_folder("store.folder", "the store", store.try_folder(workspace.store.root))
        yield store.check_store(store.look_at(workspace.store.root))
        for name, what, folder in (
            ("store.build", "the build folder", workspace.build),
            ("store.artifacts", "the artifacts folder", workspace.artifacts),
        ):
            yield from store.check_folder(name, what, store.try_folder(folder))

    def check_shared() -> Iterator[Finding]:
        settings, _ = may_run.check_file(root / "configs")
        yield from shared_store.check(shared_store.try_out(workspace.configured(settings).shared))

    yield from _safely("project.configs", check_configs)
    yield from _safely("project.source", lambda: project.check_files(configs, workspace))
    yield from _safely("project.variables", lambda: project.check_variables(os.environ))
    yield from _safely("targets.driver", lambda: project.check_drivers(configs, qairt))
    yield from _safely("store.folder", check_store)
    yield from _safely("store.shared", check_shared)
    yield from _safely("space.disk", lambda: _space(workspace, configs))
    yield from _safely("hub.reach", lambda: _hub(workspace, configs))
    return _Project(workspace, configs)


def _space(workspace: Workspace, configs: Sequence[ModelConfig]) -> Iterator[Finding]:
    import psutil

    from pipeline.doctor import space
    from pipeline.plan import plan
    from pipeline.system.memory import budget_bytes

    steps = [step for config in configs if not config.on_request for step in plan(config)]
    needs = space.needs(steps, workspace)
    for disk in space.disks(needs, workspace, space.hf_cache_folder()):
        yield space.check_disk(disk)
    available = int(psutil.virtual_memory().available)
    yield space.check_memory(space.memory(steps, workspace, available, budget_bytes(os.environ)))


def _hub(workspace: Workspace, configs: Sequence[ModelConfig]) -> Iterator[Finding]:
    from pipeline.config import HubSource
    from pipeline.doctor import hub, space
    from pipeline.pins import pinned_revision

    models = []
    for config in configs:
        if isinstance(config.source, HubSource):
            source = config.source
            revision = pinned_revision(source.hub, source.revision, workspace.pins) or source.revision
            cached = space.cached_bytes(config, source, workspace) is not None
            models.append(hub.Access(config.name, source.hub, revision, cached, config.on_request))
    return hub.check(hub.gather(models))


def _compiler(root: Path, facts: host.HostFacts, project: _Project | None, *, usable: bool) -> Iterator[Finding]:
    from pipeline.doctor import compiler

    soc, soc_model, htp_arch = _TRIED
    try:
        if project and project.configs:
            from pipeline.qnn import catalog

            found = catalog.resolve(project.configs[0].targets[0].soc)
            soc, soc_model, htp_arch = found.name, found.soc_model, found.htp_arch
    except Exception:  # the trial is about the compiler: any target will do
        pass
    # As Python is, so is the compiler: under emulation it is the x86_64 one, emulator and all.
    machine = facts.python_machine
    if not usable:
        told = compiler.CompilerFacts(facts.system, machine, soc, skipped="the host or its packages are not fit for it")
        return compiler.check(told)
    return _safely(
        "compiler.compile",
        lambda: compiler.check(compiler.tried(root, soc, soc_model, htp_arch, facts.system, machine)),
    )


def _with_api(facts: packages.PackageFacts, root: Path, *, usable: bool) -> packages.PackageFacts:
    if not usable:
        return facts
    from pipeline.doctor import compiler

    return replace(facts, api=compiler.asked_api(root))


def _safely(check: str, findings: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings; where looking for them fails, one that says so in place of the rest."""
    try:
        yield from findings()
    except Exception as problem:  # a doctor that dies of an illness is of no use
        yield _crashed(check, problem)


def _crashed(check: str, problem: Exception) -> Finding:
    why = " ".join(f"{type(problem).__name__}: {problem}".split())
    remedy = "mend what is wrong above, then look again; if nothing is, it is a mistake of the pipeline: report it"
    return error(check, "the check itself failed", ENVIRONMENT, why=why, remedy=remedy)
