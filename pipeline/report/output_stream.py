"""Standard output for a build, which goes on when nobody reads what it prints any more."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from typing import IO


class LastingStream(io.TextIOBase):
    """A text stream whose writes never fail. After the first that would, it drops all that is written.

    The reader may have ended (`doit build | head`), the disk may be full (`> build.log`), or there was no
    stream (`>&-`).
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; drop it if that fails."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._give_up()
        return len(text)

    def flush(self) -> None:
        """Pass on what was written; drop it if that fails."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._give_up()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        with contextlib.suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def fileno(self) -> int:
        """The descriptor; raises io.UnsupportedOperation where there is none."""
        return super().fileno() if self._stream is None else self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        """The encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def _give_up(self) -> None:
        """Redirect the stream's descriptor to nowhere: Python still flushes its buffer when the process ends."""
        stream, self._stream = self._stream, None
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def end_with_reader(wanted: bool) -> None:
    """Set whether this process ends when it writes to a pipe without a reader, as commands do on Unix."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if wanted else signal.SIG_IGN)
