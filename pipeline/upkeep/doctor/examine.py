"""Makes all checks in the order in which a reader should repair what is wrong; slow checks are last.

A check that fails itself gives a finding that says so, and the next check is made all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.upkeep.doctor import host, packages
from pipeline.upkeep.doctor.finding import Check, Finding

if TYPE_CHECKING:
    from pipeline.config.load import ModelConfig
    from pipeline.plan.workspace import Workspace

_TRIED = ("snapdragon-x-elite", 60, 73)
"""The target to compile for where no config gives one: name, SoC number of QNN, HTP architecture."""


def examine(root: Path) -> Iterator[Finding]:
    """Findings about this host and environment, and about the project whose folder `root` is. Never raises."""
    host_facts = host.gather()
    yield from _safely("host.system", lambda: host.check(host_facts))
    package_facts = packages.gather(root / "pyproject.toml")
    wrong = [*packages.refusals(package_facts)]
    usable = not wrong and host.refusal(host_facts) is None
    yield from _safely("packages.installed", lambda: packages.check(_with_api(package_facts, root, usable=usable)))
    configs = yield from _project(root, package_facts.qairt)
    yield from _safely("compiler.compile", lambda: _compiler(root, host_facts, configs, usable=usable))


def _project(root: Path, qairt: str) -> Generator[Finding, None, Sequence[ModelConfig]]:
    """Yield findings about configs, store, space and hub. Returns the configs without mistakes."""
    configs: list[ModelConfig] = []
    try:
        from pipeline.plan.workspace import Workspace
        from pipeline.upkeep.doctor import may_run, project, store

        workspace = Workspace.at(root)
    except Exception as problem:  # a package is missing or broken: other checks report that
        yield _crashed("project.configs", problem)
        return configs

    def check_configs() -> Iterator[Finding]:
        yield from project.check_configs(root / "configs", workspace.pins, configs)
        settings, found = may_run.check_file(root / "configs")
        yield from found
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
        yield store.check_shared(workspace.configured(settings).shared)

    yield from _safely("project.configs", check_configs)
    yield from _safely("project.source", lambda: project.check_files(configs, workspace))
    yield from _safely("project.variables", lambda: project.check_variables(os.environ))
    yield from _safely("targets.driver", lambda: project.check_drivers(configs, qairt))
    yield from _safely("store.folder", check_store)
    yield from _safely("store.shared", check_shared)
    yield from _safely("space.disk", lambda: _space(workspace, configs))
    yield from _safely("hub.reach", lambda: _hub(workspace, configs))
    return configs


def _space(workspace: Workspace, configs: Sequence[ModelConfig]) -> Iterator[Finding]:
    import psutil

    from pipeline.plan.planner import plan_all
    from pipeline.processes.memory import budget_bytes
    from pipeline.upkeep.doctor import space

    steps = plan_all(config for config in configs if not config.on_request)
    needs = space.needs(steps, workspace)
    for disk in space.disks(needs, workspace, space.hf_cache_folder()):
        yield space.check_disk(disk)
    available = int(psutil.virtual_memory().available)
    yield space.check_memory(space.memory(steps, workspace, available, budget_bytes(os.environ)))


def _hub(workspace: Workspace, configs: Sequence[ModelConfig]) -> Iterator[Finding]:
    from pipeline.config.load import HubSource
    from pipeline.inputs.pins import pinned_revision
    from pipeline.upkeep.doctor import hub, space

    models = []
    for config in configs:
        if isinstance(config.source, HubSource):
            source = config.source
            revision = pinned_revision(source.hub, source.revision, workspace.pins) or source.revision
            cached = space.cached_bytes(config, source, workspace) is not None
            models.append(hub.Access(config.name, source.hub, revision, cached, config.on_request))
    return hub.check(hub.gather(models))


def _compiler(root: Path, facts: host.HostFacts, configs: Sequence[ModelConfig], *, usable: bool) -> Iterator[Finding]:
    from pipeline.upkeep.doctor import compiler

    soc, soc_model, htp_arch = _TRIED
    if configs:
        from pipeline.qnn import catalog

        found = catalog.resolve(configs[0].targets[0].soc)
        soc, soc_model, htp_arch = found.name, found.soc_model, found.htp_arch
    machine = facts.python_machine  # the compiler is that of this Python, also where both are emulated
    if not usable:
        yield from compiler.check(
            compiler.CompilerFacts(machine, soc, skipped="the host or its packages are not fit for it")
        )
        return
    yield from compiler.check(compiler.tried(root, soc, soc_model, htp_arch, machine))


def _with_api(facts: packages.PackageFacts, root: Path, *, usable: bool) -> packages.PackageFacts:
    if not usable:
        return facts
    from pipeline.upkeep.doctor import compiler

    return replace(facts, api=compiler.asked_api(root))


def _safely(check: str, findings: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings, and one more if making them fails."""
    try:
        yield from findings()
    except Exception as problem:  # the other checks are to be made all the same
        yield _crashed(check, problem)


def _crashed(check: str, problem: Exception) -> Finding:
    why = " ".join(f"{type(problem).__name__}: {problem}".split())
    remedy = "mend what is wrong above, then look again; if nothing is, it is a mistake of the pipeline: report it"
    return Check(check).error("the check itself failed", why, remedy)
