"""Which steps this host may run, by what the project says and by what there is for its processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline import host_names, hosts
from pipeline.config import ModelConfig
from pipeline.doctor.finding import CONFIG, Finding, error, ok, warning
from pipeline.errors import PipelineError, WaitingError
from pipeline.host_names import AARCH64, VARIABLE, X86_64, Host
from pipeline.plan import Step, plan
from pipeline.project_file import PROJECT_FILE, Project, load
from pipeline.qnn import catalog

_CHECK = "project.hosts"


def check_file(folder: Path) -> tuple[Project, list[Finding]]:
    """The project's settings, and what is wrong with them: then all are defaults."""
    name, file = "project.configs", f"{folder.name}/{PROJECT_FILE}"
    try:
        project = load(folder)
    except PipelineError as problem:
        return Project(), [error(name, problem.what, CONFIG, file, remedy=problem.remedy)]
    return project, [ok(name, "is valid", file)] if project.places else []


def check(
    project: Project, configs: Sequence[ModelConfig], environ: Mapping[str, str], host: Host | None = None
) -> Iterator[Finding]:
    """The names of this host, steps that wait for another, and names that look like slips."""
    host = host or Host.here(environ)
    called = f"this host is {', '.join(host.names)}"
    given = host_names.given_names(environ.get(VARIABLE, ""))
    yield from _slips(project, given, host)
    steps = [step for config in configs for step in plan(config)]
    try:
        hosts.check(steps, project)
    except PipelineError as problem:
        yield error(_CHECK, problem.what, CONFIG, problem.where, why=problem.why, remedy=problem.remedy)
        return
    waiting = _waiting(steps, project, host, environ)
    if not waiting:
        yield ok(_CHECK, f"{called}, and may run every step of this project")
    for number, (why, (others, names)) in enumerate(waiting.items()):
        what = f"{called}; " if not number else ""
        stages = ", ".join(dict.fromkeys(name.split(":")[0] for name in names))
        yield ok(_CHECK, f"{what}{len(names)} step(s) of {stages} are for {' or '.join(others)}", why=why)


def _waiting(
    steps: Iterable[Step], project: Project, host: Host, environ: Mapping[str, str]
) -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """For each reason why steps may not run here, hosts that may run them, and their names."""
    found: dict[str, tuple[tuple[str, ...], list[str]]] = {}
    for step in steps:
        if step.stage == "context" and step.params["form"] != "separate" and step.config.packing == "auto":
            continue  # whether it makes anything is decided when the model was quantized
        try:
            hosts.check_step(step, step.params, {}, project, host, environ)
        except WaitingError as problem:
            others, names = found.setdefault(problem.why, ((), []))
            names.append(step.id)
            found[problem.why] = (tuple(dict.fromkeys((*others, *problem.hosts))), names)
    return found


def _slips(project: Project, given: Sequence[str], host: Host) -> Iterator[Finding]:
    """Names in PIPELINE_HOST that will not do what they seem to."""
    ruled = {name for stage in project.settings.stages.values() for name in stage.hosts}
    for name in given:
        if guess := host_names.meant(name):
            why = f"a project can't name it: hosts have the name '{guess}' by nature, and only who is so"
            yield warning(_CHECK, f"{VARIABLE} says '{name}'", why=why, remedy=f"leave '{name}' out")
        elif name not in ruled and (near := host_names.like(name, ruled)):
            why = f"no rule names '{name}', and one names '{near}'"
            yield warning(_CHECK, f"{VARIABLE} says '{name}'", why=why, remedy=f"write '{near}' if it is meant")
        elif host.arch == X86_64 and name in catalog.names():
            why = "this Python is made for x86_64: what is compiled on the device is not compiled here all the same"
            yield warning(_CHECK, f"{VARIABLE} says that this host is {name}", why=why, remedy="leave it out")
    if host.arch == AARCH64 and host.soc is None:
        why = "neither /sys/devices/soc0 nor the processor's name is of a SoC that the catalogue has"
        remedy = f"if it has an NPU, say which: {VARIABLE}=snapdragon-x-elite"
        yield warning(_CHECK, "which SoC this host has can't be told, so it compiles for none", why=why, remedy=remedy)
