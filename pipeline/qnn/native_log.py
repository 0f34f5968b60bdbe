"""What native libraries write to stderr, kept so that an error can quote it.

QNN and ONNX Runtime explain their failures there and nowhere else; their exceptions rarely name a node or a code.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

STEP_LOG = "PIPELINE_STEP_LOG"
"""Environment variable with the path of the file that stderr goes to, when it goes to one."""

_MAX_BYTES = 4 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# `2026-11-20 10:00:00.123 [E:onnxruntime:, file.cc:12 Function] text`: the date says nothing, the file little
_ORT_LINE = re.compile(r"^\d{4}-\S+ \S+ \[(?P<level>[A-Z]):[^\]]*\] (?P<text>.*)$")


class NativeLog:
    """The part of a log file that was written since the recording began."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def text(self) -> str:
        """All of it, or the end if it is more than 4 MB, without colours."""
        with self._path.open("rb") as file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - _MAX_BYTES))
            return _COLOUR.sub("", file.read(_MAX_BYTES).decode("utf-8", "replace"))

    def errors(self) -> list[str]:
        """The last five distinct lines that ONNX Runtime or QNN logged as errors, without time and place."""
        found: dict[str, None] = {}
        for line in self.text().splitlines():
            match = _ORT_LINE.match(line)
            if match and match["level"] in "EF" and match["text"].strip():
                found[match["text"].strip()] = None
        return list(found)[-5:]


@contextlib.contextmanager
def recorded() -> Iterator[NativeLog]:
    """Record what is written to stderr in this block.

    In a worker stderr already is a file, the step's log: it is only read, so that nothing is lost if the process dies.
    Anywhere else stderr goes to a temporary file first and is passed on at the end.
    """
    sys.stderr.flush()
    step_log = os.environ.get(STEP_LOG)
    if step_log and _is_stderr(Path(step_log)):
        yield NativeLog(Path(step_log))
        return
    with tempfile.TemporaryDirectory(prefix="native-log-") as folder:
        path = Path(folder) / "stderr"
        path.touch()
        original = os.dup(2)
        try:
            with path.open("ab") as file:
                os.dup2(file.fileno(), 2)
            yield NativeLog(path)
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            os.write(2, path.read_bytes())


def _is_stderr(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(2))
    except OSError:
        return False
