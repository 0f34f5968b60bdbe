"""`configs/pins.yaml`: the commits that branches and tags of hub repos were pinned to, kept in version control."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.config.yaml.problems import Problems
from pipeline.config.yaml.tree import MapNode, Value, read
from pipeline.errors import ConfigError, SourceError
from pipeline.store.durable import write_atomically
from pipeline.store.files_read import note_file

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEADER = """\
# Commits that branches and tags in the configs stand for. Written by the first fetch; commit this file.
# To follow a branch to its newest commit, delete its line.
"""


def pinned_revision(repo: str, revision: str, pins: Path) -> str | None:
    """The commit to build from: the revision itself if it is one, else its pin, else None."""
    return revision if _COMMIT.fullmatch(revision) else read_pins(pins).get(f"{repo}@{revision}")


def pin(repo: str, revision: str, pins: Path, say: Callable[[str], None] = print, *, folder: Path | None = None) -> str:
    """The commit to build from. A branch or tag without a pin is looked up on the hub and pinned, and `say` tells so.

    Raises:
        SourceError: the hub does not give the commit, or the pin can't be written.
        ConfigError: the file of pins is damaged.
    """
    if pinned := pinned_revision(repo, revision, pins):
        return pinned
    from pipeline.inputs.hub.revisions import resolve_commit  # the network client: only for who needs the network

    commit = resolve_commit(repo, revision)
    try:
        write_pin(pins, repo, revision, commit, folder=folder)
    except OSError as error:
        raise SourceError(
            f"'{revision}' of {repo} can't be pinned",
            where=str(pins),
            why=error.strerror or str(error),
            remedy=f"make the file writable, or write 'revision: {commit}' into the config",
        ) from error
    name = f"{pins.parent.name}/{pins.name}"
    say(f"{repo}: '{revision}' is pinned to commit {commit} in {name}; commit that file, delete the line to move on")
    return commit


def read_pins(path: Path) -> Mapping[str, str]:
    """All pins, `owner/name@revision` -> commit; none if there is no file. Raises ConfigError for a damaged file."""
    note_file(path)
    if not path.exists():
        return {}
    problems = Problems()
    data = read(path, path.name, problems)
    if data is not None and not any(line.strip() and not line.startswith(b"#") for line in data.splitlines()):
        return {}
    from pipeline.config.yaml.parse import parse  # PyYAML: only for who has a file to parse

    tree = parse(data, path.name, problems) if data is not None else None
    if len(problems):
        raise _damaged(path, str(next(iter(problems))))
    if not isinstance(tree, MapNode):
        raise _damaged(path, "it is not a mapping")
    pins = {name: value.text if isinstance(value, Value) else "" for name, value in tree.values.items()}
    for name, commit in pins.items():
        if not _COMMIT.fullmatch(commit):
            raise _damaged(path, f"{name!r}: {commit!r} is not a commit of 40 hex digits")
    return pins


def write_pin(path: Path, repo: str, revision: str, commit: str, *, folder: Path | None = None) -> None:
    """Add one pin. The new file is first written in `folder`, or beside the old one, and then moved over it."""
    import yaml

    pins = {**read_pins(path), f"{repo}@{revision}": commit}
    write_atomically(path, (_HEADER + yaml.safe_dump(pins, sort_keys=True)).encode(), folder=folder)


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path.name} can't be read",
        where=str(path),
        why=why,
        remedy="restore it from version control, or delete it: the next fetch pins again",
    )
