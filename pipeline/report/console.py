"""Shows the progress of a build: on a terminal a live line per running step, in a log a line per finished step.

In a log, steps that take long have a line every half minute, with how far they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.plain_text import printable
from pipeline.progress import file_of, told

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


EVERY_S = 30.0
"""Seconds between lines about steps that run, where there is no terminal."""

_ESTIMATED_EVERY_S = 5.0
"""Seconds for which an estimate is shown before another is made: a live display asks four times a second."""

_LEAST_LEFT_S = 20.0
"""No estimate is shown for fewer seconds than this."""

Left = Callable[[Mapping[str, float], Collection[str]], float | None]
"""Estimates the seconds left from how long steps have run and which are unfinished; None if it can't tell."""


class Console:
    """Writes to `stream`, live if that is a terminal. Safe to use from several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, Path]] = {}
        self._total = 0
        self._done = 0
        self._unfinished: set[str] = set()
        self._left: Left = lambda _running, _unfinished: None
        self._live: Live | None = None
        self._estimated, self._estimated_s = "", -_ESTIMATED_EVERY_S
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def start(self, steps: Collection[str], left: Left | None = None) -> None:
        """Note which steps are selected, and who knows how long they will take; called once."""
        self._total = len(steps)
        self._unfinished = {*steps}
        self._left = left or self._left

    def started(self, step: str, log: Path) -> None:
        """Show a step that runs now."""
        with self._lock:
            self._running[step] = (time.monotonic(), log)
            if self._terminal and self._live is None:
                self._live = self._open()
            if not self._terminal and self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()

    def ended(self, step: str) -> None:
        """Stop showing that a step runs. It may run again, as with another precision."""
        with self._lock:
            self._running.pop(step, None)

    def finished(self, step: str, outcome: str, seconds: float) -> None:
        """Show that a step ended well, unless it was current."""
        with self._lock:
            self._running.pop(step, None)
            self._unfinished.discard(step)
            self._done += 1
        if outcome != "current":
            elapsed = f"{seconds:6.1f} s" if outcome == "built" else " " * 8
            self.line(f"{self._count()}{outcome:<8} {elapsed}  {step}")

    def failed(self, step: str, text: str) -> None:
        """Show that a step failed; `text` is the whole message."""
        with self._lock:
            self._running.pop(step, None)
            self._unfinished.discard(step)
        self.line(f"{self._count()}FAILED             {step}\nerror: {text}")

    def waiting(self, step: str, hosts: Collection[str]) -> None:
        """Show that a step waits for one of these hosts; for any, if there are none."""
        with self._lock:
            self._running.pop(step, None)
        self.line(f"{self._count()}waiting            {step}  for {' or '.join(hosts) or 'a worker'}")

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
        """End the live display, or the lines."""
        self._ended.set()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _tick(self) -> None:
        """Write a line every half minute about each step that has run as long, and one about all."""
        while not self._ended.wait(EVERY_S):
            for step, since_s, log in self._now():
                if since_s >= EVERY_S:
                    far = self._far(step, log)
                    self.line(f"{self._count()}running  {since_s:6.0f} s  {step}{'  ' if far else ''}{far}")
            if text := self._estimate():
                self.line(f"{self._count()}{text}")

    def _now(self) -> list[tuple[str, float, Path]]:
        """Each step that runs, for how long, and its log.

        Takes no lock: the live display asks while it holds one of its own, for which a thread in `line` may wait.
        """
        now = time.monotonic()
        return [(step, now - since, log) for step, (since, log) in list(self._running.items())]

    def _far(self, step: str, log: Path) -> str:
        """How far a step is. For a download, the last line of its log: other logs mean little out of context."""
        return told(file_of(log)) or (_last_line(log) if step.startswith("fetch:") else "")

    def _estimate(self) -> str:
        """A text on how long the build will still take; empty if that is not known, or too short to matter."""
        if time.monotonic() - self._estimated_s >= _ESTIMATED_EVERY_S:
            self._estimated_s = time.monotonic()
            running = {step: since_s for step, since_s, _ in self._now()}
            left_s = self._left(running, self._unfinished.copy()) if running else None
            known = left_s is not None and left_s >= _LEAST_LEFT_S
            self._estimated = f"about {_spoken(left_s)} left" if left_s is not None and known else ""
        return self._estimated

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

        lines = []
        for step, since_s, log in self._now():
            lines.append(printable(f"{self._count()}{since_s:5.0f} s  {step}  {self._far(step, log)}".rstrip()))
        if text := self._estimate():
            lines.append(f"{self._count()}{text}")
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _spoken(seconds: float) -> str:
    """An estimated time in words, rounded as coarsely as it is known."""
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _last_line(log: Path) -> str:
    """The last line of a step's log: how far a download is."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 400))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
