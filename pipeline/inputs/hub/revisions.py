"""Looks up the commit of a branch or tag of a hub repo."""

from __future__ import annotations

import re
from urllib.parse import quote

from huggingface_hub import constants, resolve_revision
from huggingface_hub.errors import RevisionResolutionError

from pipeline.errors import SourceError
from pipeline.inputs.hub.answers import get_json
from pipeline.inputs.hub.failures import Asked, explained, not_cached, retrying
from pipeline.inputs.hub.repo_names import api_path, repo_id, repo_type

_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve_commit(repo: str, ref: str) -> str:
    """The commit of `ref` now, 40 hex digits; offline, its commit when the HF cache last saw it.

    Raises:
        SourceError: no such repo or ref, no access, no connection, or offline with nothing cached.
    """
    asked = Asked(repo, ref)
    if constants.HF_HUB_OFFLINE:
        try:
            commit: object = resolve_revision(
                repo_id(repo), repo_type=repo_type(repo), revision=ref, local_files_only=True
            ).resolved
        except RevisionResolutionError:
            raise not_cached(asked) from None
    else:
        with explained(asked):
            commit = retrying(lambda: look_up(repo, ref), repo)
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise SourceError(
            f"the hub does not say which commit '{ref}' of {repo} is at",
            where=asked.place,
            remedy="give the commit itself, 40 hex digits, as source.revision in the config",
        )
    return commit


def look_up(repo: str, ref: str, limit_s: float | None = None) -> object:
    """The commit that the hub answers for a branch, tag or commit, without retries.

    Raises:
        httpx2.HTTPError: the hub can't be reached, or refuses.
        ValueError: its answer is no JSON object.
    """
    url = f"{constants.ENDPOINT}/api/{api_path(repo)}/revision/{quote(ref, safe='')}"
    about = get_json(url, constants.HF_HUB_ETAG_TIMEOUT, limit_s)
    if not isinstance(about, dict):
        raise ValueError("its answer is no JSON object")
    return about.get("sha")
