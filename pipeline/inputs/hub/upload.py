"""Commits files to hub repos with the hub's own client, which sends large files by Xet or by LFS.

The client uses Xet wherever its package for that is installed, and fails at a hub without Xet, such as a mirror. So we
ask the hub first. The client obeys `HF_HUB_DISABLE_XET=1` and uses LFS then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, not marked as re-exported
    build_hf_headers,
    disable_progress_bars,
    get_session,
    hf_raise_for_status,
)

from pipeline.errors import SourceError
from pipeline.inputs.hub.failures import Asked, check_token, endpoint, is_transient, reason, retrying
from pipeline.inputs.hub.revisions import resolve_commit

_REFUSED = frozenset({401, 403})


def head_of(repo: str, branch: str) -> str:
    """The newest commit of a branch. Raises SourceError."""
    return resolve_commit(repo, branch)


def read_file(repo: str, commit: str, name: str) -> bytes | None:
    """The bytes of a small file of a commit, None if it has no such file. Does not use the HF cache.

    Raises:
        SourceError: the hub refuses it, or can't be reached.
    """

    def read() -> bytes:
        url = hf_hub_url(repo, name, revision=commit)
        response = get_session().get(url, headers=build_hf_headers())
        hf_raise_for_status(response)
        return bytes(response.content)

    with _explained(repo, name):
        try:
            return retrying(read, name)
        except RemoteEntryNotFoundError:
            return None


def described(repo: str, commit: str, name: str) -> tuple[int, str] | None:
    """Size and SHA-256 of a file of a commit, "" for an unknown SHA-256; None if the commit has no such file.

    Raises:
        SourceError: the hub refuses it, or can't be reached.
    """
    with _explained(repo, name):
        try:
            found = retrying(lambda: get_hf_file_metadata(hf_hub_url(repo, name, revision=commit)), name)
        except RemoteEntryNotFoundError:
            return None
    etag = found.etag or ""
    return found.size or 0, etag if re.fullmatch("[0-9a-f]{64}", etag) else ""


def commit_files(repo: str, branch: str, parent: str, files: Mapping[str, Path | bytes], message: str) -> str | None:
    """Commit files to a branch whose newest commit is `parent`. Returns the new commit; None if the branch moved on.

    Raises:
        SourceError: the hub refuses it, or can't be reached.
    """
    disable_progress_bars()

    def commit() -> str:
        with ExitStack() as opened:
            by_xet = _takes_xet(repo, branch)
            # New objects for each try, as the client marks what it has sent. It does not resend what the hub has.
            operations = [
                # The client sends an open file by LFS.
                CommitOperationAdd(
                    name, given if by_xet or isinstance(given, bytes) else opened.enter_context(given.open("rb"))
                )
                for name, given in files.items()
            ]
            made = HfApi().create_commit(
                repo, operations, commit_message=message, revision=branch, parent_commit=parent
            )
            return str(made.oid)

    with _explained(repo, next(iter(files))):
        try:
            return retrying(commit, repo)
        except HfHubHTTPError as error:
            if error.response.status_code == httpx2.codes.PRECONDITION_FAILED:
                return None
            raise


def _takes_xet(repo: str, branch: str) -> bool:
    """Whether the hub takes large files by Xet, as it does if it gives a token for that.

    https://huggingface.co/docs/xet/auth
    """
    url = f"{endpoint()}/api/models/{repo}/xet-write-token/{quote(branch, safe='')}"
    response = get_session().get(url, headers=build_hf_headers())
    if response.status_code == httpx2.codes.NOT_FOUND:
        return False
    hf_raise_for_status(response)
    return True


@contextmanager
def _explained(repo: str, name: str) -> Iterator[None]:
    """Turn what the client raises into a SourceError, not chained: texts of the client can hold signed URLs."""
    check_token()
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception) else error
        status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0
        if status in _REFUSED or status == httpx2.codes.NOT_FOUND:
            remedy = "see that the repo is there, and set HF_TOKEN to a token that may write to it"
        elif is_transient(cause):
            remedy = "run the same command again later: what was sent is not sent again"
        else:
            remedy = "check the network, the proxy and HF_ENDPOINT, then run the same command again"
        what, where = f"the hub does not take {name}", Asked(repo, "").page
        raise SourceError(what, where=where, why=reason(cause), remedy=remedy) from None
