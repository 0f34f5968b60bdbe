"""The data that the page of a model is made from: its steps, their outputs, and what the last build did."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from pipeline.config.load import ModelConfig
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import emulate, verify
from pipeline.contracts.codec import ContractError
from pipeline.contracts.measures import Measured, Subject
from pipeline.contracts.preview import PREVIEW, Preview
from pipeline.frozen import dataclass
from pipeline.graph.accuracy.verdict import TOTAL, judged_by
from pipeline.ladder import RUNGS
from pipeline.model import Json, Manifest
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.report import report
from pipeline.report.comparison import Comparison
from pipeline.report.run_report import RunRecord

_LARGEST = 64 << 20


@dataclass(frozen=True)
class PageSource:
    """A model, its steps (those on demand, too), which of them are `seen` to be current, and what all made last.

    `artifacts` are those of run.json. `run` is the record of the last build, None where the page must be the same
    whenever it is written; `since` compares the artifacts with those before.
    """

    config: ModelConfig
    steps: Sequence[Step]
    seen: Collection[str]
    manifests: Mapping[str, Manifest]
    workspace: Workspace
    artifacts: Mapping[str, RunRecord]
    run: RunRecord | None = None
    since: tuple[str, Comparison] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that the page is about."""
        own = {target.soc for step in self.steps for target in step.targets}
        return tuple(target.soc for target in self.config.targets if target.soc in own)

    def json_of(self, step: str, file: str) -> Json:
        """A JSON file of a step's output; None if the step is not seen, or the file is lost or damaged."""
        manifest = self.manifests.get(step) if step in self.seen else None
        entry = manifest.files.get(file) if manifest else None
        if entry is None or entry.bytes > _LARGEST:
            return None
        try:
            found: Json = json.loads(self.workspace.store.object_path(entry.sha256).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return found

    def preview_of(self, step: str) -> Preview | None:
        """The worst sample of a step that measured."""
        raw = self.json_of(step, PREVIEW)
        try:
            return Preview.from_json(raw) if isinstance(raw, dict) else None
        except ContractError:
            return None


@dataclass(frozen=True)
class Measurement:
    """What was measured of a component, bucket and target, on the CPU and on the emulator."""

    component: str
    bucket: str
    target: str
    cpu: verify.Facts
    emulator: emulate.Facts
    limits: Thresholds
    steps: tuple[str, str]

    @property
    def rungs(self) -> Mapping[str, float | None]:
        """The SQNR of the worst output that is judged in dB, on each rung that was measured, and in `total`."""
        return {rung: self._least(rung, measured) for rung, measured in self._measured().items()}

    @property
    def last(self) -> Measured:
        """The last rung against the original, by output."""
        return self.emulator.outputs if self.emulator.samples else self.cpu.outputs

    def asked(self, rung: str) -> float:
        """The least SQNR on a rung, in dB."""
        return self.limits.of(rung)

    @property
    def last_by_db(self) -> Measured:
        """The figures of the last rung against the original for outputs that are judged in dB."""
        return self._judged_in_db(TOTAL, self.last)

    @property
    def last_samples(self) -> str:
        """Which samples the last rung was measured on, in words."""
        count, of = self.emulator.samples or self.cpu.samples, self.cpu.samples
        if count == of:
            return f"all {count} samples" if count > 1 else "the one sample"
        return f"the {count} samples that were emulated" if count > 1 else "the one sample that was emulated"

    def _judged_in_db(self, rung: str, measured: Measured) -> Measured:
        return {
            label: figures
            for label, figures in measured.items()
            if judged_by(label, rung, figures, self.cpu.subjects.get(label, Subject(label)), self.limits) == "dB"
        }

    def _measured(self) -> Mapping[str, Measured]:
        found = {**self.cpu.rungs, **self.emulator.rungs}
        return {**{rung: found[rung] for rung in RUNGS if rung in found}, TOTAL: self.last}

    def _least(self, rung: str, measured: Measured) -> float | None:
        by_db = [figures.sqnr_db for figures in self._judged_in_db(rung, measured).values()]
        known = [db for db in by_db if db is not None]
        return min(known) if known and len(known) == len(by_db) else None


def measurements(source: PageSource) -> Iterator[Measurement]:
    """The measurements of a model, in the order of the plan."""
    shown = set()
    for step, target, place, cpu, emulator, limits in report.measured(source.steps, source.seen, source.manifests):
        assert step.bucket is not None
        if cpu.samples and place not in shown:  # two buckets of the model may be one of the component
            shown.add(place)
            name = place[0].partition("/")[2]
            steps = (step.id, report.emulation(step, step.bucket, target))
            yield Measurement(name, place[1], place[2], cpu, emulator, limits, steps)
