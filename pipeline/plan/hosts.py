"""Which hosts may run a step: by rules of the project, and by what the compiler and the emulator are made for.

A rule is a set of host names, of which a host needs one. Where there are two rules, it needs one of each.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import cast

from pipeline import host_names
from pipeline.config import DEVICE
from pipeline.errors import ConfigError, WaitingError
from pipeline.host_names import AARCH64, X86_64, Host
from pipeline.model import Json, Manifest
from pipeline.plan import ON_DEMAND, Step
from pipeline.project_file import Project
from pipeline.qnn import catalog
from pipeline.qnn.target import ON_DEVICE_HTP_ARCH
from pipeline.shared import address
from pipeline.yamltypes.problems import dotted

_DEVICE = (
    "for HTP v68 the device itself compiles: binaries that x86_64 makes fail there"
    " (https://github.com/microsoft/onnxruntime/issues/26686)"
)
_ASKED = "the config says compile: device for the target"
_EMULATOR = "the emulator of HTP is only there for x86_64"
_PACK = "on ARM64 the compiler makes binaries for one bucket and the host's own SoC only"


@dataclass(frozen=True)
class Rule:
    """Names of which a host needs one, and why; none: any host will do."""

    names: tuple[str, ...] = ()
    why: str = ""
    where: str = ""


def check(steps: Iterable[Step], project: Project) -> None:
    """Raise ConfigError for steps that no host could run: the project's rules leave none that is able to."""
    if not project.settings.stages:
        return
    for step in steps:
        if step.stage != "context" or step.params["form"] == "separate":  # whether others make anything is not known
            _hosts(step, _by_nature(step, step.params), _by_project(step, project))


def check_step(
    step: Step,
    params: Mapping[str, Json],
    inputs: Mapping[str, Manifest],
    project: Project,
    host: Host | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    besides: str = "",
) -> None:
    """Raise WaitingError if a step may not run on this host; `params` and `inputs` are those it was resolved to.

    `besides` is what else may be why the output is not here.
    """
    if _makes_nothing(params, inputs):
        return
    host = host or Host.here(environ)
    nature, ruled = _by_nature(step, params), _by_project(step, project)
    able = not nature.names or not {host.arch, host.soc}.isdisjoint(nature.names)
    allowed = not ruled.names or not set(host.names).isdisjoint(ruled.names)
    if able and allowed:
        return
    hosts = _hosts(step, nature, ruled, able=able)
    why = [nature.why] if not able else []
    if not allowed:
        why.append(f"{ruled.why}{_slip(ruled, host)}")
    if not able and host.arch == AARCH64 and host.soc is None and step.stage == "context":
        why.append(f"which SoC this host has can't be told; {host_names.VARIABLE}=<SoC> in the environment says it")
    if not able and host.arch == X86_64 and (claimed := [name for name in host.names if name in nature.names]):
        why.append(f"that it is {claimed[0]}, as {host_names.VARIABLE} says, is not believed of an {X86_64} host")
    if besides:
        why.append(besides)
    raise WaitingError(
        f"{step.id} {'may not' if able else 'can not'} run on this host ({', '.join(host.names)})",
        where=nature.where if not able else ruled.where,
        why="; ".join(why),
        remedy=_remedy(step, params, hosts, project, environ, able=able),
        hosts=hosts,
        step=step.id,
    )


def command(step: Step) -> str:
    """What to type where a step may run."""
    return f"doit {step.id}" if step.stage in ON_DEMAND else f"doit build:{step.config.name}"


