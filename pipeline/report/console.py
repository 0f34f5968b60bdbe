"""Shows the progress of a build: on a terminal a live line per running step, in a log a line per finished step."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.plain_text import printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


class Console:
    """Writes to `stream`, live if that is a terminal. Safe to use from several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, Path]] = {}
        self._total = 0
        self._done = 0
        self._live: Live | None = None

    def start(self, steps: Collection[str]) -> None:
        """Note which steps are selected; called once."""
        self._total = len(steps)

    def started(self, step: str, log: Path) -> None:
        """Show a step that runs now."""
        with self._lock:
            self._running[step] = (time.monotonic(), log)
            if self._terminal and self._live is None:
                self._live = self._open()

    def finished(self, step: str, outcome: str, seconds: float) -> None:
        """Show that a step ended well, unless it was current."""
        with self._lock:
            self._running.pop(step, None)
            self._done += 1
        if outcome != "current":
            elapsed = f"{seconds:6.1f} s" if outcome == "built" else " " * 8
            self.line(f"{self._count()}{outcome:<8} {elapsed}  {step}")

    def failed(self, step: str, text: str) -> None:
        """Show that a step failed; `text` is the whole message."""
        with self._lock:
            self._running.pop(step, None)
        self.line(f"{self._count()}FAILED             {step}\nerror: {text}")

    def waiting(self, step: str, hosts: Collection[str]) -> None:
        """Show that a step waits for other hosts."""
        with self._lock:
            self._running.pop(step, None)
        self.line(f"{self._count()}waiting            {step}  for {' or '.join(hosts)}")

    def line(self, text: str) -> None:
        """Print text above the live lines. Control characters in it are escaped."""
        text = printable(text)
        with self._lock:
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._stream.write(f"{text}\n")
                self._stream.flush()

    def stop(self) -> None:
        """End the live display."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _count(self) -> str:
        """How many steps of all are done; nothing for a command that is not about steps."""
        width = len(str(self._total))
        return f"[{self._done:>{width}}/{self._total}] " if self._total else ""

    def _open(self) -> Live:
        import rich.console  # 80 ms that a build with nothing to do need not pay
        from rich.live import Live

        console = rich.console.Console(file=self._stream)
        live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)
        live.start()
        return live

    def _render(self) -> Text:
        from rich.text import Text

        now = time.monotonic()
        lines = []
        for step, (since, log) in list(self._running.items()):
            progress = (
                _last_line(log) if step.startswith("fetch:") else ""
            )  # the others' logs mean little out of context
            lines.append(f"{self._count()}{now - since:5.0f} s  {step}  {progress}".rstrip())
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _last_line(log: Path) -> str:
    """The last line of a step's log: how far a download is."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 400))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
