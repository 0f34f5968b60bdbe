"""The commit that a branch or tag of a hub repo stands for."""

from __future__ import annotations

from huggingface_hub import constants, model_info, resolve_revision
from huggingface_hub.errors import RevisionResolutionError

from pipeline.errors import SourceError
from pipeline.hub.failures import Asked, explained, not_cached, retrying


def resolve_commit(repo: str, ref: str) -> str:
    """The commit, 40 hex digits, that `ref` is at now; offline, the one it was at when the HF cache last saw it.

    Raises:
        SourceError: no such repo or ref, no access, no connection, or offline with nothing cached.
    """
    asked = Asked(repo, ref)
    if constants.HF_HUB_OFFLINE:
        try:
            return resolve_revision(repo, revision=ref, local_files_only=True).resolved
        except RevisionResolutionError:
            raise not_cached(asked) from None
    timeout_s = constants.HF_HUB_ETAG_TIMEOUT
    with explained(asked):
        commit = retrying(lambda: model_info(repo, revision=ref, timeout=timeout_s).sha, repo)
    if not commit:
        raise SourceError(
            f"the hub does not say which commit '{ref}' of {repo} is at",
            where=asked.place,
            remedy="give the commit itself, 40 hex digits, as source.revision in the config",
        )
    return commit