def no_tier(project: Project, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nothing says that what another host makes comes to this one."""
    shared, _ = address.configured(environ, project.settings.store.shared, "")
    return not (shared or environ.get("PIPELINE_STORE"))


def _by_project(step: Step, project: Project) -> Rule:
    names = project.settings.hosts(step.stage)
    if names is None:
        return Rule()
    keys = project.settings.ruled_by(step.stage)
    return Rule(names, f"{'.'.join(map(str, keys))} names {' and '.join(names)}", project.place(dotted(keys)))


def _by_nature(step: Step, params: Mapping[str, Json]) -> Rule:
    """What the step can't do without. Precision tries what it finds on the emulator; packing and blame need none."""
    if step.stage in ("emulate", "probe", "precision"):
        return Rule((X86_64,), _EMULATOR)
    if step.stage != "context":
        return Rule()
    target = step.target
    if target is not None and params.get("compile") == DEVICE:
        index = step.config.targets.index(target)
        why = _DEVICE if catalog.resolve(target.soc).htp_arch == ON_DEVICE_HTP_ARCH else _ASKED
        return Rule((target.soc,), why, step.config.places.get(f"targets[{index}]", step.config.path.name))
    alone = target is not None and (params["form"] == "separate" or len(_buckets(step, params)) == 1)
    if target is not None and alone:
        return Rule((X86_64, target.soc), "on ARM64 the compiler works for the host's own SoC only")
    return Rule((X86_64,), _PACK)


def _buckets(step: Step, params: Mapping[str, Json]) -> Collection[str]:
    return cast("Mapping[str, Json]", params.get("buckets", {bucket.name: None for bucket in step.config.buckets}))


def _makes_nothing(params: Mapping[str, Json], inputs: Mapping[str, Manifest]) -> bool:
    """Whether this is the context of a form that was not chosen: any host can make nothing."""
    packing = inputs.get("packing")
    return packing is not None and "form" in params and packing.facts["chosen"] != params["form"]


def _hosts(step: Step, nature: Rule, ruled: Rule, *, able: bool = False) -> tuple[str, ...]:
    """Who may run a step, each in words; raises ConfigError if that is nobody.

    Where this host is `able` to, what others need to be able is not worth a word.
    """
    if not nature.names or not ruled.names:
        return nature.names or ruled.names
    pairs = ((given, _both(given, needed)) for given, needed in product(ruled.names, nature.names))
    found = tuple(dict.fromkeys(given if able else both for given, both in pairs if both))
    if not found:
        raise ConfigError(
            f"no host could run {step.id}",
            where=ruled.where,
            why=f"{ruled.why}, and it needs {' or '.join(nature.names)}: {nature.why}",
            remedy=f"name {' or '.join(nature.names)} there, too",
        )
    return found


def _both(given: str, needed: str) -> str:
    """A host that has both names, in words; nothing if there can't be one."""
    mine, other = _told(given), _told(needed)
    if any(a and b and a != b for a, b in zip(mine, other, strict=True)):
        return ""
    if all(a or not b for a, b in zip(mine, other, strict=True)):
        return given  # says as much
    if any(mine) and all(b or not a for a, b in zip(mine, other, strict=True)):
        return needed
    return f"{given} ({needed})"


def _told(name: str) -> tuple[str, str, str]:
    """Architecture, system and SoC, as far as a name tells them."""
    if name not in host_names.by_nature():
        return "", "", ""
    if name in (X86_64, AARCH64):
        return name, "", ""
    system, _, arch = name.partition("-")
    if system in ("linux", "windows"):
        return arch, system, ""
    return AARCH64, "", name


def _slip(ruled: Rule, host: Host) -> str:
    """A word on a name that looks like one that this host was given."""
    own = [name for name in host.names if name not in host_names.by_nature()]
    free = [name for name in ruled.names if name not in host_names.by_nature()]
    found = next(((name, near) for name in free if (near := host_names.like(name, own))), None)
    return f" (is '{found[0]}' meant to be '{found[1]}', as this host is called?)" if found else ""


def _remedy(
    step: Step,
    params: Mapping[str, Json],
    hosts: Iterable[str],
    project: Project,
    environ: Mapping[str, str],
    *,
    able: bool,
) -> str:
    said = f"run '{command(step)}' on {' or '.join(hosts)}, then come back"
    if no_tier(project, environ):
        said += "; the two need a store that they share (store.shared in configs/project.yaml)"
    if not able and params.get("compile") == DEVICE:
        said += "; or compile it anywhere, with compile: host for the target"
    return said
