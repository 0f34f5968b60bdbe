"""Looks for another precision when a component misses a gate with its default one, or with the one a search found.

A climb judges a precision by building it. The steps and their keys are those of a configuration with this scheme, and
the gates are the ones that decide what ships. So an accepted precision ships, a tried one is in the store and is not
built again, and a user who writes the scheme into the configuration gets the same artifacts and figures.

Lets one thread of one process at a time decide on the precision of a component.

The last outputs of a component's steps are those of the precision that was tried last. So a build that wants one of
these steps waits while another process climbs. Otherwise the step would use a precision that is only being tried, and
the climb would judge an output that it did not make.

Makes the errors for a climb that found no precision that keeps to the gates.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pipeline.build import gates
from pipeline.build.bring import Shown, bring_up_to_date, is_current, needed
from pipeline.build.chains import able_of, chain_of, method_of
from pipeline.build.crew import Crew
from pipeline.build.explain_miss import explain, is_of_integers, judge, wanting
from pipeline.build.findings import ON_CHIP, ON_CPU, Findings, Missed, Waves, may_fail
from pipeline.build.remedies import (
    Able,
    Tried,
    is_float,
    is_last,
    label,
    may_be_cured,
    may_go_on,
    next_scheme,
    unmoved,
    worth_most,
)
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import probe
from pipeline.contracts import quantize as quantized
from pipeline.contracts.climb import Attempt
from pipeline.contracts.climb import Facts as Climbed
from pipeline.contracts.forecast import OF_WHOLE_NUMBERS
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
from pipeline.qnn.compiling import hints
from pipeline.store import locks
from pipeline.store.durable import disk_errors
from pipeline.store.store import DamagedError

_CHEAP = ("quantize", "verify")
"""Stages before anything is compiled. A try that ends in one does not count toward the tries for a larger margin."""
_THREADS = 32


@dataclass(frozen=True)
class _Fit:
    """A precision that keeps to the gates, its steps, and its least SQNR against the original in dB.

    `alike`: an application reads the same off its outputs as off the original's. `waits`: on the CPU the precision
    already falls short of what a default aims at, so it is compiled only if nothing better is found.
    """

    scheme: Scheme
    chain: Sequence[Step]
    total_db: float
    alike: bool
    waits: bool = False


class _Course:
    """The attempts of a climb so far. `attempts` and `tried` have one entry per scheme; `now` is the last."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.tried: list[Tried] = []
        self.fits: list[_Fit] = []
        self.now: Scheme | None = None
        self._schemes: list[Scheme] = []

    def note(self, scheme: Scheme, attempt: Attempt, tried: Tried | None) -> None:
        """Add an attempt, or replace the earlier one with the same scheme."""
        place = self._schemes.index(scheme) if scheme in self._schemes else len(self._schemes)
        self._schemes[place : place + 1] = [scheme]
        self.attempts[place : place + 1] = [attempt]
        self.tried[place : place + 1] = [tried] if tried is not None else []

    def attempt(self, scheme: Scheme) -> Attempt:
        """The attempt that was made with a scheme."""
        return self.attempts[self._schemes.index(scheme)]

    def compiled(self) -> list[Tried]:
        """The tries, without those that wait to be compiled."""
        waiting = [fit.scheme for fit in self.fits if fit.waits]
        return [each for each in self.tried if each.scheme not in waiting]


