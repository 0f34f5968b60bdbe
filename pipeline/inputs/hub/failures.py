"""Handles errors of the hub: retries those that may pass, and explains the others to the user.

The hub says what it refuses in the header `X-Error-Code`; huggingface_hub turns that into its exception classes
(https://huggingface.co/docs/huggingface_hub/package_reference/utilities#http-errors).
"""

from __future__ import annotations

import difflib
import email.utils
import errno
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pipeline.errors import SourceError
from pipeline.frozen import dataclass
from pipeline.inputs.hub.answers import within
from pipeline.inputs.hub.repo_names import repo_id, repo_type
from pipeline.plain_text import did_you_mean

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between tries, in seconds; one try more than there are pauses."""

LONGEST_WAIT_S = 60.0
"""The longest pause that a `Retry-After` of the hub can ask for."""

_TRANSIENT = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError)
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
_LISTED = 20_000
_LISTING_S = 20.0
_LONGEST_NAME = 300
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Asked:
    """A request for a repo at a commit, branch or tag, or for its file `name`, which the file `named_by` may need."""

    repo: str
    revision: str
    name: str = ""
    named_by: str = ""

    @property
    def place(self) -> str:
        """The `where` of an error about this request."""
        named = f", named by {self.named_by}" if self.named_by else ""
        return f"{self.page} at {self.revision}{named}"

    @property
    def page(self) -> str:
        """The repo's page on the hub."""
        return f"{endpoint()}/{self.repo}"

    def __str__(self) -> str:
        return f"{self.name} of {self.repo}" if self.name else self.repo


def endpoint() -> str:
    """The URL of the hub in use (`HF_ENDPOINT`), without a user name or password."""
    return re.sub("//[^/]*@", "//", constants.ENDPOINT)


def redacted(text: str) -> str:
    """The text without our token, which a library or a server may have put there."""
    for secret in (os.environ.get("HF_TOKEN", "").strip(), token()):
        text = text.replace(secret, "***") if secret else text
    return text


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _TRANSIENT_STATUS
    return isinstance(error, _TRANSIENT) and not _is_about_tls(error)


def retrying(call: Callable[[], _Answer], what: str) -> _Answer:
    """What `call` returns, after more tries if it fails with a transient error; `what` names it in printed lines."""
    for tries in range(len(WAITS_S)):
        try:
            return call()
        except (httpx2.HTTPError, OSError) as error:
            if not is_transient(error):
                raise
            wait_before_try(tries, error, what)
    return call()


def wait_before_try(tries: int, error: Exception, what: str) -> None:
    """Print a line and pause after the failure number `tries`, counted from 0."""
    wait = WAITS_S[tries]
    if isinstance(error, HfHubHTTPError):
        wait = min(max(wait, _asked_wait_s(error.response.headers.get("Retry-After", ""))), LONGEST_WAIT_S)
    print(f"{what}: {reason(error)}; try {tries + 2} of {len(WAITS_S) + 1} in {wait:g} s", flush=True)
    time.sleep(wait)


@contextmanager
def explained(asked: Asked) -> Iterator[None]:
    """Turn what the client raises into a SourceError.

    The cause is not chained: texts of the client can hold signed URLs, and texts of its HTTP library the token.
    """
    check_token()
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise explain(error, asked) from None


def check_token() -> None:
    """Raise SourceError for a token that the HTTP library would refuse with a text that quotes it."""
    if not re.fullmatch("[!-~]*", token()):
        raise SourceError(
            "HF_TOKEN holds characters that no token has",
            where="the environment, or the token file in HF_HOME",
            remedy="copy the token again from the hub's settings, without spaces or quotes",
        )


