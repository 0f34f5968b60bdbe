"""Standard output that outlives its reader: a build does not depend on who reads what it prints."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from typing import IO


class Lasting(io.TextIOBase):
    """A text stream whose writes never fail: once one has, what follows goes nowhere.

    Its reader may be gone (`doit build | head`), its disk full (`> build.log`), or it was never there (`>&-`).
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, if it can be."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._give_up()
        return len(text)

    def flush(self) -> None:
        """Pass on what was written, if it can be."""
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
        """That of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def _give_up(self) -> None:
        """Let the stream's descriptor lead nowhere: what it still buffers is flushed when the process ends."""
        stream, self._stream = self._stream, None
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def end_with_reader(wanted: bool) -> None:
    """Whether this process ends, as commands do on Unix, when it writes to a pipe that nobody reads any more."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if wanted else signal.SIG_IGN)