class Climber:
    """Climbs for the components of one build. Safe to use from several threads: one climbs for all of a component."""

    def __init__(self, steps: Mapping[str, Step], workspace: Workspace, crew: Crew, shown: Shown) -> None:
        self._steps = steps
        self._workspace = workspace
        self._crew = crew
        self._shown = shown
        self._locks = ClimbLocks(steps, workspace)
        self._found = Findings(workspace, crew, shown)
        self._refused: dict[str, PipelineError] = {}
        self._beyond: set[str] = set()  # of which a try missed what no precision cures

    def may_climb(self, step: Step) -> bool:
        """Whether another precision may be tried for what a step misses."""
        quantize = self._quantize(step)
        stages = {stage for wave in (*ON_CPU, *ON_CHIP) for stage in wave}
        return step.stage in stages and quantize is not None and quantize.climb is not None

    def wishes(self, step: Step) -> bool:
        """Whether a step keeps to its gates by too small a margin, and no climb looked for a larger one yet."""
        if not self.may_climb(step) or wanting(step, self._workspace) is None:
            return False
        quantize = self._quantize(step)
        resolved = resolve(quantize, self._workspace) if quantize is not None else None
        return resolved is not None and climbing.climbed(resolved.climb_key, self._workspace) is None

    def beside(self, step: Step) -> AbstractContextManager[None]:
        """A context to bring a step up to date in. Entering it waits while another process climbs for the component."""
        return self._locks.beside(step, self._quantize(step))

    def changed(self, step: Step) -> bool:
        """Whether a step's component was climbing in this build while the step ran; waits until that has ended."""
        return self._locks.climbed_here(self._quantize(step))

    def climb(self, step: Step) -> bool:
        """Find a precision that keeps to all gates for the component of a step; False if no precision can.

        After True, all steps of the component are up to date.

        Raises:
            VerificationError: every precision that was tried misses a gate, or the time to try them is spent.
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
        able, course, for_margin = able_of(quantize), _Course(), 0
        budget_s, started = (component.budget_minutes or 0) * 60, time.monotonic()
        tell = self._workspace.store.tell
        while True:
            while scheme is not None:
                tell(f"{_name(quantize)}: trying {label(scheme)}") if course.tried else None
                chain = chain_of(quantize, scheme, self._steps)
                had = bool(course.fits)
                missed = self._try(scheme, chain, course, wait=True)
                for_margin += had and not (missed and missed.step.stage in _CHEAP)
                if missed is None and not course.attempt(scheme).missed:
                    break
                if missed and missed.miss.lacking and not course.fits:
                    raise missed.miss.error
                before, left = course.compiled()[:-1], missed.miss.left if missed else None
                if missed and not may_be_cured(missed.miss.rung, scheme, before, left, float16=able.float16):
                    if course.fits:
                        break  # what waits is compiled now, and tells whether this precision alone is wrong
                    self._beyond.add(quantize.id)
                    return False
                if missed and (incurable := self._incurable(chain, missed, component.thresholds)):
                    if course.fits:
                        break
                    raise incurable
                tell(f"{_name(quantize)}: {course.attempt(scheme).line()}")
                if missed and missed.miss.state and self._is_lost(chain, missed, course):
                    raise nothing_keeps(_name(quantize), course.attempts, course.tried, able)
                scheme = next_scheme(course.tried, able, last=bool(course.fits) and is_last(for_margin))
                spent_s, alike = time.monotonic() - started, any(fit.alike for fit in course.fits)
                if course.fits and not may_go_on(for_margin, spent_s, budget_s, alike=alike):
                    break
                if scheme is not None and not course.fits and spent_s > budget_s:
                    raise out_of_time(_name(quantize), course.attempts, scheme, component.budget_minutes or 0)
            best = self._best(quantize, course)
            if best is not None:
                self._settle(quantize, resolved, best, course)
                return True
            scheme = next_scheme(course.tried, able)
            if all(each.left_to_cpu for each in course.tried):
                self._beyond.add(quantize.id)
                return False
            if scheme is None:
                raise nothing_keeps(_name(quantize), course.attempts, course.tried, able)
            if time.monotonic() - started > budget_s:
                raise out_of_time(_name(quantize), course.attempts, scheme, component.budget_minutes or 0)

    def _try(self, scheme: Scheme, chain: Sequence[Step], course: _Course, *, wait: bool) -> Missed | None:
        """Build a precision and note the result. Returns what it misses; None if it may ship.

        With `wait`, a precision that falls short on the CPU of what a default aims at is not compiled yet: if another
        one reaches the aim, the figures of this one on the chip are not needed.
        """
        course.now = scheme
        known = [fit.total_db for fit in course.fits if wait and not fit.waits]
        missed = self._bring(chain, ON_CPU, max(known, default=None))
        made = [step for step in chain if all(step.stage not in stages for stages in ON_CHIP)]
        short = None if missed else self._found.short(made)
        waits = wait and short is not None and not self._is_emulated(chain)
        if missed is None and not waits:
            made, missed = [*chain], self._bring(chain, ON_CHIP)
            short = None if missed else self._found.short(chain)
        told = missed or short
        tried = self._found.tried(scheme, made, missed, short) if told is not None else None
        course.note(scheme, self._found.attempt(scheme, made, told), tried)
        if missed is None:
            alike = short is None or not short.miss.read
            course.fits.append(_Fit(scheme, chain, self._found.total(made), alike, waits))
        return missed

    def _is_lost(self, chain: Sequence[Step], missed: Missed, course: _Course) -> bool:
        """Whether every precision misses, the last one in float, because rounding the inputs alone loses too much.

        Looks for the nodes that went wrong, so that the error can name them.
        """
        if course.fits or missed.step.stage != "emulate" or not is_float(course.tried[-1].scheme):
            return False
        course.tried[-1].nodes()
        return self._found.is_lost_at_the_edge(chain, missed.step)

    def _is_emulated(self, chain: Sequence[Step]) -> bool:
        """Whether the emulations of a chain are up to date, so that waiting would save nothing."""
        return all(is_current(step, self._workspace) for step in chain if step.stage == "emulate")

    def _best(self, quantize: Step, course: _Course) -> _Fit | None:
        """The best precision that keeps to the gates, or a cheaper one about as good; None if the chip refuses all.

        Compiles a precision that waited if its figures on the CPU are the best.
        """
        while course.fits:
            among = [fit for fit in course.fits if fit.alike] or course.fits
            best = among[worth_most([fit.total_db for fit in among])]
            if not best.waits:
                return best
            place = course.fits.index(best)
            course.fits.remove(best)
            if self._try(best.scheme, best.chain, course, wait=False) is None:
                course.fits.insert(place, course.fits.pop())
            self._workspace.store.tell(f"{_name(quantize)}: {course.attempt(best.scheme).line()}")
        return None

    def _incurable(self, chain: Sequence[Step], missed: Missed, thresholds: Thresholds) -> PipelineError | None:
        """The error for a miss that no precision cures: QNN lacks an operator, or whole numbers go wrong first.

        Looks for wrong whole numbers only if they were forecast, or if the output that misses consists of them.
        """
        if missed.failed:
            unknown = hints.NO_OPERATOR in missed.miss.error.why and not thresholds.max_cpu_nodes
            return missed.miss.error if unknown else None
        foretold = any(told.rule in OF_WHOLE_NUMBERS for told in self._found.foretold(chain))
        if missed.step.stage != "emulate" or not (missed.miss.whole or foretold):
            return None
        search = self._found.searched(chain, missed.step)
        facts = self._found.facts(search) if search is not None else None
        found = probe.Facts.from_json(facts).first_wrong.get("compile", ()) if facts is not None else ()
        if not any(map(is_of_integers, found)):
            return None
        steps = {step.id: step for step in chain}
        return explain(missed.miss, missed.step, steps, self._workspace, self._crew, self._shown)

    def _settle(self, quantize: Step, resolved: Resolved, best: _Fit, course: _Course) -> None:
        """Keep the precision that the climb ends with, and bring its steps up to date."""
        self._record(resolved.climb_key, quantize, best.scheme, course.attempts)
        attempt = course.attempt(best.scheme)
        if course.now != best.scheme:
            self._bring(best.chain, (*ON_CPU, *ON_CHIP))
        tell = self._workspace.store.tell
        if not attempt.missed:
            tell(f"{_name(quantize)}: {attempt.line()}; this keeps to every threshold")
        else:
            tell(f"{_name(quantize)}: {attempt.label} it is: nothing that was tried is worth more than it costs")

    def _bring(self, chain: Sequence[Step], waves: Waves, more_than_db: float | None = None) -> Missed | None:
        """Bring the steps of a precision up to date, wave by wave, until one may not ship. Returns that miss.

        A precision with no more than `more_than_db` on the CPU counts as a miss, too.
        """
        for stages in waves:
            wave = [step for step in chain if step.stage in stages]
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_THREADS) as threads:
                found = [*threads.map(self._made, wave)]
            missed = [each for each in found if each is not None]
            if missed:
                return min(missed, key=lambda each: self._found.reached(each)[1])
            if stages == ("verify",) and wave and more_than_db is not None and self._found.total(wave) <= more_than_db:
                return Missed(wave[0], gates.Miss(VerificationError("this is no better on the CPU alone"), "total"))
        return None

    def _made(self, step: Step) -> Missed | None:
        try:
            with self._shown(self._steps.get(step.id, step)) as started:
                bring_up_to_date(step, self._workspace, self._crew, started)
        except (WaitingError, DamagedError):
            raise
        except PipelineError as error:
            if not may_fail(step.stage, error):
                raise
            return Missed(step, gates.Miss(error, "compile"), failed=True)
        miss = judge(step, self._workspace)
        return Missed(step, miss) if miss is not None else None

    def _record(self, key: str, quantize: Step, scheme: Scheme, attempts: Sequence[Attempt]) -> None:
        """Store the precision that the climb ends with, and its scheme as YAML for a configuration."""
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


class ClimbLocks:
    """The locks of one build's components, each by its quantize step. Safe to use from several threads."""

    def __init__(self, steps: Mapping[str, Step], workspace: Workspace) -> None:
        self._steps = steps
        self._workspace = workspace
        self._guard = threading.Lock()
        self._here: dict[str, threading.Lock] = {}

    @contextmanager
    def climbing(self, quantize: Step) -> Iterator[None]:
        """A context to climb in, for the component of a quantize step."""
        with self._guard:
            lock = self._here.setdefault(quantize.id, threading.Lock())
        with lock, self._alone(quantize):
            yield

    @contextmanager
    def beside(self, step: Step, quantize: Step | None) -> Iterator[None]:
        """A context to bring a step up to date in. Entering it waits while another process climbs for the component.

        For a quantize step the context also keeps other processes from starting a climb, which would start with it.
        """
        if quantize is None or quantize.climb is None or self._climbs_here(quantize):
            yield
        elif step.id == quantize.id:
            with self._alone(quantize):
                yield
        else:
            if self._file(quantize).exists() and quantize in needed(step, self._steps):
                with self._alone(quantize):
                    pass
            yield

    def climbed_here(self, quantize: Step | None) -> bool:
        """Whether this build began a climb for the component. Waits until that climb has ended."""
        lock = self._here.get(quantize.id) if quantize is not None else None
        if lock is None:
            return False
        with lock:
            return True

    def _climbs_here(self, quantize: Step) -> bool:
        lock = self._here.get(quantize.id)
        return lock is not None and lock.locked()

    @contextmanager
    def _alone(self, quantize: Step) -> Iterator[None]:
        """Wait until no other process decides on the precision, and keep others from it."""
        path = self._file(quantize)
        with disk_errors(self._workspace.build):
            path.parent.mkdir(parents=True, exist_ok=True)
        with locks.held(path, f"the precision of {quantize.name}", tell=self._workspace.store.tell):
            yield

    def _file(self, quantize: Step) -> Path:
        return self._workspace.build / "climbs" / f"{quantize.name.replace('/', '@')}.lock"


