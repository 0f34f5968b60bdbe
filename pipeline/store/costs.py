"""Predicts the seconds and memory of steps: from earlier runs, or by a guess for steps that never ran."""

from __future__ import annotations

import threading
from pathlib import Path

from pipeline.contracts.codec import Contract, ContractError
from pipeline.frozen import dataclass
from pipeline.processes import stopping
from pipeline.stage_table import STAGES, Stage
from pipeline.store import cache_file
from pipeline.store.locks import TakenError, held

_KEPT = 5000  # entries, the latest; a build of a hundred models has fewer
_LOCK_TIMEOUT_S = 2
_UNKNOWN = Stage("", (), 5, 300, 4)
MEMBER = "steps"
"""The name under which the costs are in the file."""


@dataclass(frozen=True)
class Cost(Contract):
    """What one run of a step took: wall and CPU time, and the memory of its process and its largest child."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    input_bytes: int


class Costs:
    """Costs by step, kept in one file of the store. If the file is lost, one build orders its steps worse.

    Several threads may use it. When two builds save at once, the file keeps what both learned.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Cost] | None = None
        self._alike: dict[str, Cost] = {}
        self._learned: dict[str, Cost] = {}

    def seconds(self, step: str, share: float = 1.0) -> float:
        """How long the step with this id will take; `share` is its bucket's size as a part of the largest bucket's."""
        if exact := self._exact(step):
            return exact.seconds
        known = self._of(step)
        longest = known.seconds if known else _stage(step).seconds
        return longest * (1 + share) / 2  # part of a step's time does not grow with its bucket

    def knows(self, step: str) -> bool:
        """Whether the step, or another of its stage and component, ran before."""
        return self._of(step) is not None

    def peak_bytes(self, step: str, input_bytes: int) -> int:
        """The most memory that the step with this id will use on inputs of this size."""
        known = self._of(step)
        if known is not None:
            grown = input_bytes / known.input_bytes if known.input_bytes else 1.0  # a fetch has no inputs to grow with
            return int(known.peak_bytes * max(grown, 1.0))
        guess = _stage(step)
        return (guess.base_mb << 20) + int(guess.per_input_byte * input_bytes)

    def wished_bytes(self, step: str, peak_bytes: int) -> int:
        """How much memory the step with this id can make use of, if `peak_bytes` is what it needs."""
        return peak_bytes * _stage(step).at_once

    def learn(self, step: str, cost: Cost) -> None:
        """Remember what a run of a step took."""
        with self._lock:
            self._learned[step] = cost

    def learn_killed(self, step: str, peak_bytes: int, input_bytes: int) -> None:
        """Remember that a run predicted to use `peak_bytes` died, apparently of too little memory.

        Its true need is unknown. Doubling the prediction after each death soon makes the step run alone.
        """
        self.learn(step, Cost(self.seconds(step), 0.0, 2 * peak_bytes, input_bytes))

    def save(self) -> None:
        """Add what was learned to the file. If it can't be written, the next build guesses again."""
        with self._lock:
            if not self._learned:
                return
            folder = self._path.parent
            try:
                (folder / "locks").mkdir(parents=True, exist_ok=True)
                timeout_s = 0 if stopping.asked() else _LOCK_TIMEOUT_S
                lock = held(folder / "locks" / "costs.lock", "the costs of steps", timeout_s=timeout_s)
                with lock:
                    merged = _read(self._path)
                    for step, cost in self._learned.items():
                        merged.pop(step, None)  # so that what was learned last is last
                        merged[step] = cost
                    kept = {step: cost.to_json() for step, cost in [*merged.items()][-_KEPT:]}
                    cache_file.write(self._path, MEMBER, kept)
            except (OSError, TakenError):
                return
            self._learned.clear()

    def _exact(self, step: str) -> Cost | None:
        with self._lock:
            if self._known is None:
                self._known = _read(self._path)
                # A step that never ran is taken to cost as much as the dearest of its stage and component.
                for name, cost in sorted(self._known.items(), key=lambda item: item[1].peak_bytes):
                    self._alike[_component(name)] = cost
            return self._learned.get(step) or self._known.get(step)

    def _of(self, step: str) -> Cost | None:
        return self._exact(step) or self._alike.get(_component(step))


def _component(step: str) -> str:
    """The id of a step without its bucket and target."""
    return "/".join(step.split("/")[:2])


def _stage(step: str) -> Stage:
    return STAGES.get(step.split(":")[0], _UNKNOWN)


def _read(path: Path) -> dict[str, Cost]:
    """The costs in the file; none if it is missing, damaged or not ours."""
    try:
        return {step: Cost.from_json(cost) for step, cost in cache_file.read(path, MEMBER).items()}
    except ContractError:
        return {}
