"""Checks the Hugging Face hub: whether it answers, accepts the token, and has the models that are not cached here."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.frozen import dataclass
from pipeline.upkeep.doctor.finding import SOURCE, Check, Finding

_REACH, _TOKEN, _CLOCK = Check("hub.reach", SOURCE), Check("hub.token", SOURCE), Check("hub.clock", SOURCE)
_MODEL = Check("hub.model", SOURCE)
_SKEW_S = 300.0
LIMIT_S = 10.0
"""The time limit of one request. No request is repeated."""


@dataclass(frozen=True)
class Access:
    """The repo of one model. `cached` says whether all its files are in the HF cache.

    `on_request` is that of the model's config. `problem` is why the hub does not show the repo, "" if it does.
    """

    model: str
    repo: str
    revision: str
    cached: bool
    on_request: bool
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class HubFacts:
    """The hub in use. `token` is "" for none, else "valid", "refused" or "unknown"; never the token itself."""

    endpoint: str
    offline: bool
    reached: bool = False
    problem: str = ""
    remedy: str = ""
    token: str = ""
    clock_skew_s: float = 0.0
    proxies: tuple[str, ...] = ()
    models: tuple[Access, ...] = ()


def check(facts: HubFacts) -> Iterator[Finding]:
    """All findings about the hub."""
    if not facts.models:
        yield _REACH.unchecked(facts.endpoint, "no config takes a model from a hub")
        return
    yield _reach(facts)
    if facts.reached:
        yield _token(facts)
        if abs(facts.clock_skew_s) > _SKEW_S:
            what = f"the clock differs from the hub's by {facts.clock_skew_s:.0f} s"
            yield _CLOCK.warning(
                what, "signed addresses and certificates are refused by a wrong clock", "set the clock"
            )
    for access in facts.models:
        yield _model(facts, access)


def gather(models: Sequence[Access]) -> HubFacts:
    """The facts about the hub, which is asked unless no model is from there or HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    from pipeline.inputs.hub.failures import endpoint

    proxies = tuple(sorted(name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")))
    facts = HubFacts(endpoint(), bool(constants.HF_HUB_OFFLINE), proxies=proxies, models=tuple(models))
    if not models or facts.offline:
        return facts
    from pipeline.inputs.hub import status

    answer = status.ask(LIMIT_S)
    if answer.problem:
        return replace(facts, problem=answer.problem, remedy=answer.remedy)
    asked = []
    for access in models:
        problem, remedy = ("", "") if access.cached else status.repo(access.repo, access.revision, LIMIT_S)
        asked.append(replace(access, problem=problem, remedy=remedy))
    return replace(facts, reached=True, token=answer.token, clock_skew_s=_skew(answer.date), models=tuple(asked))


def _reach(facts: HubFacts) -> Finding:
    if facts.offline:
        return _REACH.ok(f"{facts.endpoint} is left alone: HF_HUB_OFFLINE is set")
    if facts.reached:
        return _REACH.ok(f"{facts.endpoint} answers")
    through = f" (through {', '.join(facts.proxies)})" if facts.proxies else ""
    needed = any(not access.cached and not access.on_request for access in facts.models)
    say = _REACH.error if needed else _REACH.warning
    return say(f"{facts.endpoint} can't be reached", facts.problem + through, facts.remedy)


def _token(facts: HubFacts) -> Finding:
    if facts.token == "refused":
        remedy = "set HF_TOKEN to a valid token, or unset it if the repos are public"
        return _TOKEN.error("the hub does not accept the token", remedy=remedy)
    if facts.token == "valid":
        return _TOKEN.ok("the hub accepts the token")
    if facts.token:
        return _TOKEN.unchecked("whether the token is valid", "the hub did not say")
    return _TOKEN.ok("there is no token: public repos only")


def _model(facts: HubFacts, access: Access) -> Finding:
    check = _MODEL.about(access.model)
    repo = f"{access.repo} at {access.revision}"
    if access.cached:
        return check.ok(f"{repo} is in the HF cache")
    say = check.warning if access.on_request else check.error
    if access.problem:
        return say(access.problem, remedy=access.remedy)
    if facts.reached:
        return check.ok(f"{repo} can be had")
    what = f"{repo} can't be had" + (" now" if access.on_request else "")
    if facts.offline:
        remedy = "unset HF_HUB_OFFLINE and build once with the hub in reach"
        return say(what, "the build is offline, and it is not in the HF cache", remedy)
    return say(what, "the hub can't be reached", facts.remedy)


def _skew(date: str) -> float:
    try:
        return time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0