_MOST, _ENDS = 10, 3


def out_of_time(name: str, attempts: Sequence[Attempt], left: Scheme, minutes: int) -> VerificationError:
    """The error for a climb whose time is spent; `left` is the scheme that it would have tried next."""
    return VerificationError(
        f"no precision of {name} that was tried within {minutes} minutes keeps to its thresholds",
        why=f"tried{_listed(attempts)}",
        remedy=f"build again: what was tried is kept, and {label(left)} is next; or set quantization:"
        f" {{budget_minutes: {2 * minutes}}}",
    )


def nothing_keeps(name: str, attempts: Sequence[Attempt], tried: Sequence[Tried], able: Able) -> VerificationError:
    """The error for a climb that tried all precisions of the targets. `attempts` are the accounts of `tried`."""
    stuck = [group for in_float in (False, True) if (group := unmoved(tried, in_float=in_float))]
    failures = [each.failed for each in tried if each.failed is not None]
    why, remedies = f"tried{_listed(attempts)}", list[str]()
    why += "".join(_told_alike(group) for group in stuck)
    if failures:
        why += f"; {failures[-1].what}: {failures[-1].why}"
    if len(failures) == len(tried):
        remedies.append(f"no precision could be made, and no other cures that: {failures[-1].remedy}")
    if not able.float16:
        remedies.append("leave out targets below HTP v73, which have no float16; on them this model can't be had")
    elif len(failures) < len(tried):
        if all(each.rung == RUNGS[-1] for each in tried if each.failed is None):
            wrong = "HTP computes it wrongly in every precision they have"
        else:
            wrong = "no precision they have is fine enough for it"
        inputs_db = min((db for each in tried if (db := each.inputs_db()) is not None), default=None)
        if inputs_db is not None:
            wrong = (
                "they take inputs in float16 or 16 bit integers, and rounding the inputs, with all else in float32,"
                f" leaves {inputs_db:g} dB of the worst sample. Compute what feels that (such as the spectrum in"
                " front of a logarithm) in the application, and export the model from there on; or export it with that"
                " input, and the constants that multiply it, in two parts each, as docs/accuracy.md has it under"
                " 'Inputs in two parts'"
            )
            wrong += _told_of_choices(tried)
        elif failures:
            wrong = f"what could be made of it HTP computes wrongly, and for the rest {failures[-1].remedy}"
        remedies.append(f"this model can't be had on these targets: {wrong}")
    accepted = [number for number, each in enumerate(tried) if each.accepts]
    if accepted:
        best = max(accepted, key=lambda number: tried[number].reached)
        remedies.append(f"{attempts[best].label} comes closest, and ships with {tried[best].accepts}")
    return VerificationError(f"no precision of {name} keeps to its thresholds", why=why, remedy="; ".join(remedies))


