"""Finds artifacts that failed a gate or skipped it, and decides whether a release may hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.build.gates import check
from pipeline.contracts import context
from pipeline.errors import ConfigError, VerificationError
from pipeline.frozen import dataclass
from pipeline.model import Json, Manifest
from pipeline.plain_text import did_you_mean
from pipeline.plan.own_buckets import OwnBuckets
from pipeline.plan.steps import Step
from pipeline.release.archives.index import buckets_of

_GATES = {
    "context": "context",
    "verify": "cpu",
    "reading": "reading",
    "emulate": "emulator",
    "bundle": "engines",
    "converse": "engines",
}
"""The name of each gate, by the stage whose output it judges."""


@dataclass(frozen=True)
class Lapse:
    """One gate that an artifact did not pass. `artifact` is `<component>/<bucket>`, maybe with `/<target>`."""

    artifact: str
    gate: str
    why: str
    measured: bool = True
    """False if the gate was skipped because nothing was measured."""

    def json(self) -> dict[str, Json]:
        """The lapse as release.json lists it."""
        return {"artifact": self.artifact, "gate": self.gate, "why": self.why}


def failed(steps: Sequence[Step], manifests: Mapping[str, Manifest]) -> list[Lapse]:
    """The gates that outputs of these steps fail."""
    return [*dict.fromkeys(lapse for step in steps for lapse in _failed(step, manifests))]


def _failed(step: Step, manifests: Mapping[str, Manifest]) -> Iterator[Lapse]:
    if step.stage not in _GATES or step.component is None:
        return
    thresholds = step.config.components[step.component].thresholds
    manifest = manifests[step.id]
    judged: dict[str, Manifest] = {}
    if step.stage == "context":
        made = manifest.read(context.Facts.from_json)
        parts = {bucket: replace(made, parts={bucket: part}) for bucket, part in made.parts.items()}
        judged = {bucket: replace(manifest, facts=part.to_json()) for bucket, part in parts.items()}
    elif step.bucket is None:
        judged = dict.fromkeys((bucket.name for bucket in step.config.buckets), manifest)
    elif step.bucket:
        own = OwnBuckets.of_step(step, manifests)
        judged = {own.own(step.bucket).name: manifest} if own else {}
    for bucket, found in judged.items():
        if miss := check(step.name, found, thresholds):
            for target in step.targets or (None,):
                name = "/".join((step.component, bucket, *((target.soc,) if target else ())))
                yield Lapse(name, _GATES[step.stage], miss.error.what)


def skipped(components: Mapping[str, Mapping[str, Any]]) -> list[Lapse]:
    """The gates that nothing was measured for, in `components` of release.json."""
    return [*dict.fromkeys(_skipped(components))]


def _skipped(components: Mapping[str, Mapping[str, Any]]) -> Iterator[Lapse]:
    for name, bucket in buckets_of(components):
        if why := _unmeasured(bucket["verification"]["cpu"]):
            yield Lapse(name, "cpu", why, measured=False)
        for target, made in bucket["contexts"].items():
            if why := _unmeasured(made["verification"]):
                yield Lapse(f"{name}/{target}", "emulator", why, measured=False)


def _unmeasured(facts: Mapping[str, Json] | None) -> str:
    """Why nothing was measured; "" if something was."""
    if facts is None:
        return "not measured: the config leaves it out"
    return "" if facts["samples"] else "not measured: no sample fits into the bucket"


def artifacts_of(components: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of all contexts in `components` of release.json: `<component>/<bucket>/<target>`."""
    return [f"{name}/{target}" for name, bucket in buckets_of(components) for target in bucket["contexts"]]


def may_ship(lapses: Sequence[Lapse], allowed: Sequence[str], model: str, where: str) -> None:
    """Refuse a release with lapses that the config does not allow.

    `allowed` has names such as `encoder`, `encoder/32` or `encoder/32/sm8650`; each covers all artifacts below it.

    Raises:
        VerificationError: a lapse is not allowed; the message lists the artifacts.
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


def check_names(allowed: Sequence[str], artifacts: Sequence[str], where: str) -> None:
    """Raise ConfigError for a name that covers none of the artifacts."""
    for name in allowed:
        if not any(covers(name, artifact) for artifact in artifacts):
            raise ConfigError(
                f"release.unverified names nothing that is built: '{name}'{did_you_mean(name, artifacts)}",
                where=where,
                remedy="write <component>, <component>/<bucket> or <component>/<bucket>/<target>",
            )


def covers(name: str, artifact: str) -> bool:
    """Whether `name` is that of the artifact, or of its component or bucket."""
    return artifact == name or artifact.startswith(f"{name}/")


def is_gated(step: Step, allowed: Sequence[str]) -> bool:
    """Whether a step may fail its gate and still be packaged: the config allows artifacts of its component."""
    return step.stage in _GATES and step.component in {name.partition("/")[0] for name in allowed}
