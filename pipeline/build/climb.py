"""Looks for a precision that keeps to the gates where the one that was built by default, or searched for, does not.

A precision is judged by being built: its steps are those that a configuration with this scheme would have, with the
same keys, and the gates are the ones that decide what ships. So what is accepted here ships, what was tried is in the
store and is not tried again, and whoever writes the scheme into the configuration gets the same artifacts and figures.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Literal, cast

from pipeline.build import gates
from pipeline.build.bring import bring_up_to_date, is_current
from pipeline.build.crew import Crew
from pipeline.build.explain_miss import judge
from pipeline.build.remedies import Able, Tried, label, next_scheme
from pipeline.config.quantization import (
    Activations,
    Auto,
    BlockWeights,
    NodesRule,
    OpsRule,
    Quantization,
    TensorsRule,
    Weights,
)
from pipeline.config.quantization import Rule as WrittenRule
from pipeline.contracts import blame, emulate, probe, verify
from pipeline.contracts import quantize as quantized
from pipeline.contracts.blame import RowFacts
from pipeline.contracts.climb import Attempt
from pipeline.contracts.climb import Facts as Climbed
from pipeline.contracts.forecast import Forecast, harmful
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.errors import (
    CompileError,
    ModelError,
    PipelineError,
    QuantizationError,
    VerificationError,
    WaitingError,
)
from pipeline.frozen import dataclass
from pipeline.graph.quantization.scheme_text import as_yaml
from pipeline.ladder import RUNGS
from pipeline.model import Json, Manifest
from pipeline.plan import climbing, stage_params
from pipeline.plan.planner import plan
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import FOR_SEARCH, Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn import catalog
from pipeline.qnn.target import WIDE_PRODUCTS_HTP_ARCH
from pipeline.store.manifests import read_manifest
from pipeline.store.store import DamagedError

WAVES = (("quantize",), ("verify",), ("packing",), ("context",), ("emulate",))
"""Stages that make and judge a precision, those that cost least first: what misses on the CPU is not compiled."""
CURABLE = ("quantization", "compile", "total")
"""Rungs that another precision can cure. It does not make QNN take an operator, nor a model keep its padding out."""
_THREADS = 32
FAILURES = (CompileError, ModelError, QuantizationError, VerificationError)
"""What a precision may fail with that another one does not."""
_NODE = re.compile(r"'(.*)' \([^ ]+\)")


@dataclass(frozen=True)
class _Miss:
    """The first step of a chain that may not ship, or could not be made."""

    step: Step
    miss: gates.Miss
    failed: bool = False


class Climber:
    """Climbs for the components of one build. Safe to use from several threads: one climbs for all of a component."""

    def __init__(
        self, steps: Mapping[str, Step], workspace: Workspace, crew: Crew, started: Callable[[Step], None]
    ) -> None:
        self._steps = steps
        self._workspace = workspace
        self._crew = crew
        self._started = started
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._refused: dict[str, PipelineError] = {}

    def may_climb(self, step: Step) -> bool:
        """Whether another precision may be tried for what a step misses."""
        quantize = self._quantize(step)
        stages = {stage for wave in WAVES for stage in wave}
        return step.stage in stages and quantize is not None and quantize.climb is not None

    def changed(self, step: Step) -> bool:
        """Whether a step's component was climbing while the step ran; waits until that has ended."""
        quantize = self._quantize(step)
        lock = self._locks.get(quantize.id) if quantize is not None else None
        if lock is None:
            return False
        with lock:
            return True

    def climb(self, step: Step) -> bool:
        """Bring the component of a step that missed a gate to a precision that keeps to all; False if none can.

        All its steps are up to date then.

        Raises:
            VerificationError: nothing that was tried does, or there was no time to try it all.
        """
        quantize = self._quantize(step)
        assert quantize is not None
        with self._lock:
            lock = self._locks.setdefault(quantize.id, threading.Lock())
        with lock:
            if quantize.id in self._refused:
                raise self._refused[quantize.id]
            if is_current(step, self._workspace) and judge(step, self._workspace) is None:
                return True
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
        scheme = resolved.params.scheme
        able, tried, attempts = _able(quantize), list[Tried](), list[Attempt]()
        budget_s = (component.budget_minutes or 0) * 60
        until = time.monotonic() + budget_s
        tell = self._workspace.store.tell
        while scheme is not None:
            chain = _chain(quantize, scheme, self._steps)
            missed = self._bring(chain)
            attempts.append(self._attempt(scheme, chain, missed))
            if missed is None:
                self._record(resolved.climb_key, quantize, scheme, attempts)
                tell(f"{_name(quantize)}: {attempts[-1].line()}; this keeps to every threshold")
                return True
            if missed.miss.rung not in CURABLE and not tried:
                return False
            tell(f"{_name(quantize)}: {attempts[-1].line()}")
            tried.append(self._tried(scheme, chain, missed))
            scheme = next_scheme(tried, able)
            if scheme is not None and time.monotonic() > until:
                raise self._out_of_time(quantize, attempts, scheme)
            if scheme is not None:
                tell(f"{_name(quantize)}: trying {label(scheme)}")
        raise self._nothing_keeps(quantize, attempts, tried, able)

    def _bring(self, chain: Sequence[Step]) -> _Miss | None:
        """Bring the steps of a precision up to date; the first that may not ship ends it."""
        for stages in WAVES:
            wave = [step for step in chain if step.stage in stages]
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_THREADS) as threads:
                found = [*threads.map(self._made, wave)]
            missed = [each for each in found if each is not None]
            if missed:
                return min(missed, key=lambda each: self._reached(each)[1])
        return None

    def _made(self, step: Step) -> _Miss | None:
        started = partial(self._started, self._steps.get(step.id, step))
        try:
            bring_up_to_date(step, self._workspace, self._crew, started)
        except (WaitingError, DamagedError):
            raise
        except FAILURES as error:
            return _Miss(step, gates.Miss(error, "compile"), failed=True)
        miss = judge(step, self._workspace)
        return _Miss(step, miss) if miss is not None else None

    def _tried(self, scheme: Scheme, chain: Sequence[Step], missed: _Miss) -> Tried:
        """What was found about a miss, by looking for it now."""
        reached = self._reached(missed)
        nodes = tuple if missed.failed else cache(partial(self._to_blame, chain, missed.step))
        return Tried(scheme, missed.miss.rung, reached, nodes, self._foretold(chain), missed.miss.state)

    def _to_blame(self, chain: Sequence[Step], step: Step) -> tuple[str, ...]:
        """The nodes that went wrong, the worst first."""
        stage = {"verify": "blame", "emulate": "probe"}.get(step.stage)
        search = next((each for each in chain if each.stage == stage and each.name == step.name), None)
        if search is None:
            return ()
        try:
            bring_up_to_date(search, self._workspace, self._crew, partial(self._started, search))
        except FAILURES:
            return ()
        facts = self._facts(search)
        if facts is None:
            return ()
        if stage == "blame":
            return _nodes(blame.Facts.from_json(facts).worst)
        return _nodes(probe.Facts.from_json(facts).first_wrong.get("compile", ()))

    def _foretold(self, chain: Sequence[Step]) -> tuple[Forecast, ...]:
        return harmful(told for part in self._quantized(chain) for told in part.forecasts)

    def _quantized(self, chain: Sequence[Step]) -> list[quantized.PartFacts]:
        """What was quantized for each bucket."""
        facts = next((self._facts(step) for step in chain if step.stage == "quantize"), None)
        return [part.facts for part in quantized.Facts.from_json(facts).parts.values()] if facts else []

    def _reached(self, missed: _Miss) -> tuple[int, float]:
        """How far down the ladder a precision came, and the SQNR in dB that it missed with."""
        stage = next(number for number, stages in enumerate(WAVES) if missed.step.stage in stages)
        figures = [] if missed.failed else list(_figures(missed.step, self._facts(missed.step)).values())
        known = [db for db in figures if db is not None]
        return (stage, min(known)) if figures and len(known) == len(figures) else (stage, -1e9)

    def _attempt(self, scheme: Scheme, chain: Sequence[Step], missed: _Miss | None) -> Attempt:
        figures: dict[str, float | None] = {}
        done = WAVES.index(next(wave for wave in WAVES if missed.step.stage in wave)) if missed else len(WAVES)
        for step in chain:
            if any(step.stage in wave for wave in WAVES[: done + 1]) and not (missed and missed.failed):
                for rung, db in _figures(step, self._facts(step)).items():
                    known = figures.get(rung, db)
                    figures[rung] = None if db is None or known is None else min(known, db)
        ordered = {rung: figures[rung] for rung in (*RUNGS[2:], "total") if rung in figures}
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
        how = _method(quantize)
        percentile = stage_params.percentile(how)
        method: dict[str, Json] = {"method": how.method} | ({"percentile": percentile} if percentile else {})
        with self._workspace.scratch.folder() as folder:
            text = as_yaml(scheme, quantize.component, method)
            (folder / "quantization.yaml").write_text(text, "utf-8", newline="\n")
            files = store.adopt(folder, {})
        facts = Climbed(scheme, tuple(attempts))
        store.record(Manifest(climbing.STAGE, key, files, facts.to_json()))

    def _out_of_time(self, quantize: Step, attempts: Sequence[Attempt], left: Scheme) -> VerificationError:
        assert quantize.component is not None
        minutes = quantize.config.components[quantize.component].budget_minutes or 0
        return VerificationError(
            f"no precision of {_name(quantize)} that was tried within {minutes} minutes keeps to its thresholds",
            why=f"tried{_listed(attempts)}",
            remedy=f"build again: what was tried is kept, and {label(left)} is next; or set quantization:"
            f" {{budget_minutes: {2 * minutes}}}",
        )

    def _nothing_keeps(
        self, quantize: Step, attempts: Sequence[Attempt], tried: Sequence[Tried], able: Able
    ) -> VerificationError:
        best = max(range(len(tried)), key=lambda number: tried[number].reached)
        remedy = "this model can't be had on these targets: HTP computes it wrongly in every precision they have"
        if not able.float16:
            remedy = "leave out targets below HTP v73, which have no float16; on them this model can't be had"
        elif tried[best].reached[1] >= gates.NOISE_DB:
            kept = ", ".join(f"{rung}_db: {int(db)}" for rung, db in attempts[best].sqnr_db.items() if db is not None)
            remedy += f"; {attempts[best].label} comes closest, and ships with thresholds: {{{kept}}}"
        return VerificationError(
            f"no precision of {_name(quantize)} keeps to its thresholds",
            why=f"tried{_listed(attempts)}",
            remedy=remedy,
        )


