"""Finds the files to fetch from a repository of data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import PurePosixPath

from huggingface_hub import constants

from pipeline.errors import SourceError
from pipeline.inputs.hub.answers import within
from pipeline.inputs.hub.failures import Asked, explained, not_cached, retrying
from pipeline.inputs.hub.repo_names import repo_id, repo_type
from pipeline.plain_text import did_you_mean

MAX_LISTED = 100_000
"""The most files of a folder that are looked at; the hub lists a thousand in an answer."""

MAX_FETCHED = 10_000
"""The most files that are fetched from a folder if the config gives no number of samples."""


def data_files(repo: str, commit: str, path: str, suffixes: Sequence[str], most: int | None) -> list[str]:
    """`path` if it is a file, else the first `most` files below it, sorted by path, whose names end in a suffix.

    Raises:
        SourceError: there is no such file or folder, it is empty or huge, or the build is offline.
    """
    asked = Asked(repo, commit, path)
    if constants.HF_HUB_OFFLINE:
        if PurePosixPath(path).suffix:
            return [path]
        raise not_cached(asked)
    with explained(asked):
        names = retrying(lambda: within(lambda: list(islice(_listed(repo, commit), MAX_LISTED + 1))), path)
    if path in names:
        return [path]
    below = sorted(name for name in names if name.startswith(f"{path}/"))
    if not below:
        folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
        raise SourceError(
            f"{repo} has no file or folder {path}{did_you_mean(path, {*names, *folders})}",
            where=asked.place,
            why=f"it has {', '.join(sorted({name.partition('/')[0] for name in names})[:20]) or 'no files'}",
            remedy="correct the path in the config",
        )
    found = [name for name in below if not suffixes or PurePosixPath(name).suffix.lower() in suffixes]
    if not found:
        raise SourceError(
            f"{path} of {repo} has no file that could be a sample",
            where=asked.place,
            why=f"names are looked for that end in {', '.join(suffixes)}, and it has {', '.join(below[:5])}",
            remedy="name another folder; data in tables (parquet) is read by nobody here: write out its files first",
        )
    if most is None and len(found) > MAX_FETCHED:
        raise SourceError(
            f"{path} of {repo} has {len(found)} files",
            where=asked.place,
            why=f"{MAX_FETCHED} are fetched at most",
            remedy="name a smaller folder, or a file",
        )
    return found[:most]


def _listed(repo: str, commit: str) -> Iterable[str]:
    from huggingface_hub import list_repo_files  # the client's API class takes as long to import as all the rest

    return list_repo_files(repo_id(repo), revision=commit, repo_type=repo_type(repo))
