"""Asks the hub once, without retries, whether it is there and accepts our token; for `doit doctor`."""

from __future__ import annotations

import httpx2
from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, not marked as re-exported

from pipeline.errors import SourceError
from pipeline.frozen import dataclass
from pipeline.inputs.hub.answers import within
from pipeline.inputs.hub.failures import Asked, endpoint, explain, explained, token
from pipeline.inputs.hub.revisions import look_up


@dataclass(frozen=True)
class HubStatus:
    """The hub's answer to who we are. If `problem` is not "", no hub answered.

    `date` is the time of its clock in the form of HTTP. `token` is "" if we have none, else "valid", "refused" or
    "unknown".
    """

    date: str = ""
    token: str = ""
    problem: str = ""
    remedy: str = ""


def ask(limit_s: float) -> HubStatus:
    """Ask the hub who we are (https://huggingface.co/docs/hub/api: GET /api/whoami-v2)."""
    url = f"{constants.ENDPOINT}/api/whoami-v2"
    try:
        with explained(Asked("", "")):
            response = within(lambda: get_session().get(url, headers=build_hf_headers(), timeout=limit_s), limit_s)
    except SourceError as error:
        return HubStatus(problem=error.why or error.what, remedy=error.remedy)
    if not response.headers.get("Content-Type", "").startswith("application/json"):
        told = explain(ValueError(f"HTTP {response.status_code} and no JSON"), Asked(endpoint(), ""))
        return HubStatus(problem=told.why, remedy=told.remedy)
    state = ""
    if token():
        states = {httpx2.codes.OK: "valid", httpx2.codes.UNAUTHORIZED: "refused"}
        state = states.get(httpx2.codes(response.status_code), "unknown")
    return HubStatus(response.headers.get("Date", ""), state)


def repo(name: str, revision: str, limit_s: float) -> tuple[str, str]:
    """What is wrong with a repo at a revision, and the remedy; both "" if the hub shows it to us."""
    try:
        with explained(Asked(name, revision)):
            look_up(name, revision, limit_s)
    except SourceError as error:
        return error.what, error.remedy
    return "", ""
