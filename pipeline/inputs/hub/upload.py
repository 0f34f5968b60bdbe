"""Commits to hub repos, by the hub's own client: small files as they are, large ones by Xet, or else by LFS.

The client sends large files by Xet wherever its package for that is installed, and fails at a hub that has no Xet, such
as a mirror. So the hub is asked first. `HF_HUB_DISABLE_XET=1` is for the client, and means LFS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, not marked as re-exported
    build_hf_headers,
    disable_progress_bars,
    get_session,
    hf_raise_for_status,
)

from pipeline.errors import SourceError
from pipeline.hub.failures import endpoint, is_transient, redacted, retrying
from pipeline.hub.revisions import resolve_commit

_REFUSED = frozenset({401, 403})


def head_of(repo: str, branch: str) -> str:
    """The commit that a branch is at now; raises SourceError."""
    return resolve_commit(repo, branch)


def read_file(repo: str, commit: str, name: str) -> bytes | None:
    """A small file of a commit, None if it has none of this name; nothing is kept in the HF cache.

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
    """Bytes and SHA-256 of a file of a commit, "" where the hub says none; None if the commit has no such file.

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
    """Commit files to a branch that is at `parent`; the new commit, None if the branch is elsewhere by now.

    Raises:
        SourceError: the hub refuses it, or can't be reached.
    """
    disable_progress_bars()

    def commit() -> str:
        with ExitStack() as opened:
            by_xet = _takes_xet(repo, branch)
            # Anew for each try: the client marks what it has sent. What is on the hub already is not sent again.
            operations = [
                # The client sends by LFS what is an open file.
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
    """Whether the hub takes large files by Xet: it gives a token for that.

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
    """Turn what the client raises into a SourceError; not chained, as the client's texts can hold signed URLs."""
    where = f"{endpoint()}/{repo}"
    if not re.fullmatch("[!-~]*", get_token() or ""):
        raise SourceError("HF_TOKEN holds characters that no token has", where=where, remedy="copy it again")
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
        raise SourceError(f"the hub does not take {name}", where=where, why=_reason(cause), remedy=remedy) from None


def _reason(error: Exception) -> str:
    """One line on an error: what the hub answered, not the client's text, which holds the URL, maybe signed."""
    if isinstance(error, HfHubHTTPError):
        message = f": {error.server_message}" if error.server_message else ""
        return " ".join(redacted(f"HTTP {error.response.status_code}{message}").split())
    return " ".join(redacted(f"{type(error).__name__}: {error}").split())
