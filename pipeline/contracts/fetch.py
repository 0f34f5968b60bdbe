"""The contract of `fetch`, which has no facts: where files are from is no content."""

from __future__ import annotations

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

DATA = "datasets"
"""What the name of a repository begins with that holds data, not a model: `datasets/owner/name`, as in its address."""


@dataclass(frozen=True)
class Commit(Contract):
    """A repository on the hub, at a commit."""

    hub: str
    revision: str


@dataclass(frozen=True)
class Params(Contract):
    """`files` by their names in the source; its `commit`, or None for a folder, of which the step is given files.

    Of data, a file may be a folder: `most` of the files in it are fetched whose names end in one of `suffixes`.
    """

    commit: Commit | None
    files: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    most: int | None = left_out()


@dataclass(frozen=True)
class Facts(Contract):
    """None."""
