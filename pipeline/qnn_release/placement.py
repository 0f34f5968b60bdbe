"""Decides where a release runs: on the NPU with the target that fits, on QNN's emulator of a target, or on the CPU."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .errors import TargetError
from .index import Index, Target

NPU, EMULATOR, CPU = "npu", "emulator", "cpu"
DEVICES = (NPU, EMULATOR, CPU)

OPTIMAL = "EP_SUPPORTED_OPTIMAL"
USABLE = "EP_SUPPORTED_PREFER_RECOMPILATION"
_SAID = {
    "EP_UNSUPPORTED": "for another chip, or for a newer driver",
    "EP_NOT_APPLICABLE": "not for this execution provider",
}
"""What the EP's refusals, names of `OrtCompiledModelCompatibility`, mean."""

Ask = Callable[[str], str]
"""Asks the EP about a context by its compatibility string. Returns a name of `OrtCompiledModelCompatibility`."""


@dataclass(frozen=True)
class Placement:
    """Where a release runs: a device of :data:`DEVICES`, the target whose contexts are run, if any, and the reason.

    `fell_back` says that another device was wanted, and `remedy` what may help. `ep_device` is the EP's own handle of
    the device.
    """

    device: str
    target: Target | None
    why: str
    fell_back: bool = False
    ep_device: Any = None
    remedy: str = ""


def named_target(index: Index, name: str) -> Target:
    """The target of this name; raises TargetError if the release has none."""
    for target in index.targets:
        if target.name == name:
            return target
    have = [target.name for target in index.targets]
    close = difflib.get_close_matches(name, have, 1)
    raise TargetError(
        f"the release is not for {name}",
        where=f"target={name!r}",
        why=f"it is for {', '.join(have) or 'no target'}",
        next=f"did you mean {close[0]}?" if close else "name one of these, or leave it out",
    )


def fitting(index: Index, targets: tuple[Target, ...], ask: Ask) -> Placement:
    """The first of `targets` all of whose contexts the NPU takes, if possible one that the EP finds optimal."""
    usable: list[tuple[Target, str]] = []
    refused: list[str] = []
    for target in targets:
        infos = contexts_of(index, target)
        said = [ask(info) if info else "its contexts don't say what they are for" for info in infos]
        if said and all(word == OPTIMAL for word in said):
            return Placement(NPU, target, f"the execution provider finds its contexts optimal: {'; '.join(infos)}")
        wrong = next((word for word in said if word not in (OPTIMAL, USABLE)), "" if said else "it has no context")
        if wrong:
            refused.append(f"{_described(target)}: {_SAID.get(wrong, wrong)}")
        else:
            usable.append((target, "; ".join(infos)))
    if usable:
        target, infos_text = usable[0]
        return Placement(
            NPU, target, f"the execution provider takes its contexts, but would compile anew: {infos_text}"
        )
    why = f"no target of the release fits this NPU ({'; '.join(refused) or 'it has none'})"
    return Placement(CPU, None, why, fell_back=True, remedy="get a release for this chip, or update the NPU's driver")


def _described(target: Target) -> str:
    needs = f", driver {target.minimum_driver_sdk} or newer" if target.minimum_driver_sdk else ""
    return f"{target.name}{needs}"


def contexts_of(index: Index, target: Target) -> tuple[str, ...]:
    """The compatibility strings of a target's contexts, each once."""
    found = {
        context.compatibility: None
        for component in index.components.values()
        for bucket in component.buckets
        for name, context in bucket.contexts.items()
        if name == target.name
    }
    return tuple(found)


def place(index: Index, target: str | None, device: str | None) -> Placement:
    """Choose the device and the target, as far as the caller doesn't name them.

    Raises:
        TargetError: the release has no such target, or `device` is none of :data:`DEVICES`.
    """
    if device is not None and not (isinstance(device, str) and device in DEVICES):
        raise TargetError(
            f"there is no device {device!r}",
            where=f"device={device!r}",
            why=f"it is one of {', '.join(DEVICES)}, or left out",
            next="name one of these",
        )
    chosen = named_target(index, target) if target is not None else None
    if device == CPU:
        return Placement(CPU, None, "the caller asked for the CPU")
    from . import provider  # imports onnxruntime, which an application that only reads files has no need of

    host = provider.host()
    targets = index.targets if chosen is None else (chosen,)
    npu = host.npu
    if npu is not None and device != EMULATOR:
        found = fitting(index, targets, lambda info: provider.compatibility(npu, info))
        return replace(found, ep_device=npu)
    if device == EMULATOR and host.emulator is None:
        why = host.why if host.remedy else "QNN's emulator is for x86_64 hosts"
        return Placement(CPU, None, why, fell_back=True, remedy=host.remedy)
    if host.emulator is not None and device != NPU:
        if targets and (chosen is not None or device == EMULATOR):
            why = "the caller named it" if chosen is not None else "it is the release's first, and none was named"
            return Placement(
                EMULATOR, targets[0], f"{why}; {host.why or 'the emulator was asked for'}", False, host.emulator
            )
        remedy = "name a target, or give device='emulator', for QNN's emulator, which is slow"
        return Placement(CPU, None, host.why, fell_back=True, remedy=remedy)
    return Placement(CPU, None, host.why, fell_back=True, remedy=host.remedy)
