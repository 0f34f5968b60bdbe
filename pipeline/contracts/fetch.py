"""The contract of `fetch`. It has no facts, so that equal files from different sources give equal keys after it."""

from __future__ import annotations

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

DATA = "datasets"
"""How the name of a repository of data begins, as in its address on the hub: `datasets/owner/name`."""


@dataclass(frozen=True)
class Commit(Contract):
    """A repository on the hub, at a commit."""

    hub: str
    revision: str


@dataclass(frozen=True)
class Params(Contract):
    """`files` are names in the source. `commit` is None if the source is a folder; the step is then given its files.

    In a repository of data, a name may be a folder: then at most `most` of the files in it are fetched, those whose
    names end in one of `suffixes`.
    """

    commit: Commit | None
    files: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    most: int | None = left_out()


@dataclass(frozen=True)
class Facts(Contract):
    """There are none."""
