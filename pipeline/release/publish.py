"""Publishes releases: to a folder, a repo of the Hugging Face hub, or whatever fsspec can write to.

Publishing puts a small JSON file, the index, beside the archive, with the archive's digest. It sends the archive first
and the index last, so an index always leads to a whole archive. It never replaces what was published: it refuses
another archive of the same name, and sends an archive again only if the one there no longer matches its index.

    python -m pipeline.release.publish FILE DESTINATION
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.model import FileEntry
from pipeline.plain_text import did_you_mean
from pipeline.release.archives.index import text_of
from pipeline.release.places.destinations import Destination, FolderDestination
from pipeline.release.verify import verify_release
from pipeline.store.digests import sha256_file
from pipeline.store.urls import folder_of, is_url, redacted

HUB = "hf://"


def publish(archive: Path, url: str) -> str:
    """Check an archive completely and publish it. Returns a line that says what was done.

    Raises:
        VerificationError: the archive was changed since it was made.
        ConfigError: `url` names no destination, or another archive was published there under this name.
        SourceError: the hub refuses the archive, or can't be reached.
        StoreError: another destination refuses it, or can't be reached.
    """
    release = verify_release(archive)
    destination = destination_of(url)
    name, index_name = archive.name, index_name_of(archive.name)
    entry = FileEntry(sha256_file(archive), archive.stat().st_size)
    index = _index(archive.name, entry, release.index)
    place = f"{name} in {redacted(url)}"
    for _ in range(_RACES):
        there = destination.read(index_name)
        fault = destination.fault(name, entry) if there == index else ""
        if there == index and not fault:
            return f"{place}: was there already"
        if there not in (None, index):
            raise ConfigError(
                f"another release was published under this name: {name}",
                where=redacted(url),
                why=f"{index_name} there names an archive with SHA-256 {_sha256_in(there)}",
                remedy="what was published stays as it is: raise release.version",
            )
        if (done := destination.send(archive, index_name, index, there)) is not None:
            if fault:
                return f"{place}: was there, but {fault}: sent again{done}"
            return f"{place}: published{'' if release.signatures else ', not signed'}{done}"
    raise StoreError(
        f"{name} can't be published, as others publish there at the same time",
        where=redacted(url),
        remedy="run the same command again",
    )


_RACES = 5
"""How many tries there are when somebody else keeps publishing between our reading and our writing."""


def destination_of(url: str) -> Destination:
    """The destination that a URL or a path names. Raises ConfigError if it names none."""
    if url.startswith(HUB):
        from pipeline.release.places.hub_destination import HubDestination  # the network client

        return HubDestination.of(url.removeprefix(HUB))
    if is_url(url):
        from pipeline.release.places.fsspec_destination import FsspecDestination

        return FsspecDestination.of(url)
    if not url:
        raise ConfigError(
            "it is not said where to publish",
            where="command line",
            remedy="doit publish DESTINATION: a folder, hf://owner/name, or a URL such as s3://bucket/folder",
        )
    return FolderDestination(_in_a_folder_that_is_there(folder_of(url, "command line")))


def _in_a_folder_that_is_there(folder: Path) -> Path:
    """The folder to publish to, which may have to be made. Raises ConfigError where that in which it would lie must."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    if not missing:
        return folder
    highest = missing[-1]
    beside = (each.name for each in highest.parent.iterdir() if each.is_dir()) if highest.parent.is_dir() else ()
    raise ConfigError(
        f"the folder {folder.parent} does not exist{did_you_mean(highest.name, beside)}",
        where="command line",
        why=f"only the last folder of {folder} would be made: of a mistyped path nobody would find the archive",
        remedy=f"correct the path, or make the folder: mkdir -p {folder.parent}",
    )


def index_name_of(archive: str) -> str:
    """The name of an archive's index."""
    return f"{archive.removesuffix('.zip')}.json"


def _index(archive: str, entry: FileEntry, release: Mapping[str, Any]) -> bytes:
    return text_of(
        {
            "schema_version": 1,
            "model": release["model"],
            "version": release["version"],
            "archive": archive,
            "sha256": entry.sha256,
            "bytes": entry.bytes,
            "targets": release["targets"],
        }
    )


def _sha256_in(index: bytes) -> str:
    try:
        return str(json.loads(index)["sha256"])
    except (ValueError, KeyError, TypeError):
        return "unknown: it can't be read"


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status, which docs/troubleshooting.md lists."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.release.publish", description="Publish a release.")
    parser.add_argument("file", type=Path, help="an archive, such as artifacts/releases/demo-1.0.qnn.zip")
    parser.add_argument("destination", help="a folder, hf://owner/name[@branch][/folder], or a URL that fsspec opens")
    given = parser.parse_args(arguments)
    try:
        print(publish(given.file, given.destination))
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