def _chain(quantize: Step, scheme: Scheme, wanted: Mapping[str, Step]) -> list[Step]:
    """The steps of a component as a configuration with this scheme would have them, of those that are wanted."""
    config, name = quantize.config, quantize.component
    assert name is not None
    explicit = replace(
        _method(quantize),
        activations=cast("Activations", scheme.activations),
        weights=_written_weights(scheme.weights, scheme.block),
        rounding=scheme.rounding,
        clip=scheme.clip,
        per_channel=scheme.per_channel,
        wide_products=scheme.wide_products,
        overrides=tuple(map(_written, scheme.overrides)),
    )
    component = replace(config.components[name], quantization=explicit, budget_minutes=None)
    changed = replace(config, components={**config.components, name: component})
    return [step for step in plan(changed) if step.component == name and step.id in wanted]


def _written_weights(kind: str, block: int | None) -> Weights:
    return BlockWeights(kind, block) if block is not None else cast("Weights", kind)


def _written(rule: Rule) -> WrittenRule:
    """A rule of a scheme as a configuration has it."""
    activations = cast("Activations | None", rule.activations)
    weights = _written_weights(rule.weights, rule.block) if rule.weights is not None else None
    precision: Literal["fp16"] | None = "fp16" if rule.precision else None
    if rule.tensors:
        return TensorsRule(rule.tensors, activations, weights, rule.per_channel)
    if rule.ops:
        return OpsRule(rule.ops, precision, activations, weights, rule.per_channel)
    return NodesRule(rule.nodes, precision, activations, weights, rule.per_channel)


