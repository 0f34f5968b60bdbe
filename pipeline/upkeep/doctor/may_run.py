"""Checks which steps this host may run, by the project's settings and by the compilers for its processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config import host_names
from pipeline.config.file_names import PROJECT_FILE
from pipeline.config.host_names import AARCH64, VARIABLE, X86_64, Host
from pipeline.config.load import ModelConfig
from pipeline.config.project_file import ProjectFile, load
from pipeline.contracts import context
from pipeline.errors import PipelineError, WaitingError
from pipeline.plan import hosts
from pipeline.plan.planner import plan_all
from pipeline.plan.steps import Step
from pipeline.qnn import catalog
from pipeline.upkeep.doctor.finding import CONFIG, Check, Finding

_CONFIGS, _HOSTS = Check("project.configs", CONFIG), Check("project.hosts", CONFIG)


def check_file(folder: Path) -> tuple[ProjectFile, list[Finding]]:
    """The project's settings, and findings about their file. If the file is wrong, they are the defaults."""
    check = _CONFIGS.about(f"{folder.name}/{PROJECT_FILE}")
    try:
        project = load(folder)
    except PipelineError as problem:
        return ProjectFile(), [check.error(problem.what, remedy=problem.remedy)]
    return project, [check.ok("is valid")] if project.places else []


def check(
    project: ProjectFile, configs: Sequence[ModelConfig], environ: Mapping[str, str], host: Host | None = None
) -> Iterator[Finding]:
    """Findings about the names of this host, the steps that wait for another host, and names that look misspelt."""
    host = host or Host.here(environ)
    called = f"this host is {', '.join(host.names)}"
    given = host_names.given_names(environ.get(VARIABLE, ""))
    yield from _slips(project, given, host)
    steps = plan_all(configs)
    try:
        hosts.check(steps, project)
    except PipelineError as problem:
        yield _HOSTS.about(problem.where).error(problem.what, problem.why, problem.remedy)
        return
    waiting = _waiting(steps, project, host, environ)
    if not waiting:
        yield _HOSTS.ok(f"{called}, and may run every step of this project")
    for number, (why, (others, names)) in enumerate(waiting.items()):
        what = f"{called}; " if not number else ""
        stages = ", ".join(dict.fromkeys(name.split(":")[0] for name in names))
        yield _HOSTS.ok(f"{what}{len(names)} step(s) of {stages} are for {' or '.join(others)}", why)


def _waiting(
    steps: Iterable[Step], project: ProjectFile, host: Host, environ: Mapping[str, str]
) -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """For each reason why steps may not run here: the hosts that may run them, and the names of the steps."""
    found: dict[str, tuple[tuple[str, ...], list[str]]] = {}
    for step in steps:
        if isinstance(step.params, context.Params) and step.params.form != "separate" and step.config.packing == "auto":
            continue  # only once the model is quantized is it known whether this step makes anything
        try:
            hosts.check_step(step, step.params, {}, project, host, environ)
        except WaitingError as problem:
            others, names = found.setdefault(problem.why, ((), []))
            names.append(step.id)
            found[problem.why] = (tuple(dict.fromkeys((*others, *problem.hosts))), names)
    return found


def _slips(project: ProjectFile, given: Sequence[str], host: Host) -> Iterator[Finding]:
    """Warnings about names in PIPELINE_HOST that have no effect, or another effect than they seem to have."""
    ruled = {name for stage in project.settings.stages.values() for name in stage.hosts}
    for name in given:
        if guess := host_names.meant(name):
            why = f"a project can't name it: hosts have the name '{guess}' by nature, and only who is so"
            yield _HOSTS.warning(f"{VARIABLE} says '{name}'", why, f"leave '{name}' out")
        elif name not in ruled and (near := host_names.like(name, ruled)):
            why = f"no rule names '{name}', and one names '{near}'"
            yield _HOSTS.warning(f"{VARIABLE} says '{name}'", why, f"write '{near}' if it is meant")
        elif host.arch == X86_64 and name in catalog.names():
            why = "this Python is made for x86_64: what is compiled on the device is not compiled here all the same"
            yield _HOSTS.warning(f"{VARIABLE} says that this host is {name}", why, "leave it out")
    if host.arch == AARCH64 and host.soc is None:
        why = "neither /sys/devices/soc0 nor the processor's name is of a SoC that the catalogue has"
        remedy = f"if it has an NPU, say which: {VARIABLE}=snapdragon-x-elite"
        yield _HOSTS.warning("which SoC this host has can't be told, so it compiles for none", why, remedy)
