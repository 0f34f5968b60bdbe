"""Publishes to a repo of the Hugging Face hub: archive and index in one commit, so readers see both or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.inputs.hub.upload import commit_files, described, head_of, read_file
from pipeline.model import FileEntry
from pipeline.release.places.destinations import ALTERED
from pipeline.store.payloads import MISSING
from pipeline.store.urls import redacted

_ADDRESS = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<branch>[\w.-]+))?(?:/(?P<folder>[\w.-]+(?:/[\w.-]+)*))?/?")


@dataclass
class HubDestination:
    """A folder of a branch of a repo. Repo and branch must exist: we make nothing public unasked."""

    repo: str
    branch: str
    folder: str
    _head: str = field(default="", init=False)

    @classmethod
    def of(cls, address: str) -> HubDestination:
        """The destination `owner/name`, maybe with `@branch` and `/folder`. Raises ConfigError for another text."""
        found = _ADDRESS.fullmatch(address)
        if found is None or ".." in address.split("/"):
            raise ConfigError(
                "this is no repo of the hub",
                where=redacted(f"hf://{address}"),
                remedy="write hf://owner/name, or hf://owner/name@branch/folder",
            )
        return cls(found["repo"], found["branch"] or "main", found["folder"] or "")

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file in the newest commit of the branch; None if there is none."""
        self._head = head_of(self.repo, self.branch)
        return read_file(self.repo, self._head, self._path(name))

    def fault(self, name: str, entry: FileEntry) -> str:
        """What is wrong with an archive in the commit that was read, by what the hub says of it; "" if nothing is."""
        found = described(self.repo, self._head, self._path(name))
        if found is None:
            return MISSING
        size, sha256 = found
        if size != entry.bytes:
            return f"it has {size} bytes, not {entry.bytes}"
        return "" if sha256 in ("", entry.sha256) else ALTERED

    def send(self, archive: Path, index_name: str, index: bytes, there: bytes | None) -> str | None:
        """Commit both on top of the commit that was read; None if the branch has moved on since."""
        files: dict[str, Path | bytes] = {self._path(archive.name): archive, self._path(index_name): index}
        commit = commit_files(self.repo, self.branch, self._head, files, f"Release {archive.name}")
        return None if commit is None else f", commit {commit}"

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name
