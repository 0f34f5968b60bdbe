"""The cheapest choice of precision that keeps to a target: found on the CPU, confirmed on the emulator.

Candidates come in order of price, and their accuracy rises with it, so that bisection finds the first that is accurate
enough. It is quantized and compiled as a build would; when that is less accurate than the CPU said, a dearer one is
tried. Nothing in it depends on time or chance: the same model, samples and budget give the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.graph.accuracy.search.sensitivity import Choice
from pipeline.progress import within

MARGIN_DB = 0.5
"""By how much a choice has to exceed a threshold, as others may be less accurate than the few it is judged on."""
SEEN_MARGIN_DB = 2.0
"""The same where rounding was made of these few, of which there are too few to keep some from it."""


@dataclass(frozen=True)
class SearchLimits:
    """What a choice must reach in dB against the original model, and the emulator against the QDQ model.

    By `margin_db` it has to exceed the first.
    """

    total_db: float
    compile_db: float
    max_trials: int
    max_emulations: int
    margin_db: float


@dataclass(frozen=True)
class Emulation:
    """A choice as the emulator computes it, in dB.

    Where it can't be compiled or run as it should, `failure` names the kind of failure, which is a fact, and `why`
    explains it, which only messages do.
    """

    total_db: float = 0.0
    compile_db: float = 0.0
    failure: str = ""
    why: str = ""


@dataclass(frozen=True)
class Trial:
    """A choice and its SQNR in dB: by rounding a float model on the CPU, as QDQ model there, and on the emulator."""

    choice: Choice
    rounded_db: float
    quantized_db: float | None = None
    emulation: Emulation | None = None

    @property
    def cpu_db(self) -> float:
        """What the QDQ model gives on the CPU, as exactly as it is known."""
        return self.rounded_db if self.quantized_db is None else self.quantized_db


class ChoiceJudge(Protocol):
    """Who measures a choice, each time in dB: the least of all outputs."""

    def rounded(self, choice: Choice) -> float:
        """The float model with its values rounded."""

    def quantized(self, choice: Choice) -> float:
        """The QDQ models of all buckets on the CPU: the least of them."""

    def emulated(self, choice: Choice) -> Emulation:
        """The context of the last choice that was quantized."""


class Search:
    """A search that goes on from one list of candidates to the next, dearer one."""

    def __init__(
        self,
        judge: ChoiceJudge,
        limits: SearchLimits,
        finish: Callable[[Choice], Choice],
        price: Callable[[Choice], float],
    ) -> None:
        """`finish` makes the last changes to a candidate before it is measured."""
        self._judge = judge
        self._limits = limits
        self._finish = finish
        self._price = price
        self._needed = limits.total_db + limits.margin_db
        self._optimism = 0.0
        self._emulations = 0
        self.trials: dict[Choice, Trial] = {}

    def measure(self, choice: Choice) -> Trial:
        """Try a choice by rounding."""
        if choice not in self.trials:
            with self._told(len(self.trials) + 1):
                self.trials[choice] = Trial(choice, self._judge.rounded(choice))
        return self.trials[choice]

    def first(self, candidates: Sequence[Choice], *, spare: int = 0) -> Trial | None:
        """The first candidate that passes, leaving `spare` emulations for later; None if none does."""
        start, last = 0, len(candidates) - 1
        while start <= last and self.emulations_left > spare:
            position = self._accurate(candidates, start)
            if position is None:
                return None
            if self._limits.max_emulations and self.emulations_left == spare + 1:
                position = last  # the one shot that is left goes to what is most likely to pass
            margin = 0.0 if position == last else self._limits.margin_db
            trial = self._confirmed(self._finish(candidates[position]), self._limits.total_db + margin)
            failed = trial.emulation is not None and bool(trial.emulation.failure)
            short = self._short(trial, margin)
            if short <= 0 and not failed:
                return trial
            start = position + 1
            best = self.measure(self._finish(candidates[last])).rounded_db
            if failed or (trial.emulation is not None and trial.cpu_db + short > best):
                # Accuracy on the CPU says nothing about what went wrong here.
                start = max(start, (start + last) // 2)
            elif trial.emulation is not None:
                self._needed = trial.cpu_db + short
            else:
                self._optimism = max(self._optimism, trial.rounded_db - trial.cpu_db)
        return None

    @property
    def emulations_left(self) -> int:
        """How many choices may still be emulated; where none may ever, this limits nothing."""
        limit = self._limits.max_emulations
        return limit - self._emulations if limit else len(self.trials) + 1

    def _accurate(self, candidates: Sequence[Choice], start: int) -> int | None:
        """The cheapest candidate from `start` on that is accurate enough by rounding, as far as bisection finds it.

        The last one is taken for it if it reaches the bare limit; None if it doesn't.
        """
        low, high = start, len(candidates) - 1
        tried = {high: self.measure(self._finish(candidates[high]))}
        if tried[high].rounded_db < self._limits.total_db:
            return None
        while low < high and len(self.trials) < self._limits.max_trials:
            middle = (low + high) // 2
            tried[middle] = self.measure(self._finish(candidates[middle]))
            if self._is_accurate(tried[middle]):
                high = middle
            else:
                low = middle + 1
        # Accuracy does not rise with every step, nor does the price: what was met on the way may be better.
        met = [position for position, trial in tried.items() if self._is_accurate(trial) and trial.quantized_db is None]
        return min(met, key=lambda position: self._price(tried[position].choice), default=high)

    def _is_accurate(self, trial: Trial) -> bool:
        return trial.rounded_db >= self._needed + self._optimism

    def _confirmed(self, choice: Choice, least_db: float) -> Trial:
        """The choice as a build would make it: quantized, and if that is accurate enough, compiled and emulated."""
        trial = self.measure(choice)
        if trial.emulation is None and (trial.quantized_db is None or trial.cpu_db >= least_db):
            # Quantized again if need be: the judge emulates what it quantized last.
            with self._told([*self.trials].index(choice) + 1):
                trial = replace(trial, quantized_db=self._judge.quantized(choice))
                if trial.cpu_db >= least_db and self._limits.max_emulations:
                    self._emulations += 1
                    trial = replace(trial, emulation=self._judge.emulated(choice))
            self.trials[choice] = trial
        return trial

    def _told(self, number: int) -> AbstractContextManager[None]:
        return within(f"trial {number} of {self._limits.max_trials} at most")

    def _short(self, trial: Trial, margin: float) -> float:
        """How much a trial is short of what it must reach, in dB."""
        limits, emulation = self._limits, trial.emulation
        short = limits.total_db - trial.cpu_db
        if emulation is not None:
            short = max(short, limits.total_db - emulation.total_db, limits.compile_db - emulation.compile_db)
        return short + margin
