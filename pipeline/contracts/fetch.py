"""The contract of `fetch`, which has no facts: where files are from is no content."""

from __future__ import annotations

from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Commit(Contract):
    """A repository on the hub, at a commit."""

    hub: str
    revision: str


@dataclass(frozen=True)
class Params(Contract):
    """`files` by their names in the source; its `commit`, or None for a folder, of which the step is given files."""

    commit: Commit | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class Facts(Contract):
    """None."""
