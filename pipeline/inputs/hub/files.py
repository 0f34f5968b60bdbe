"""Gets files of hub repos at a commit from the HF cache, and downloads those that it lacks.

The cache is huggingface_hub's own and keeps its form: blobs named by their hash, and links to them in a folder for
each commit (https://huggingface.co/docs/huggingface_hub/guides/manage-cache). The client makes requests, tokens and
links. We transfer blobs ourselves, for two reasons: huggingface_hub 2.4 deletes a partial download when its process
ends, and does not check the hash of what it received over HTTP. Here a partial download survives, the next one resumes
it, and a blob enters the cache only when its content has the hash of its name.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, not marked as re-exported
    WeakFileLock,
    build_hf_headers,
    hf_raise_for_status,
)

from pipeline.errors import SourceError
from pipeline.frozen import dataclass
from pipeline.inputs.hub.answers import within
from pipeline.inputs.hub.failures import (
    WAITS_S,
    Asked,
    explain,
    explained,
    is_transient,
    no_room,
    not_cached,
    retrying,
    wait_before_try,
)
from pipeline.inputs.hub.repo_names import repo_id, repo_type

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# After a connection that brought this much, the count of failed tries starts again.
_PROGRESS_BYTES = 1 << 20
_LINES_APART_S = 1.0
# A connection that brings less, about a kilobyte a second, is given up like one that brings nothing.
_LEAST_BYTES = 1 << 16
_LEAST_S = 60.0


@dataclass(frozen=True)
class _Blob:
    """What the hub announces of a file: its size, and its hash, which is its name in the cache."""

    etag: str
    bytes: int


def fetch_file(repo: str, commit: str, name: str, named_by: str = "") -> Path:
    """The path of one file in the HF cache, with its hash verified; downloads it if it is missing.

    `named_by` is the file that asks for this one, for messages. Progress is printed as plain lines.

    Raises:
        SourceError: no such repo, commit or file; no access; no connection; no room; or the content is not what the
            hub says it is.
    """
    asked = Asked(repo, commit, name, named_by)
    with explained(asked):
        cached = _cached(asked)
        if cached:
            return cached
        if constants.HF_HUB_OFFLINE:
            raise not_cached(asked)
        blob = retrying(lambda: within(lambda: _announced(asked)), name)
        _download(asked, blob)
        path = Path(hf_hub_download(repo_id(repo), name, revision=commit, repo_type=repo_type(repo)))
        if _recorded_hash(path) not in (None, blob.etag):
            raise _changed(asked, f"the hub announced {blob.etag}, then {_recorded_hash(path)}")
        return path


def has_hash(path: Path, etag: str) -> bool:
    """Whether a file's content has the hash that the hub uses as its ETag.

    A SHA-256 for files in LFS (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md), else the SHA-1 that git
    gives a blob (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects).
    """
    with path.open("rb") as stream:
        if len(etag) == 64:
            return hashlib.file_digest(stream, "sha256").hexdigest() == etag
        head = b"blob %d\0" % path.stat().st_size
        return hashlib.file_digest(stream, lambda: hashlib.sha1(head, usedforsecurity=False)).hexdigest() == etag


def _cached(asked: Asked) -> Path | None:
    """The file in the cache, None if it is missing; deletes a damaged one."""
    found = try_to_load_from_cache(
        repo_id(asked.repo), asked.name, revision=asked.revision, repo_type=repo_type(asked.repo)
    )
    if not isinstance(found, str):
        return None
    path = Path(found)
    etag = _recorded_hash(path)
    if etag is None:
        print(f"{asked.name}: cached, not verified: where links can't be made the HF cache keeps no hash", flush=True)
        return path
    if has_hash(path, etag):
        print(f"{asked.name}: cached, verified", flush=True)
        return path
    print(f"{asked.name}: the copy in the HF cache is damaged, its hash is not {etag}; it is deleted", flush=True)
    (path.parent / path.readlink()).unlink()
    path.unlink()
    return None


def _recorded_hash(path: Path) -> str | None:
    """The hash that the cache keeps for a file: the name of the blob its link points to.

    The link is followed one level only: the blob may itself be a link into the store that repos share, which has
    names of another kind. Without links (Windows, often) there are copies, and no record.
    """
    name = path.readlink().name if path.is_symlink() else ""
    return name if _HASH.fullmatch(name) else None


def _announced(asked: Asked) -> _Blob:
    found = get_hf_file_metadata(_url(asked))
    if found.commit_hash is None or found.etag is None or found.size is None or not _HASH.fullmatch(found.etag):
        raise ValueError(f"it gives no commit, size and hash for {asked.name}")
    if found.commit_hash != asked.revision:
        raise _changed(asked, f"the hub answered with commit {found.commit_hash}")
    return _Blob(found.etag, found.size)


def _url(asked: Asked) -> str:
    return hf_hub_url(repo_id(asked.repo), asked.name, revision=asked.revision, repo_type=repo_type(asked.repo))


def _download(asked: Asked, blob: _Blob) -> None:
    folder = repo_folder_name(repo_id=repo_id(asked.repo), repo_type=repo_type(asked.repo))
    cache = Path(constants.HF_HUB_CACHE)
    path = cache / folder / "blobs" / blob.etag
    # The client uses these names, too: its tools recognize a partial blob, and its downloads wait for ours.
    partial = path.with_name(f"{blob.etag}.incomplete")
    lock = cache / ".locks" / folder / f"{blob.etag}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if path.exists():
            if has_hash(path, blob.etag):
                return
            path.unlink()
        for resumed in (partial.exists(), False):
            _receive(asked, blob, partial)
            if has_hash(partial, blob.etag):
                partial.replace(path)
                return
            partial.unlink()
            if not resumed:  # only the rest of an earlier process may be at fault, so a whole download is not repeated
                break
    raise SourceError(
        f"what the hub sent as {asked} is not that file",
        where=asked.place,
        why=f"its hash is not {blob.etag}, which the hub announced",
        remedy="run the same command again; if it stays so, a proxy or mirror (HF_ENDPOINT) alters files",
    )


def _receive(asked: Asked, blob: _Blob, partial: Path) -> None:
    """Append to `partial` over as many connections as it takes, until it has all bytes."""
    show = _progress(asked.name, blob.bytes)
    with partial.open("ab") as stream:
        if stream.tell() > blob.bytes:
            _empty(stream)
        free = shutil.disk_usage(partial.parent).free
        missing = blob.bytes - stream.tell()
        if missing > free:
            raise no_room(asked, f"{missing / 1e6:.1f} MB are missing, {free / 1e6:.1f} MB are free")
        tries, mark = 0, stream.tell()
        show(stream.tell())
        while stream.tell() != blob.bytes:
            try:
                _append(asked, blob, stream, show)
            except (httpx2.HTTPError, OSError) as error:
                if stream.tell() - mark >= _PROGRESS_BYTES:
                    tries, mark = 0, stream.tell()
                if not is_transient(error) or tries == len(WAITS_S):
                    raise explain(error, asked) from None
                wait_before_try(tries, error, asked.name)
                tries += 1


def _append(asked: Asked, blob: _Blob, stream: BinaryIO, show: Callable[[int], None]) -> None:
    """Request the missing bytes over one connection and append them."""
    # Each request goes to the repo, as the address that it redirects to is signed and expires. The HTTP client drops
    # the token when the redirect leaves the hub.
    url = _url(asked)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={stream.tell()}-"}
    request = get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with ExitStack() as opened:
        response = within(request.__enter__)
        opened.push(request.__exit__)
        hf_raise_for_status(response)
        if response.status_code != httpx2.codes.PARTIAL_CONTENT:
            _empty(stream)
        had, since = stream.tell(), time.monotonic()
        for block in response.iter_bytes():
            if stream.tell() + len(block) > blob.bytes:
                raise _changed(asked, f"the hub announced {blob.bytes} bytes and sends more")
            stream.write(block)
            show(stream.tell())
            if time.monotonic() - since >= _LEAST_S:
                if stream.tell() - had < _LEAST_BYTES:
                    raise httpx2.ReadTimeout(f"{stream.tell() - had} bytes in {_LEAST_S:g} s")
                had, since = stream.tell(), time.monotonic()
    if stream.tell() < blob.bytes:
        raise httpx2.RemoteProtocolError(f"the connection ended after {stream.tell()} of {blob.bytes} bytes")


def _empty(stream: BinaryIO) -> None:
    stream.seek(0)
    stream.truncate()


def _progress(name: str, size: int) -> Callable[[int], None]:
    """A function that prints progress at most once a percent and once a second, and at the end."""
    shown_percent, shown_at = -1, -_LINES_APART_S

    def show(have: int) -> None:
        nonlocal shown_percent, shown_at
        percent = 100 * have // size if size else 100
        now = time.monotonic()
        if percent != shown_percent and (have == size or now - shown_at >= _LINES_APART_S):
            shown_percent, shown_at = percent, now
            print(f"{name}: {percent} %, {have / 1e6:.1f} of {size / 1e6:.1f} MB", flush=True)

    return show


def _changed(asked: Asked, why: str) -> SourceError:
    return SourceError(
        f"{asked} is not what commit {asked.revision} holds",
        where=asked.place,
        why=why,
        remedy="a commit never changes: check HF_ENDPOINT, or wait until the mirror is consistent",
    )
