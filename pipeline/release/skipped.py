"""Artifacts that failed their gates or never came to one, and whether a release may hold them all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pipeline.config import Bucket
from pipeline.errors import ConfigError, VerificationError
from pipeline.gates import check
from pipeline.model import PARTS, Json, Manifest
from pipeline.plan import Step
from pipeline.suggest import did_you_mean

_GATES = {"context": "context", "verify": "cpu", "emulate": "emulator"}
"""What a gate is called, by the stage whose output it judges."""


@dataclass(frozen=True)
class Lapse:
    """One gate that an artifact did not pass: `artifact` is `<component>/<bucket>`, or with `/<target>`."""

    artifact: str
    gate: str
    why: str
    measured: bool = True
    """False where the gate was skipped: nothing is known."""

    def json(self) -> dict[str, Json]:
        """As in release.json."""
        return {"artifact": self.artifact, "gate": self.gate, "why": self.why}


def failed(steps: Sequence[Step], manifests: Mapping[str, Manifest]) -> list[Lapse]:
    """The gates that the outputs of these steps don't pass."""
    return [*dict.fromkeys(lapse for step in steps for lapse in _failed(step, manifests))]


def _failed(step: Step, manifests: Mapping[str, Manifest]) -> Iterator[Lapse]:
    if step.stage not in _GATES or step.component is None:
        return
    thresholds = step.config.components[step.component].thresholds
    axes = cast("Mapping[str, Json]", manifests[step.ingests[step.component]].facts["axes"])
    facts = manifests[step.id].facts
    judged: Mapping[str, Mapping[str, Json]] = {step.bucket.on(axes).name: facts} if step.bucket else {}
    if step.stage == "context":
        judged = {bucket: {PARTS: {bucket: part}} for bucket, part in cast("Mapping[str, Json]", facts[PARTS]).items()}
    for bucket, found in judged.items():
        if miss := check(step.stage, step.name, found, thresholds):
            for target in step.targets or (None,):
                name = "/".join((step.component, bucket, *((target.soc,) if target else ())))
                yield Lapse(name, _GATES[step.stage], miss.error.what)


def skipped(components: Mapping[str, Mapping[str, Json]]) -> list[Lapse]:
    """The gates that these components, as in release.json, never came to: nothing was measured."""
    return [*dict.fromkeys(_skipped(components))]


def _skipped(components: Mapping[str, Mapping[str, Json]]) -> Iterator[Lapse]:
    for component, listed in components.items():
        for bucket in cast("list[Mapping[str, Mapping[str, Json]]]", listed["buckets"]):
            name = f"{component}/{_bucket_name(bucket)}"
            if why := _unmeasured(bucket["verification"]["cpu"]):
                yield Lapse(name, "cpu", why, measured=False)
            for target, context in cast("Mapping[str, Mapping[str, Json]]", bucket["contexts"]).items():
                if why := _unmeasured(context["verification"]):
                    yield Lapse(f"{name}/{target}", "emulator", why, measured=False)


def _unmeasured(facts: Json) -> str:
    """Why nothing is known; empty if something was measured."""
    if not isinstance(facts, dict):
        return "not measured: the config leaves it out"
    return "" if facts["samples"] else "not measured: no sample fits into the bucket"


def artifacts_of(components: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """The names of all contexts of these components."""
    return [
        f"{component}/{_bucket_name(bucket)}/{target}"
        for component, listed in components.items()
        for bucket in cast("list[Mapping[str, Mapping[str, Json]]]", listed["buckets"])
        for target in bucket["contexts"]
    ]


def may_ship(lapses: Sequence[Lapse], allowed: Sequence[str], model: str, where: str) -> None:
    """Refuse a release with lapses that the config does not name.

    `allowed` has names as `encoder`, `encoder/32` or `encoder/32/sm8650`; each stands for all that begin with it.

    Raises:
        VerificationError: listing the artifacts that are not named.
        ConfigError: a name stands for nothing that there is.
    """
    rest = [lapse for lapse in lapses if not any(covers(name, lapse.artifact) for name in allowed)]
    if not rest:
        return
    names = [*dict.fromkeys(lapse.artifact for lapse in rest)]
    listed = "".join(f"\n    | {lapse.artifact}, {lapse.gate}: {lapse.why}" for lapse in rest[:12])
    more = f"\n    | and {len(rest) - 12} more" if len(rest) > 12 else ""
    raise VerificationError(
        f"{model} is not released: of {len(names)} artifacts it is not known that they are right, or known that not",
        where=where,
        why=f"gates that were failed or skipped:{listed}{more}",
        remedy="mend what failed, or have it measured (verification); to ship it as it is, name it:"
        f" release: {{unverified: [{', '.join(names[:12])}]}}, and release.json will say so",
    )


def _bucket_name(bucket: Mapping[str, Mapping[str, Json]]) -> str:
    return Bucket(cast("Mapping[str, int]", bucket["axes"])).name


def check_names(allowed: Sequence[str], artifacts: Sequence[str], where: str) -> None:
    """Raise ConfigError for a name that stands for none of the artifacts."""
    for name in allowed:
        if not any(covers(name, artifact) for artifact in artifacts):
            raise ConfigError(
                f"release.unverified names nothing that is built: '{name}'{did_you_mean(name, artifacts)}",
                where=where,
                remedy="write <component>, <component>/<bucket> or <component>/<bucket>/<target>",
            )


def covers(name: str, artifact: str) -> bool:
    """Whether `name` stands for an artifact."""
    return artifact == name or artifact.startswith(f"{name}/")


def is_gated(step: Step, allowed: Sequence[str]) -> bool:
    """Whether a step may fail its gate and be packaged: the config names something of its component."""
    return step.stage in _GATES and step.component in {name.partition("/")[0] for name in allowed}