def _method(quantize: Step) -> Quantization:
    """How the component's ranges are made, whatever its scheme."""
    assert quantize.component is not None
    written = quantize.config.components[quantize.component].quantization
    return FOR_SEARCH if isinstance(written, Auto) else cast("Quantization", written)


def _able(quantize: Step) -> Able:
    socs = [catalog.resolve(target.soc) for target in quantize.config.targets]
    wide = all(soc.htp_arch >= WIDE_PRODUCTS_HTP_ARCH for soc in socs)
    return Able(all(soc.computes_float16 for soc in socs), wide)


def _figures(step: Step, facts: Mapping[str, Json] | None) -> dict[str, float | None]:
    """The least SQNR of every rung that a step measured, and of the whole ladder, in dB."""
    if facts is None or step.stage not in ("verify", "emulate"):
        return {}
    ladder = (verify.Facts if step.stage == "verify" else emulate.Facts).from_json(facts)
    measured = {**{rung: ladder.rungs[rung] for rung in RUNGS if rung in ladder.rungs}, "total": ladder.outputs}
    found: dict[str, float | None] = {}
    for rung, outputs in measured.items():
        values = [figures.sqnr_db for figures in outputs.values()]
        if values:
            found[rung] = None if None in values else min(value for value in values if value is not None)
    return found


def _nodes(rows: Sequence[RowFacts]) -> tuple[str, ...]:
    found = [match[1] for row in rows if (match := _NODE.fullmatch(row.node))]
    return tuple(dict.fromkeys(found))


def _listed(attempts: Sequence[Attempt]) -> str:
    return "".join(f"\n    | {attempt.line()}" for attempt in attempts)


def _name(quantize: Step) -> str:
    return f"{quantize.config.name}/{quantize.component}"
