"""Decides which hosts may run a step: by rules of the project, and as the compiler and emulator run on some hosts only.

A rule is a set of host names, of which a host needs one. A host needs a name of each rule.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import product

from pipeline.config import host_names
from pipeline.config.host_names import AARCH64, X86_64, Host
from pipeline.config.project_file import ProjectFile
from pipeline.config.targets import DEVICE
from pipeline.config.yaml.problems import dotted
from pipeline.contracts import context, packing
from pipeline.contracts.codec import Contract
from pipeline.errors import ConfigError, WaitingError
from pipeline.frozen import dataclass
from pipeline.model import Manifest
from pipeline.plan.steps import ON_DEMAND, Step
from pipeline.qnn import catalog
from pipeline.qnn.target import ON_DEVICE_HTP_ARCH
from pipeline.store.shared import address

_DEVICE = (
    "for HTP v68 the device itself compiles: binaries that x86_64 makes fail there"
    " (https://github.com/microsoft/onnxruntime/issues/26686)"
)
_ASKED = "the config says compile: device for the target"
_EMULATOR = "the emulator of HTP is only there for x86_64"
_PACK = "on ARM64 the compiler makes binaries for one bucket and the host's own SoC only"


@dataclass(frozen=True)
class HostRule:
    """A rule: a host needs one of these names. `why` explains the rule. A rule without names allows every host."""

    names: tuple[str, ...] = ()
    why: str = ""
    where: str = ""


def check(steps: Iterable[Step], project: ProjectFile) -> None:
    """Raise ConfigError for a step that no host could run: no host that may is able to."""
    if not project.settings.stages:
        return
    for step in steps:
        # Whether the other forms of a context are made is not known yet.
        if not isinstance(step.params, context.Params) or step.params.form == "separate":
            _hosts(step, _by_nature(step, step.params), _by_project(step, project))


def check_step(
    step: Step,
    params: Contract,
    inputs: Mapping[str, Manifest],
    project: ProjectFile,
    host: Host | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    besides: str = "",
) -> None:
    """Raise WaitingError if a step may not run on this host; `params` and `inputs` are those it was resolved to.

    `besides` is another reason why the output may not be here.
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


def rules(
    step: Step, params: Contract, inputs: Mapping[str, Manifest], project: ProjectFile
) -> tuple[tuple[str, ...], ...]:
    """The rules of a step that was resolved: of each, a host that runs it needs one name."""
    if _makes_nothing(params, inputs):
        return ()
    both = (_by_nature(step, params), _by_project(step, project))
    return tuple(rule.names for rule in both if rule.names)


def command(step: Step) -> str:
    """What to type on a host that may run a step."""
    return f"doit {step.id}" if step.stage in ON_DEMAND else f"doit build:{step.config.name}"


def no_tier(project: ProjectFile, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether neither the project nor the environment names a store that this host shares with others."""
    shared, _ = address.configured(environ, project.settings.store.shared, "")
    return not (shared or environ.get("PIPELINE_STORE"))


def _by_project(step: Step, project: ProjectFile) -> HostRule:
    names = project.settings.hosts(step.stage)
    if names is None:
        return HostRule()
    keys = project.settings.ruled_by(step.stage)
    return HostRule(names, f"{'.'.join(map(str, keys))} names {' and '.join(names)}", project.place(dotted(keys)))


def _by_nature(step: Step, params: Contract) -> HostRule:
    """The hosts that are able to run a step. Precision tries its finds on the emulator; packing and blame don't."""
    if step.stage in ("alone", "emulate", "converse", "probe", "precision"):
        return HostRule((X86_64,), _EMULATOR)
    if not isinstance(params, context.Params):
        return HostRule()
    target = step.target
    if target is not None and params.compile == DEVICE:
        index = step.config.targets.index(target)
        why = _DEVICE if catalog.resolve(target.soc).htp_arch == ON_DEVICE_HTP_ARCH else _ASKED
        return HostRule((target.soc,), why, step.config.place(f"targets[{index}]"))
    alone = target is not None and (params.form == "separate" or len(params.buckets) == 1)
    if target is not None and alone:
        return HostRule((X86_64, target.soc), "on ARM64 the compiler works for the host's own SoC only")
    return HostRule((X86_64,), _PACK)


def _makes_nothing(params: Contract, inputs: Mapping[str, Manifest]) -> bool:
    """Whether this is the context of a form that was not chosen: its output is empty, and any host can make it."""
    choice = inputs.get("packing")
    if choice is None or not isinstance(params, context.Params):
        return False
    return choice.read(packing.PackingChoice.from_json).chosen != params.form


def _hosts(step: Step, nature: HostRule, ruled: HostRule, *, able: bool = False) -> tuple[str, ...]:
    """The hosts that may run a step, each in words; raises ConfigError if there is none.

    The words leave out what a host needs to be able, if this host is `able`.
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
    """A host that has both names, in words; empty if there can't be one."""
    mine, other = _traits(given), _traits(needed)
    if any(mine[kind] != other[kind] for kind in mine.keys() & other.keys()):
        return ""
    if other.items() <= mine.items():
        return given
    if mine and mine.items() <= other.items():
        return needed
    return f"{given} ({needed})"


def _traits(name: str) -> dict[str, str]:
    """Architecture, system and SoC of hosts with this name, as far as it says so."""
    if name not in host_names.by_nature():
        return {}
    if name in (X86_64, AARCH64):
        return {"arch": name}
    system, _, arch = name.partition("-")
    if system not in ("linux", "windows"):
        return {"arch": AARCH64, "soc": name}
    return {"system": system, "arch": arch} if arch else {"system": system}


def _slip(ruled: HostRule, host: Host) -> str:
    """A question about a name in the rule that looks like one that this host was given; mostly empty."""
    own = [name for name in host.names if name not in host_names.by_nature()]
    free = [name for name in ruled.names if name not in host_names.by_nature()]
    found = next(((name, near) for name in free if (near := host_names.like(name, own))), None)
    return f" (is '{found[0]}' meant to be '{found[1]}', as this host is called?)" if found else ""


def _remedy(
    step: Step,
    params: Contract,
    hosts: Iterable[str],
    project: ProjectFile,
    environ: Mapping[str, str],
    *,
    able: bool,
) -> str:
    said = f"run '{command(step)}' on {' or '.join(hosts)}, then come back"
    if no_tier(project, environ):
        said += "; the two need a store that they share (store.shared in configs/project.yaml)"
    if not able and isinstance(params, context.Params) and params.compile == DEVICE:
        said += "; or compile it anywhere, with compile: host for the target"
    return said