def explain(error: Exception, asked: Asked) -> SourceError:
    """The error to show for what the client raised."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return not_cached(asked)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, asked)
    if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
        remedy = "check the network, the proxy and HF_ENDPOINT, then run the same command again: it resumes"
        if _is_about_tls(error):
            remedy = (
                "check HF_ENDPOINT and the clock; where a proxy has certificates of its own, name the file of its "
                "authority in SSL_CERT_FILE"
            )
        what = f"the hub can't be reached, so {asked} can't be had"
        return SourceError(what, where=asked.place, why=reason(error), remedy=remedy)
    if isinstance(error, OSError):
        return _disk(error, asked)
    if isinstance(error, HFValidationError):
        return SourceError(
            f"'{asked.repo}' is no name of a hub repo",
            where=asked.place,
            why=str(error),
            remedy="write source.hub as owner/name",
        )
    return SourceError(
        f"what answers there is no Hugging Face hub: {asked} can't be had",
        where=asked.place,
        why=redacted(f"{type(error).__name__}: {error}"),
        remedy="check HF_ENDPOINT, and that no proxy or login page answers in the hub's place",
    )


def not_cached(asked: Asked) -> SourceError:
    """The error of an offline build that would need something from the hub."""
    return SourceError(
        f"{asked} is not in the HF cache, and the build is offline",
        where=asked.place,
        why=f"HF_HUB_OFFLINE is set; the cache is {constants.HF_HUB_CACHE}",
        remedy="unset HF_HUB_OFFLINE and run once with the hub in reach, or point HF_HOME at a cache that has it",
    )


def no_room(asked: Asked, why: str) -> SourceError:
    """The error for a full disk."""
    return SourceError(
        f"there is no room for {asked}",
        where=constants.HF_HUB_CACHE,
        why=why,
        remedy="free some space, or set HF_HOME to a larger disk, then run the same command again: it resumes",
    )


def _disk(error: OSError, asked: Asked) -> SourceError:
    if error.errno in _NO_ROOM:
        return no_room(asked, error.strerror or str(error))
    return SourceError(
        f"{asked} can't be put into the HF cache",
        where=constants.HF_HUB_CACHE,
        why=redacted(f"{type(error).__name__}: {error.strerror or error}"),
        remedy="make that folder writable, or set HF_HOME to one that is",
    )


def _refused(error: HfHubHTTPError, asked: Asked) -> SourceError:
    """The error for a request that the hub refuses."""
    status, why = error.response.status_code, reason(error)
    has_token = "authorization" in error.response.request.headers
    if isinstance(error, GatedRepoError):
        what = f"{asked.repo} is gated and the hub refuses {asked.name or 'it'}"
        remedy = f"accept its licence at {asked.page}" + (
            " with the account that HF_TOKEN belongs to"
            if has_token
            else ", then set HF_TOKEN to a token of that account"
        )
    elif isinstance(error, RevisionNotFoundError):
        refs = _listed(lambda: _refs(asked.repo))
        what = f"{asked.repo} has no revision '{asked.revision}'{did_you_mean(asked.revision, refs)}"
        why = f"its branches and tags: {', '.join(refs)}" if refs else why
        remedy = f"take a commit, branch or tag that {asked.page}/commits/main lists"
    elif isinstance(error, RemoteEntryNotFoundError):
        names = _listed(lambda: _files(asked))
        near = difflib.get_close_matches(asked.name, names, n=5, cutoff=0.3)
        what = f"{asked.repo} has no file {asked.name}{did_you_mean(asked.name, names)}"
        why = f"nearest of its {len(names)} files: {', '.join(near)}" if near else why
        remedy = f"correct the name in the config; {asked.page}/tree/{asked.revision} lists what the repo has"
    elif isinstance(error, RepositoryNotFoundError):
        what = f"the hub has no repo {asked.repo}, or does not show it"
        private = "use an HF_TOKEN whose account can read it" if has_token else "set HF_TOKEN"
        remedy = f"correct source.hub in the config; if the repo is private, {private}"
    elif status == httpx2.codes.UNAUTHORIZED:
        what = f"the hub does not accept the token, so {asked} can't be had"
        remedy = "set HF_TOKEN to a valid token, or unset it if the repo is public"
    elif status in _TRANSIENT_STATUS:
        what = f"the hub is out of order: {asked} can't be had now"
        remedy = "run the same command again later: it resumes"
    else:
        what = f"the hub refuses {asked}"
        remedy = f"see what {asked.page} says; another revision or repo may be served"
    return SourceError(what, where=asked.place, why=why, remedy=remedy)


def token() -> str:
    """The token that the client sends, from the environment or its token file; empty if there is none."""
    try:
        return get_token() or ""
    except OSError:
        return ""


def _is_about_tls(error: BaseException | None) -> bool:
    """Whether a connection failed by its encryption: further tries then fail, too."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _asked_wait_s(retry_after: str) -> float:
    """The pause in seconds that the header asks for, as a number or a date (RFC 9110, 10.2.3); 0 if it has neither."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        return email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return 0.0


def reason(error: Exception) -> str:
    """One line on an error. Leaves out the client's own text of an HTTP error, which holds the URL, maybe signed."""
    if isinstance(error, HfHubHTTPError):
        text = f"HTTP {error.response.status_code}"
        text += f": {error.server_message}" if error.server_message else ""
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(redacted(text).split())


def _files(asked: Asked) -> Iterable[str]:
    from huggingface_hub import list_repo_files  # the client's API class takes as long to import as all the rest

    return list_repo_files(repo_id(asked.repo), revision=asked.revision, repo_type=repo_type(asked.repo))


def _refs(repo: str) -> Iterable[str]:
    from huggingface_hub import list_repo_refs

    refs = list_repo_refs(repo_id(repo), repo_type=repo_type(repo))
    return (ref.name for ref in (*refs.branches, *refs.tags))


def _listed(listing: Callable[[], Iterable[str]]) -> list[str]:
    """Names for a suggestion; none if the hub fails or is slow, as an error message must not wait for them."""
    try:
        names = within(lambda: list(islice(listing(), _LISTED)), _LISTING_S)
        return [name for name in names if name.isprintable() and len(name) < _LONGEST_NAME]
    except (httpx2.HTTPError, OSError, ValueError, KeyError):
        return []
