"""The plain script of onnxruntime's documented recipe, as a tool of the benchmark."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.bench.measure import folder_bytes, run
from tests.bench.models import Model
from tests.bench.tools import ARTIFACTS, TARGETS, Outcome, Target, write_lines

_SCRIPT = Path(__file__).with_name("plain_script.py")


class Plain:
    """A folder in which the script runs; it keeps nothing that would spare a second run any work."""

    name = "plain script"

    def __init__(self, model: Model, folder: Path) -> None:
        """`folder` is emptied."""
        self._model = model
        self._out = folder / "out"
        self._lines = folder / "lines.txt"
        shutil.rmtree(folder, ignore_errors=True)
        write_lines(self._lines, model.sentences())

    def cold(self) -> Outcome:
        """All buckets for the first SoC."""
        shutil.rmtree(self._out, ignore_errors=True)
        return self._run(self._model.buckets, TARGETS[0])

    def again(self) -> None:
        """None: the script begins anew."""

    def changed_sample(self) -> None:
        """None: the script begins anew."""

    def second_soc(self) -> Outcome:
        """Only the compile, which a user would make of the script by hand."""
        return self._run(self._model.buckets, TARGETS[1], "--compile-only")

    def added_bucket(self) -> Outcome:
        """The script for the last bucket alone."""
        shutil.rmtree(self._out, ignore_errors=True)
        return self._run(self._model.buckets[-1:], TARGETS[0])

    def _run(self, buckets: tuple[int, ...], target: Target, *options: str) -> Outcome:
        given = [self._model.file, self._model.folder / "tokenizer.json", self._lines, self._out]
        asked = ["--lengths", ",".join(map(str, buckets)), "--socs", str(target.soc_model), *options]
        command: list[str | Path] = [sys.executable, _SCRIPT, *given, *asked]
        usage = run(command, cwd=self._out.parent, log=self._out.parent / "log.txt")
        shipped = folder_bytes(*self._out.glob("soc_*"), suffixes=ARTIFACTS)
        return Outcome(usage, {"shipped_bytes": shipped, "kept_bytes": folder_bytes(self._out) - shipped})
