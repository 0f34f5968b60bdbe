"""Reads the targets of a config: SoCs of the catalogue, with options for the compiler and for applications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from pipeline.config.file import TargetOptions
from pipeline.config.yaml.decode import INVALID
from pipeline.config.yaml.problems import Keys, Problems, nearest
from pipeline.config.yaml.tree import Node, place_of
from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.qnn import catalog, provider_options
from pipeline.qnn.target import ON_DEVICE_HTP_ARCH

HOST, DEVICE = "host", "device"
"""Where a target's contexts are compiled."""


@dataclass(frozen=True)
class Target:
    """A SoC by its canonical name in the catalogue, and the VTCM to compile for; None leaves that to the compiler.

    `driver_sdk` is the QAIRT version of the oldest driver to run on, None if it was not given. `compile` says where
    contexts are compiled: on any :data:`HOST`, or on the :data:`DEVICE`, a host with this SoC. `compiler_options` and
    `runtime_options` are provider options of QNN's EP for the compile, and for applications.
    """

    soc: str
    vtcm_mb: int | None
    driver_sdk: str | None = None
    compile: str = HOST
    compiler_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    runtime_options: Mapping[str, str] = field(default_factory=dict, hash=False)


def read_targets(written: Sequence[Any], node: Node, problems: Problems) -> tuple[Target, ...]:
    """The targets of a config that are in the catalogue; `written` has a `str`, TargetOptions or INVALID for each."""
    found: dict[str, Target] = {}
    for index, entry in enumerate(written):
        if entry is INVALID:
            continue
        keys: Keys = ("targets", index)
        options = TargetOptions(entry) if isinstance(entry, str) else entry
        soc = catalog.find(options.soc)
        if soc is None:
            problems.add(
                place_of(node, (*keys, "soc")),
                keys,
                f"unknown target '{options.soc}'",
                expected="a SoC of the catalogue, which docs/config.md lists",
                suggestion=nearest(options.soc, catalog.spellings()),
            )
        elif soc.name in found:
            problems.add(place_of(node, keys), keys, f"'{options.soc}' is {soc.name}, which is there already")
        elif _cant_be_set(options.provider_options, keys, node, problems):
            found[soc.name] = Target(soc.name, soc.vtcm_mb)
        else:
            try:
                vtcm_mb = soc.usable_vtcm_mb(options.vtcm_mb)
                where = options.compile or (DEVICE if soc.htp_arch == ON_DEVICE_HTP_ARCH else HOST)
                found[soc.name] = Target(soc.name, vtcm_mb, options.driver_sdk, where, *_options(options))
            except ConfigError as error:
                keys = (*keys, "vtcm_mb")
                problems.add(place_of(node, keys), keys, error.what, expected=f"{soc.most_vtcm_mb} or less")
                found[soc.name] = Target(soc.name, soc.vtcm_mb, options.driver_sdk)
    return tuple(found.values())


def _options(options: TargetOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Provider options by the EP's names: those for the compile, and those for applications."""
    compiler = {
        provider_options.OPTIMIZATION: options.optimization,
        provider_options.PRIORITY: options.priority,
        **options.provider_options,
    }
    runtime = {
        provider_options.PRIORITY: options.priority,
        provider_options.PERFORMANCE_MODE: options.performance_mode,
        provider_options.RPC_LATENCY: options.rpc_latency_us,
    }
    given = ({name: str(value) for name, value in each.items() if value is not None} for each in (compiler, runtime))
    return next(given), next(given)


def _cant_be_set(given: Mapping[str, str], keys: Keys, node: Node, problems: Problems) -> bool:
    """Add a problem for every provider option of a target that can't be set. Returns whether there is one."""
    wrong = {name: why for name in given if (why := provider_options.why_not(name))}
    for name, why in wrong.items():
        at = (*keys, "provider_options", name)
        problems.add(
            place_of(node, at),
            at,
            f"can't be set: {why}",
            expected=f"one of {', '.join(sorted(provider_options.COMPILE))}",
            suggestion=nearest(name, provider_options.COMPILE),
        )
    return bool(wrong)