def _told_of_choices(tried: Sequence[Tried]) -> str:
    """The remedy for a TopK or the like inside a model, if rounded inputs change the order of its values."""
    choices = next((found for each in tried if (found := each.choices()) is not None), None)
    if choices is None:
        return ""
    places = f"cut: [{', '.join(map(repr, choices))}]" if choices else "'cut'"
    return (
        ". Or, where the TopK or NonMaxSuppression inside puts what comes out in order, as the boxes of a detector, any"
        f" rounding gives another order: end the component before it with {places}, and choose in the application"
    )


def _told_alike(group: Sequence[Tried]) -> str:
    """A sentence on tries that all come to the same figure, with the forecast that explains it."""
    low, high = min(each.reached[1] for each in group), max(each.reached[1] for each in group)
    kind = "in fp16 but for some nodes" if is_float(group[0].scheme) else "in integers but for some nodes"
    told = (
        f"; {len(group)} that are {kind} come to {low:.1f} to {high:.1f} dB at the {group[0].rung} rung whatever they"
        " change, so no more like them were tried"
    )
    foretold = [each for each in group[-1].foretold if each.rule == "fp16_overflow"]
    if foretold:
        told += f"; foretold was {max(foretold, key=lambda each: each.beyond).line()}"
    return told


def _listed(attempts: Sequence[Attempt]) -> str:
    """A line for each attempt. Of many attempts, only the first, best and last: the log of the build has all."""
    places = set(range(len(attempts)))
    if len(attempts) > _MOST:
        best = sorted(places, key=lambda place: _least_db(attempts[place]), reverse=True)
        places = {*range(_ENDS), *best[:_ENDS], *range(len(attempts) - _ENDS, len(attempts))}
    lines, before = [], -1
    for place in sorted(places):
        if place > before + 1:
            lines.append(f"... {place - before - 1} more, none of them better, are in the log of the build")
        lines.append(attempts[place].line())
        before = place
    return "".join(f"\n    | {line}" for line in lines)


def _least_db(attempt: Attempt) -> float:
    """The least figure of an attempt over all its rungs."""
    return min((-math.inf if db is None else db for db in attempt.sqnr_db.values()), default=-math.inf)
