"""Says why no worker of a cluster makes a step: none of those that are there may, or all of them were refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pipeline.build.cluster import REFUSALS_REMEDY
from pipeline.errors import WaitingError

_NAMED = 4
_START = "start a worker on such a host (docs/cluster.md)"


def nobody(
    step: str, url: str, rules: Sequence[Sequence[str]], there: Collection[str], refused: Mapping[str, str]
) -> WaitingError:
    """The error for a step that no worker makes. Of each of `rules` a host needs one name.

    `there` are the workers that are known to the scheduler, `refused` those that are not as the build is, and why.
    """
    needed = [" or ".join(rule) for rule in rules]
    why = [f"it needs {' and '.join(needed)}"] if needed else []
    why += [f"{name} was refused: {told}" for name, told in [*refused.items()][:_NAMED]]
    if len(refused) > _NAMED:
        why.append(f"so were {len(refused) - _NAMED} more")
    all_refused = bool(refused) and {*there} <= {*refused}
    what, remedy, hosts = f"no worker of the cluster may run {step}", _START, tuple(rules[0]) if rules else ()
    if all_refused:
        whose = "the only one that is there was" if len(refused) == 1 else f"all {len(refused)} that are there were"
        what = f"{what}: {whose} refused"
        remedy, hosts = f"{REFUSALS_REMEDY}; then run the same command again", ()
    elif refused:
        remedy = f"{REFUSALS_REMEDY}; or {_START}"
    elif not rules:
        why, remedy = ["no worker is there"], "start one (docs/cluster.md)"
    error = WaitingError(what, where=url, why="; ".join(why), remedy=remedy, hosts=hosts, step=step)
    error.of_cluster = True
    return error
