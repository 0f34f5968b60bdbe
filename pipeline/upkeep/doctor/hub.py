"""The Hugging Face hub: in reach or not, what the token is worth, and whether the models are there or cached."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.doctor.finding import SOURCE, Finding, error, ok, unchecked, warning

_SKEW_S = 300.0
LIMIT_S = 10.0
"""Of one request; nothing is tried again."""


@dataclass(frozen=True)
class Access:
    """One model's repo: whether its files are all cached, and what the hub says of it (empty: it shows it)."""

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
    models: tuple[Access, ...] = field(default_factory=tuple)


def check(facts: HubFacts) -> Iterator[Finding]:
    """All findings about the hub."""
    if not facts.models:
        yield unchecked("hub.reach", facts.endpoint, why="no config takes a model from a hub")
        return
    yield _reach(facts)
    if facts.reached:
        yield _token(facts)
        if abs(facts.clock_skew_s) > _SKEW_S:
            what = f"the clock differs from the hub's by {facts.clock_skew_s:.0f} s"
            why = "signed addresses and certificates are refused by a wrong clock"
            yield warning("hub.clock", what, why=why, remedy="set the clock")
    for access in facts.models:
        yield _model(facts, access)


def gather(models: Sequence[Access], environ: Mapping[str, str] = os.environ) -> HubFacts:
    """The facts, asked of the hub unless no model is from there or it is to be left alone (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    from pipeline.hub.failures import endpoint

    proxies = tuple(sorted(name for name in environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")))
    if not models or constants.HF_HUB_OFFLINE:
        return HubFacts(endpoint(), bool(constants.HF_HUB_OFFLINE), proxies=proxies, models=tuple(models))
    from pipeline.hub import reach

    answer = reach.ask(LIMIT_S)
    if answer.problem:
        told = (answer.problem, answer.remedy)
        return HubFacts(endpoint(), False, False, *told, proxies=proxies, models=tuple(models))
    asked = []
    for access in models:
        told = ("", "") if access.cached else reach.repo(access.repo, access.revision, LIMIT_S)
        asked.append(
            Access(access.model, access.repo, access.revision, access.cached, access.on_request, told[0], told[1])
        )
    skew = _skew(answer.date)
    return HubFacts(endpoint(), False, True, "", "", answer.token, skew, proxies, tuple(asked))


def _reach(facts: HubFacts) -> Finding:
    name = "hub.reach"
    if facts.offline:
        return ok(name, f"{facts.endpoint} is left alone: HF_HUB_OFFLINE is set")
    if facts.reached:
        return ok(name, f"{facts.endpoint} answers")
    what = f"{facts.endpoint} can't be reached"
    through = f" (through {', '.join(facts.proxies)})" if facts.proxies else ""
    if _missing(facts, on_request=False):
        return error(name, what, SOURCE, why=facts.problem + through, remedy=facts.remedy)
    return warning(name, what, why=facts.problem + through, remedy=facts.remedy)


def _token(facts: HubFacts) -> Finding:
    name = "hub.token"
    if facts.token == "refused":
        remedy = "set HF_TOKEN to a valid token, or unset it if the repos are public"
        return error(name, "the hub does not accept the token", SOURCE, remedy=remedy)
    if facts.token == "valid":
        return ok(name, "the hub accepts the token")
    if facts.token:
        return unchecked(name, "whether the token is valid", why="the hub did not say")
    return ok(name, "there is no token: public repos only")


def _model(facts: HubFacts, access: Access) -> Finding:
    name = "hub.model"
    repo = f"{access.repo} at {access.revision}"
    if access.cached:
        return ok(name, f"{repo} is in the HF cache", access.model)
    if access.problem:
        told = {"why": "", "remedy": access.remedy}
        if access.on_request:
            return warning(name, access.problem, access.model, **told)
        return error(name, access.problem, SOURCE, access.model, **told)
    if facts.reached:
        return ok(name, f"{repo} can be had", access.model)
    why = "the build is offline, and it is not in the HF cache" if facts.offline else "the hub can't be reached"
    remedy = "unset HF_HUB_OFFLINE and build once with the hub in reach" if facts.offline else facts.remedy
    if access.on_request:
        return warning(name, f"{repo} can't be had now", access.model, why=why, remedy=remedy)
    return error(name, f"{repo} can't be had", SOURCE, access.model, why=why, remedy=remedy)


def _missing(facts: HubFacts, *, on_request: bool) -> bool:
    return any(not access.cached and access.on_request == on_request for access in facts.models)


def _skew(date: str) -> float:
    try:
        return time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0
