"""The findings of `doit fsck`, and the words for what it did about them."""

from __future__ import annotations

from pathlib import Path

from pipeline.frozen import dataclass

DROPPED = "dropped: made again when it is needed"
PUT_BACK = "the next build puts it back"
NOT_BUILT = "no config builds it any more"
LEFT = "left alone: it is not ours"
FOREIGN = "its name is none that belongs here"
ALTERED = "it is not what was written"


@dataclass(frozen=True)
class FsckFinding:
    """Something that is not as it should be. `is_wrong` is false if it does no harm, such as a user's own file."""

    path: Path
    problem: str
    done: str
    is_wrong: bool = True


def unread(path: Path, error: OSError) -> FsckFinding:
    """The finding for a file or folder that can't be read."""
    return FsckFinding(path, f"can't be read: {error.strerror or error}", "left as it is")
