"""Looks for a precision that keeps to the gates where the one that was built by default, or searched for, does not.

A precision is judged by being built: its steps are those that a configuration with this scheme would have, with the
same keys, and the gates are the ones that decide what ships. So what is accepted here ships, what was tried is in the
store and is not tried again, and whoever writes the scheme into the configuration gets the same artifacts and figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial

from pipeline.build import gates, remedies
from pipeline.build.bring import Shown, bring_up_to_date, is_current
from pipeline.build.chains import QUIET, able_of, chain_of, figures_of, method_of
from pipeline.build.climb_locks import ClimbLocks
from pipeline.build.crew import Crew
from pipeline.build.explain_miss import explain, is_of_integers, judge, nodes_of, wanting
from pipeline.build.nothing_keeps import nothing_keeps, out_of_time
from pipeline.build.remedies import NO_NUMBER, Tried, label, may_be_cured, may_fail, next_scheme
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import blame, probe
from pipeline.contracts import quantize as quantized
from pipeline.contracts.climb import Attempt
from pipeline.contracts.climb import Facts as Climbed
from pipeline.contracts.forecast import OF_WHOLE_NUMBERS, Forecast, harmful
from pipeline.contracts.scheme import Scheme
from pipeline.errors import PipelineError, VerificationError, WaitingError
from pipeline.frozen import dataclass
from pipeline.graph.quantization.scheme_text import as_yaml
from pipeline.ladder import RUNGS
from pipeline.model import Json, Manifest
from pipeline.plan import climbing, stage_params
from pipeline.plan.resolve import Resolved, resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn import hints
from pipeline.store.manifests import read_manifest
from pipeline.store.store import DamagedError

WAVES = (("quantize",), ("verify",), ("packing",), ("context",), ("emulate",))
"""Stages that make and judge a precision, those that cost least first: what misses on the CPU is not compiled."""
_THREADS = 32


@dataclass(frozen=True)
class _Miss:
    """The first step of a chain that may not ship, or could not be made."""

    step: Step
    miss: gates.Miss
    failed: bool = False


@dataclass(frozen=True)
class _Fit:
    """A precision that keeps to the gates, what it tells of itself, and its least SQNR against the original in dB.

    `alike`: what an application reads off it is what it reads off the original.
    """

    scheme: Scheme
    chain: Sequence[Step]
    attempt: Attempt
    total_db: float
    alike: bool


class Climber:
    """Climbs for the components of one build. Safe to use from several threads: one climbs for all of a component."""

    def __init__(self, steps: Mapping[str, Step], workspace: Workspace, crew: Crew, shown: Shown) -> None:
        self._steps = steps
        self._workspace = workspace
        self._crew = crew
        self._shown = shown
        self._locks = ClimbLocks(steps, workspace)
        self._refused: dict[str, PipelineError] = {}
        self._beyond: set[str] = set()  # of which a try missed what no precision cures

    def may_climb(self, step: Step) -> bool:
        """Whether another precision may be tried for what a step misses."""
        quantize = self._quantize(step)
        stages = {stage for wave in WAVES for stage in wave}
        return step.stage in stages and quantize is not None and quantize.climb is not None

    def wishes(self, step: Step) -> bool:
        """Whether a step keeps to its gates by little, and nothing was looked for yet that keeps to them by more."""
        if not self.may_climb(step) or wanting(step, self._workspace) is None:
            return False
        quantize = self._quantize(step)
        resolved = resolve(quantize, self._workspace) if quantize is not None else None
        return resolved is not None and climbing.climbed(resolved.climb_key, self._workspace) is None

    def beside(self, step: Step) -> AbstractContextManager[None]:
        """Bring a step up to date inside of this: it waits while another process climbs for the step's component."""
        return self._locks.beside(step, self._quantize(step))

    def changed(self, step: Step) -> bool:
        """Whether a step's component was climbing in this build while the step ran; waits until that has ended."""
        return self._locks.climbed_here(self._quantize(step))

    def climb(self, step: Step) -> bool:
        """Bring the component of a step that missed a gate to a precision that keeps to all; False if none can.

        All its steps are up to date then.

        Raises:
            VerificationError: nothing that was tried does, or there was no time to try it all.
        """
        quantize = self._quantize(step)
        assert quantize is not None
        with self._locks.climbing(quantize):
            if quantize.id in self._refused:
                raise self._refused[quantize.id]
            if is_current(step, self._workspace) and judge(step, self._workspace) is None and not self.wishes(step):
                return True
            if quantize.id in self._beyond:
                return False
            try:
                return self._climb(quantize)
            except PipelineError as error:
                self._refused[quantize.id] = error
                raise

    def _quantize(self, step: Step) -> Step | None:
        return self._steps.get(f"quantize:{step.config.name}/{step.component}")

    def _climb(self, quantize: Step) -> bool:
        resolved = resolve(quantize, self._workspace)
        assert resolved is not None
        assert quantize.component is not None
        component = quantize.config.components[quantize.component]
        assert isinstance(resolved.params, quantized.Params)
        scheme: Scheme | None = resolved.params.scheme
        able, tried, attempts, fits = able_of(quantize), list[Tried](), list[Attempt](), list[_Fit]()
        budget_s, started, for_margin = (component.budget_minutes or 0) * 60, time.monotonic(), 0
        tell = self._workspace.store.tell
        while scheme is not None:
            tell(f"{_name(quantize)}: trying {label(scheme)}") if tried else None
            chain = chain_of(quantize, scheme, self._steps)
            missed = self._bring(chain, max((fit.total_db for fit in fits), default=None))
            # A try that ends before anything is compiled doesn't count.
            for_margin += bool(fits) and not (missed and missed.step.stage in remedies.CHEAP)
            short = None if missed else self._short(chain)
            attempts.append(self._attempt(scheme, chain, missed or short))
            if missed is None:
                alike = short is None or not short.miss.read
                fits.append(_Fit(scheme, chain, attempts[-1], self._total(chain), alike))
                if short is None:
                    break
            # What QNN has no operator for is in no precision another one.
            left = missed.miss.left if missed and hints.NO_OPERATOR not in missed.miss.error.why else None
            if missed and not may_be_cured(missed.miss.rung, scheme, tried, left, float16=able.float16):
                self._beyond.add(quantize.id)
                return False
            if missed and (incurable := self._incurable(chain, missed, component.thresholds)):
                if fits:
                    break
                raise incurable
            tell(f"{_name(quantize)}: {attempts[-1].line()}")
            tried.append(self._tried(scheme, chain, missed, short))
            scheme = next_scheme(tried, able, last=bool(fits) and remedies.is_last(for_margin))
            spent_s = time.monotonic() - started
            if fits and not remedies.may_go_on(for_margin, spent_s, budget_s, alike=any(fit.alike for fit in fits)):
                break
            if scheme is not None and not fits and spent_s > budget_s:
                raise out_of_time(_name(quantize), attempts, scheme, component.budget_minutes or 0)
        if not fits:
            raise nothing_keeps(_name(quantize), attempts, tried, able)
        self._settle(quantize, resolved, fits, attempts)
        return True

    def _incurable(self, chain: Sequence[Step], missed: _Miss, thresholds: Thresholds) -> PipelineError | None:
        """What to say of a miss that no precision cures: QNN has no such operator, or whole numbers go wrong first.

        These are looked for where they were foretold, or an output is of them.
        """
        if missed.failed:
            unknown = hints.NO_OPERATOR in missed.miss.error.why and not thresholds.max_cpu_nodes
            return missed.miss.error if unknown else None
        foretold = any(told.rule in OF_WHOLE_NUMBERS for told in self._foretold(chain))
        if missed.step.stage != "emulate" or not (missed.miss.whole or foretold):
            return None
        search = self._searched(chain, missed.step)
        facts = self._facts(search) if search is not None else None
        found = probe.Facts.from_json(facts).first_wrong.get("compile", ()) if facts is not None else ()
        if not any(map(is_of_integers, found)):
            return None
        steps = {step.id: step for step in chain}
        return explain(missed.miss, missed.step, steps, self._workspace, self._crew, self._shown)

    def _settle(self, quantize: Step, resolved: Resolved, fits: Sequence[_Fit], attempts: Sequence[Attempt]) -> None:
        """Take the best of what keeps to the gates, the cheapest if it is as good; its steps are what is built then."""
        among = [fit for fit in fits if fit.alike] or fits
        best = among[remedies.worth_most([fit.total_db for fit in among])]
        self._record(resolved.climb_key, quantize, best.scheme, attempts)
        last = attempts[-1].label == best.attempt.label
        if not last:
            self._bring(best.chain)
        tell = self._workspace.store.tell
        if last and not best.attempt.missed:
            tell(f"{_name(quantize)}: {best.attempt.line()}; this keeps to every threshold")
        else:
            tell(f"{_name(quantize)}: {best.attempt.label} it is: nothing that was tried is worth more than it costs")

    def _bring(self, chain: Sequence[Step], more_than_db: float | None = None) -> _Miss | None:
        """Bring the steps of a precision up to date; the first that may not ship ends it.

        So does a precision that comes to no more than `more_than_db` on the CPU already.
        """
        for stages in WAVES:
            wave = [step for step in chain if step.stage in stages]
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_THREADS) as threads:
                found = [*threads.map(self._made, wave)]
            missed = [each for each in found if each is not None]
            if missed:
                return min(missed, key=lambda each: self._reached(each)[1])
            if stages == ("verify",) and wave and more_than_db is not None and self._total(wave) <= more_than_db:
                return _Miss(wave[0], gates.Miss(VerificationError("this is no better on the CPU alone"), "total"))
        return None

    def _short(self, chain: Sequence[Step]) -> _Miss | None:
        """The first step that keeps to the gates by less than a default should; the chip's where the CPU's are fine."""
        found = ((step, wanting(step, self._workspace)) for step in chain if step.stage in ("verify", "emulate"))
        missed = [_Miss(step, miss) for step, miss in found if miss is not None]
        return min(missed, key=lambda each: (not each.miss.read, self._reached(each)), default=None)

    def _total(self, chain: Sequence[Step]) -> float:
        """The least SQNR of the last rung that was measured against the original, quieter samples among all, in dB."""
        last = [step for step in chain if step.stage == "emulate"] or [step for step in chain if step.stage == "verify"]
        found = [figures_of(step, self._facts(step)).get(what) for step in last for what in ("total", QUIET)]
        return min((db for db in found if db is not None), default=NO_NUMBER)

    def _made(self, step: Step) -> _Miss | None:
        try:
            with self._shown(self._steps.get(step.id, step)) as started:
                bring_up_to_date(step, self._workspace, self._crew, started)
        except (WaitingError, DamagedError):
            raise
        except PipelineError as error:
            if not may_fail(step.stage, error):
                raise
            return _Miss(step, gates.Miss(error, "compile"), failed=True)
        miss = judge(step, self._workspace)
        return _Miss(step, miss) if miss is not None else None

    def _tried(self, scheme: Scheme, chain: Sequence[Step], missed: _Miss | None, short: _Miss | None) -> Tried:
        """What was found about a miss, or about too small a margin, by looking for it now."""
        found = missed or short
        assert found is not None
        reached = self._reached(missed) if missed else (len(WAVES), self._total(chain))
        lost = list[float]()
        miss = found.miss
        nodes: Callable[[], tuple[str, ...]] = cache(partial(self._to_blame, chain, found.step, lost))
        if found.failed or miss.left is not None:
            nodes = partial(tuple, miss.left or ())
        return Tried(
            scheme, miss.rung or "compile", reached, nodes, self._foretold(chain), miss.state, miss.read, miss.accepts,
            miss.error if found.failed or not miss.rung else None, lambda: min(lost, default=None), not miss.rung,
            missed is None or miss.sqnr_db is not None,
        )  # fmt: skip

    def _to_blame(self, chain: Sequence[Step], step: Step, lost: list[float]) -> tuple[str, ...]:
        """The nodes that went wrong, the worst first; `lost` gets what rounding the inputs leaves, in dB."""
        search = self._searched(chain, step)
        facts = self._facts(search) if search is not None else None
        if search is None or facts is None:
            return ()
        if search.stage == "blame":
            return nodes_of(blame.Facts.from_json(facts).worst)
        found = probe.Facts.from_json(facts)
        if found.inputs_db is not None:
            lost.append(found.inputs_db)
        return nodes_of(found.first_wrong.get("compile", ()))

    def _searched(self, chain: Sequence[Step], step: Step) -> Step | None:
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

    def _foretold(self, chain: Sequence[Step]) -> tuple[Forecast, ...]:
        return harmful(told for part in self._quantized(chain) for told in part.forecasts)

    def _quantized(self, chain: Sequence[Step]) -> list[quantized.PartFacts]:
        """What was quantized for each bucket."""
        facts = next((self._facts(step) for step in chain if step.stage == "quantize"), None)
        return [part.facts for part in quantized.Facts.from_json(facts).parts.values()] if facts else []

    def _reached(self, missed: _Miss) -> tuple[int, float]:
        """How far down the ladder a precision came, and the SQNR in dB that it missed with."""
        stage = next(number for number, stages in enumerate(WAVES) if missed.step.stage in stages)
        if missed.miss.sqnr_db is not None:
            return stage, missed.miss.sqnr_db
        figures = [] if missed.failed else list(figures_of(missed.step, self._facts(missed.step)).values())
        known = [db for db in figures if db is not None]
        return (stage, min(known)) if figures and len(known) == len(figures) else (stage, NO_NUMBER)

    def _attempt(self, scheme: Scheme, chain: Sequence[Step], missed: _Miss | None) -> Attempt:
        figures: dict[str, float | None] = {}
        done = WAVES.index(next(wave for wave in WAVES if missed.step.stage in wave)) if missed else len(WAVES)
        for step in chain:
            if any(step.stage in wave for wave in WAVES[: done + 1]) and not (missed and missed.failed):
                for rung, db in figures_of(step, self._facts(step)).items():
                    known = figures.get(rung, db)
                    figures[rung] = None if db is None or known is None else min(known, db)
        ordered = {rung: figures[rung] for rung in (*RUNGS[2:], "total", QUIET) if rung in figures}
        sizes = [sum(count.bytes for count in part.constants.values()) for part in self._quantized(chain)]
        at, why = (missed.step.id, missed.miss.error.what) if missed else ("", "")
        return Attempt(label(scheme), at, why, {**ordered}, max(sizes, default=0))

    def _facts(self, step: Step) -> Mapping[str, Json] | None:
        manifest = read_manifest(self._workspace.current(step))
        return manifest.facts if manifest is not None else None

    def _record(self, key: str, quantize: Step, scheme: Scheme, attempts: Sequence[Attempt]) -> None:
        """Remember what was climbed to, with the scheme as a configuration takes it."""
        assert quantize.component is not None
        store = self._workspace.store
        how = method_of(quantize)
        percentile = stage_params.percentile(how)
        method: dict[str, Json] = {"method": how.method} | ({"percentile": percentile} if percentile else {})
        with self._workspace.scratch.folder() as folder:
            text = as_yaml(scheme, quantize.component, method)
            (folder / "quantization.yaml").write_text(text, "utf-8", newline="\n")
            files = store.adopt(folder, {})
        facts = Climbed(scheme, tuple(attempts))
        store.record(Manifest(climbing.STAGE, key, files, facts.to_json()))


def _name(quantize: Step) -> str:
    return f"{quantize.config.name}/{quantize.component}"
