"""Looks up what is known of a precision that was tried: its figures, what it misses, and which nodes are to blame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from pipeline.build import gates
from pipeline.build.bring import Shown, bring_up_to_date
from pipeline.build.chains import QUIET, figures_of
from pipeline.build.crew import Crew
from pipeline.build.explain_miss import nodes_of, wanting
from pipeline.build.remedies import NO_NUMBER, Tried, label, room_for
from pipeline.contracts import blame, probe
from pipeline.contracts import quantize as quantized
from pipeline.contracts.climb import Attempt
from pipeline.contracts.forecast import Forecast, harmful
from pipeline.contracts.scheme import ROOM, Scheme
from pipeline.errors import CompileError, ModelError, PipelineError, QuantizationError, VerificationError
from pipeline.frozen import dataclass
from pipeline.ladder import RUNGS
from pipeline.model import Json
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import read_manifest

Waves = tuple[tuple[str, ...], ...]
ON_CPU: Waves = (("quantize",), ("verify",))
ON_CHIP: Waves = (("packing",), ("context",), ("emulate",))
"""Stages that make and judge a precision, the cheapest first. A precision that misses on the CPU is not compiled."""
_WAVES = (*ON_CPU, *ON_CHIP)
_FAILURES = (CompileError, ModelError, QuantizationError, VerificationError)


def may_fail(stage: str, error: PipelineError) -> bool:
    """Whether an error in a stage may be due to the precision: the compiler refused the model, or died of it."""
    return isinstance(error, _FAILURES) or (error.of_process and all(stage not in each for each in ON_CPU))


@dataclass(frozen=True)
class Missed:
    """The first step of a chain that may not ship, or could not be made."""

    step: Step
    miss: gates.Miss
    failed: bool = False


class Findings:
    """Looks up what the steps of a precision found. Safe to use from several threads."""

    def __init__(self, workspace: Workspace, crew: Crew, shown: Shown) -> None:
        self._workspace = workspace
        self._crew = crew
        self._shown = shown

    def short(self, chain: Sequence[Step]) -> Missed | None:
        """The step with too small a margin, the worst first; steps on the CPU come before those on the chip."""
        found = ((step, wanting(step, self._workspace)) for step in chain if step.stage in ("verify", "emulate"))
        missed = [Missed(step, miss) for step, miss in found if miss is not None]
        return min(missed, key=lambda each: (not each.miss.read, self.reached(each)), default=None)

    def total(self, chain: Sequence[Step]) -> float:
        """The least SQNR in dB against the original on the last rung that was measured, quieter samples included."""
        last = [step for step in chain if step.stage == "emulate"] or [step for step in chain if step.stage == "verify"]
        found = [figures_of(step, self.facts(step)).get(what) for step in last for what in ("total", QUIET)]
        return min((db for db in found if db is not None), default=NO_NUMBER)

    def tried(self, scheme: Scheme, chain: Sequence[Step], missed: Missed | None, short: Missed | None) -> Tried:
        """What there is to know about a miss, or about too small a margin. Searches run when a field is asked for."""
        found = missed or short
        assert found is not None
        reached = self.reached(missed) if missed else (len(_WAVES), self.total(chain))
        lost = list[probe.Facts]()
        miss = found.miss
        nodes: Callable[[], tuple[str, ...]] = cache(partial(self._to_blame, chain, found.step, lost))
        if found.failed or miss.left is not None:
            nodes = partial(tuple, miss.left or ())
        return Tried(
            scheme, miss.rung or "compile", reached, nodes, self.foretold(chain), miss.state, miss.read, miss.accepts,
            miss.error if found.failed or not miss.rung else None,
            lambda: min((each.inputs_db for each in lost if each.inputs_db is not None), default=None),
            cache(partial(self._room, scheme, chain, found.step)), not miss.rung,
            missed is None or miss.sqnr_db is not None, lambda: next((each.choices for each in lost), None),
        )  # fmt: skip

    def _to_blame(self, chain: Sequence[Step], step: Step, lost: list[probe.Facts]) -> tuple[str, ...]:
        """The nodes that went wrong, the worst first. If rounded inputs explain the miss, adds the probe to `lost`."""
        search = self.searched(chain, step)
        facts = self.facts(search) if search is not None else None
        if search is None or facts is None:
            return ()
        if search.stage == "blame":
            return nodes_of(blame.Facts.from_json(facts).worst)
        found = probe.Facts.from_json(facts)
        if found.inputs_db is not None:
            lost.append(found)
        return nodes_of(found.first_wrong.get("compile", ()))

    def _room(self, scheme: Scheme, chain: Sequence[Step], step: Step) -> float | None:
        """The room that encodings need to hold all values seen on the CPU; None if the room they have is enough."""
        search = self.searched(chain, step) if step.stage == "verify" else None
        facts = self.facts(search) if search is not None else None
        has = ROOM if scheme.room is None else scheme.room
        return None if facts is None else room_for(blame.Facts.from_json(facts).worst, has)

    def searched(self, chain: Sequence[Step], step: Step) -> Step | None:
        """The step that looks for what went wrong in a step, up to date; None if there is none, or it fails."""
        stage = {"verify": "blame", "emulate": "probe"}.get(step.stage)
        search = next((each for each in chain if each.stage == stage and each.name == step.name), None)
        if search is None:
            return None
        try:
            with self._shown(search) as started:
                bring_up_to_date(search, self._workspace, self._crew, started)
        except PipelineError as error:
            if not may_fail(step.stage, error):
                raise
            return None
        return search

    def is_lost_at_the_edge(self, chain: Sequence[Step], step: Step) -> bool:
        """Whether no precision can keep a state accurate enough, as rounding an input alone loses more."""
        search = self.searched(chain, step) if step.stage == "emulate" else None
        facts = self.facts(search) if search is not None else None
        return facts is not None and probe.Facts.from_json(facts).edge_db is not None

    def foretold(self, chain: Sequence[Step]) -> tuple[Forecast, ...]:
        """The harmful forecasts for a precision."""
        return harmful(told for part in self._quantized(chain) for told in part.forecasts)

    def _quantized(self, chain: Sequence[Step]) -> list[quantized.PartFacts]:
        """What quantize made for each bucket."""
        facts = next((self.facts(step) for step in chain if step.stage == "quantize"), None)
        return [part.facts for part in quantized.Facts.from_json(facts).parts.values()] if facts else []

    def reached(self, missed: Missed) -> tuple[int, float]:
        """How far down the ladder a precision came, and the SQNR in dB that it missed with."""
        stage = next(number for number, stages in enumerate(_WAVES) if missed.step.stage in stages)
        if missed.miss.sqnr_db is not None:
            return stage, missed.miss.sqnr_db
        figures = [] if missed.failed else list(figures_of(missed.step, self.facts(missed.step)).values())
        known = [db for db in figures if db is not None]
        return (stage, min(known)) if figures and len(known) == len(figures) else (stage, NO_NUMBER)

    def attempt(self, scheme: Scheme, chain: Sequence[Step], missed: Missed | None) -> Attempt:
        """What to tell the user of a precision: its figures so far, its bytes, and what it misses or is short of."""
        figures: dict[str, float | None] = {}
        done = _WAVES.index(next(wave for wave in _WAVES if missed.step.stage in wave)) if missed else len(_WAVES)
        for step in chain:
            if any(step.stage in wave for wave in _WAVES[: done + 1]) and not (missed and missed.failed):
                for rung, db in figures_of(step, self.facts(step)).items():
                    known = figures.get(rung, db)
                    figures[rung] = None if db is None or known is None else min(known, db)
        ordered = {rung: figures[rung] for rung in (*RUNGS[3:], "total", QUIET) if rung in figures}
        sizes = [part.constant_bytes for part in self._quantized(chain)]
        at, why = (missed.step.id, missed.miss.error.what) if missed else ("", "")
        return Attempt(label(scheme), at, why, {**ordered}, max(sizes, default=0))

    def facts(self, step: Step) -> Mapping[str, Json] | None:
        """The facts of what a step produced last."""
        manifest = read_manifest(self._workspace.current(step))
        return manifest.facts if manifest is not None else None
