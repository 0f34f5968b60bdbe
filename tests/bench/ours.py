"""This pipeline, run as its users do: in a checkout of its own, by `doit build`, with a store of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.measure import Usage, folder_bytes, run
from tests.bench.models import HELD_OUT, ROOT, Model
from tests.bench.tools import ARTIFACTS, TARGETS, Outcome, Target, replaced, write_lines

_LINE = re.compile(r"^\[ *\d+/\d+\] (built|restored) .*?(\w+:\S+)$", re.MULTILINE)
_LINES = "calibration/bench/lines.txt"
_W8A16 = "quantization: {activations: uint16, weights: uint8, per_channel: true}"


def copy_checkout(source: Path, folder: Path) -> None:
    """Copy what git knows of a checkout, edits included, or would know: no store, no environment."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE).stdout.decode()
    shutil.rmtree(folder, ignore_errors=True)
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, folder / name)


class Ours:
    """A checkout that builds one model."""

    name = "ours"

    def __init__(self, model: Model, folder: Path, *, source: Path = ROOT) -> None:
        """Make the checkout in `folder`, which is emptied, from the one at `source`."""
        self._model = model
        self._root = folder
        copy_checkout(source, folder)
        for config in (folder / "configs").glob("*.yaml"):
            config.unlink()
        write_lines(folder / _LINES, model.sentences())
        shutil.copyfile(HELD_OUT, (folder / _LINES).with_name("held_out.txt"))

    def cold(self, buckets: Sequence[int] = (), *, verified: bool = False) -> Outcome:
        """All buckets, or some, for the first SoC, with an empty store."""
        self.empty()
        return self.build(buckets or self._model.buckets, TARGETS[:1], verified=verified)

    def cold_by_default(self) -> Outcome:
        """As `cold`, of a config that says nothing about precision."""
        self.empty()
        return self.build(self._model.buckets, TARGETS[:1], more=())

    def again(self) -> Outcome:
        """The same command once more."""
        return self._doit()

    def changed_sample(self) -> Outcome:
        """One calibration sample replaced, for the first SoC; the file is put back afterwards."""
        lines = self._model.sentences()
        write_lines(self._root / _LINES, replaced(lines))
        outcome = self.build(self._model.buckets, TARGETS[:1])
        write_lines(self._root / _LINES, lines)
        return outcome

    def second_soc(self) -> Outcome:
        """The second SoC added to the config."""
        return self.build(self._model.buckets, TARGETS[:2])

    def added_bucket(self) -> Outcome:
        """The last bucket added to a config of the others, which was built."""
        self.empty()
        self.build(self._model.buckets[:-1], TARGETS[:1])
        return self.build(self._model.buckets, TARGETS[:1])

    def build(
        self,
        buckets: Sequence[int],
        targets: Sequence[Target],
        *,
        packing: str = "",
        verified: bool = False,
        seconds: int = 30,
        more: Sequence[str] = (_W8A16,),
    ) -> Outcome:
        """Build these buckets for these SoCs with whatever the store has; `more` are further lines of the config,
        `seconds` how long a verified one is emulated.
        """
        lines = [
            f"source: {{path: {os.path.relpath(self._model.folder, self._root / 'configs')}}}",
            "components: {encoder: {file: model.onnx}}",
            "fixed: {batch: 1}",
            f"buckets: {{sequence: [{', '.join(map(str, buckets))}]}}",
            f"calibration: {{reader: text, file: {_LINES}, tokenizer: tokenizer.json}}",
            "verification: {samples: {reader: text, file: calibration/bench/held_out.txt, tokenizer: tokenizer.json},"
            f" emulator_seconds: {seconds}}}"
            if verified
            else "verification: {enabled: false}",
            *more,
            f"targets: [{', '.join(target.name for target in targets)}]",
        ]
        if packing:
            lines.append(f"packing: {packing}")
        write_lines(self._config, lines)
        return self._doit()

    def empty(self) -> None:
        """Forget everything that was built."""
        shutil.rmtree(self._root / ".build", ignore_errors=True)
        shutil.rmtree(self._root / "artifacts", ignore_errors=True)
        (self._root / "artifacts").mkdir()

    @property
    def artifacts(self) -> Path:
        """What the last build shipped."""
        return self._root / "artifacts" / self._model.name

    @property
    def qdq_models(self) -> list[Path]:
        """The QDQ models of the last build, a bucket each."""
        return sorted((self._root / "artifacts" / self._model.name / "qdq").glob("*.onnx"))

    @property
    def _config(self) -> Path:
        return self._root / "configs" / f"{self._model.name}.yaml"

    def _doit(self) -> Outcome:
        log = self._root.with_suffix(".log")
        usage = run(
            [sys.executable, "-m", "doit", f"build:{self._model.name}"],
            cwd=self._root,
            log=log,
            env=_environment(),
            label=self._step,
        )
        ran: dict[str, list[str]] = {"built": [], "restored": []}
        for how, step in _LINE.findall(log.read_text("utf-8")):
            ran[how].append(step)
        artifacts = self._root / "artifacts" / self._model.name
        shipped = [folder for folder in artifacts.iterdir() if folder.name != "qdq"]
        numbers = {
            "shipped_bytes": folder_bytes(*shipped, suffixes=ARTIFACTS),
            "kept_bytes": folder_bytes(self._root / ".build"),
        }
        return Outcome(usage, numbers, {how: sorted(steps) for how, steps in ran.items()})

    def _step(self, output: str) -> str:
        """`stage:name` of the step whose log a process writes, or the name of another log of the build."""
        logs = f"{self._root.resolve()}/.build/logs/"
        return output[len(logs) :].removesuffix(".log").replace("/", ":", 1) if output.startswith(logs) else ""


def by_stage(usage: Usage) -> dict[str, float]:
    """CPU seconds of each stage, in the order in which they began, and of what is no stage.

    That is `doit`, the command itself; `template`, what workers import, once; and `ends`, the last moments of
    processes, after they were last looked at.
    """
    used: dict[str, float] = {}
    for span in sorted(usage.spans, key=lambda span: span.start_s):
        stage = span.label.partition(":")[0] or "doit"
        used[stage] = used.get(stage, 0.0) + span.cpu_s
    return {**used, "ends": max(0.0, usage.cpu_s - sum(used.values()))}


def _environment() -> dict[str, str]:
    """The user's environment without what would take the build elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PIPELINE_", "PYTHONPATH"))}
