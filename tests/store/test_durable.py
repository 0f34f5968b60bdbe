from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from pipeline.store.durable import sync_file


@pytest.mark.skipif(sys.platform == "win32", reason="acts as Windows does")
@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_windows_is_given_a_handle_that_it_syncs(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlushFileBuffers refuses a handle without GENERIC_WRITE, and a read-only file can't be opened with it."""
    import fcntl

    synced = []

    def fsync(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        synced.append(path.stat().st_mode & 0o200)

    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    path.chmod(mode)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr("pipeline.store.durable._WINDOWS", True)
    sync_file(path)
    assert synced == [0o200]
    assert path.stat().st_mode & 0o777 == mode


def test_a_file_that_can_not_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    with pytest.raises(OSError, match="Invalid"):
        sync_file(path)
