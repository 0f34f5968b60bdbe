"""What steps cost, in seconds and memory: learned from earlier runs, guessed for what never ran."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.storage import sealed_json
from pipeline.storage.durable import write_atomically
from pipeline.storage.locks import TakenError, held
from pipeline.storage.scratch import Scratch
from pipeline.system import stopping

_KEPT = 5000  # entries, the latest; a build of a hundred models has fewer
_LOCK_TIMEOUT_S = 2
MEMBER = "steps"
"""What the file has."""


@dataclass(frozen=True)
class Cost:
    """What one run of a step took: wall and CPU time, and memory of its process and the largest of its children."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    input_bytes: int


@dataclass(frozen=True)
class _Guess:
    """For a stage that never ran: seconds, and memory as a base plus a multiple of the bytes of its inputs."""

    seconds: float
    base_mb: int
    per_input_byte: float


# Measured on float32 models of 1 and 90 MB and rounded up: a guess that is too low may cost a build, one that is too
# high only some parallelism, once.
_GUESSES: Mapping[str, _Guess] = {
    "fetch": _Guess(1, 100, 0),
    "ingest": _Guess(1, 100, 1.5),
    "shape": _Guess(0.3, 100, 0.5),
    "rewrite": _Guess(0.3, 100, 0.5),
    "samples": _Guess(0.5, 150, 0.5),
    "calibrate": _Guess(3, 200, 2),
    "precision": _Guess(60, 500, 4),
    "quantize": _Guess(2, 200, 1.5),
    "verify": _Guess(5, 200, 3),
    "packing": _Guess(0.3, 120, 0),
    "context": _Guess(5, 300, 6),
    "emulate": _Guess(20, 400, 4),
    "blame": _Guess(10, 300, 4),
    "probe": _Guess(20, 400, 6),
}
_UNKNOWN = _Guess(5, 300, 4)


class Costs:
    """Costs by step, kept in one file of the store. Losing it costs a less good order, once.

    Safe to use from several threads; two builds that save at once keep what both learned.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Cost] | None = None
        self._alike: dict[str, Cost] = {}
        self._learned: dict[str, Cost] = {}

    def seconds(self, step: str, share: float = 1.0) -> float:
        """How long a step will take, by its id; `share` is how large its bucket is against the model's largest."""
        if exact := self._exact(step):
            return exact.seconds
        known = self._of(step)
        longest = known.seconds if known else _guess(step).seconds
        return longest * (1 + share) / 2  # part of the time does not depend on the bucket

    def peak_bytes(self, step: str, input_bytes: int) -> int:
        """The most memory that a step will use, by its id and the size of its inputs."""
        known = self._of(step)
        if known is not None:
            grown = input_bytes / known.input_bytes if known.input_bytes else 1.0  # a fetch has no inputs to grow with
            return int(known.peak_bytes * max(grown, 1.0))
        guess = _guess(step)
        return (guess.base_mb << 20) + int(guess.per_input_byte * input_bytes)

    def learn(self, step: str, cost: Cost) -> None:
        """Remember what a run of a step took."""
        with self._lock:
            self._learned[step] = cost

    def learn_killed(self, step: str, peak_bytes: int, input_bytes: int) -> None:
        """Remember that a run died as for want of memory when it was taken to use `peak_bytes`: it needs more.

        How much more nobody knows. Twice as much each time soon has the step run alone.
        """
        self.learn(step, Cost(self.seconds(step), 0.0, 2 * peak_bytes, input_bytes))

    def save(self) -> None:
        """Add what was learned to the file; if that can't be done, the next build guesses again."""
        with self._lock:
            if not self._learned:
                return
            folder = self._path.parent
            try:
                (folder / "locks").mkdir(parents=True, exist_ok=True)
                timeout_s = 0 if stopping.asked() else _LOCK_TIMEOUT_S
                lock = held(folder / "locks" / "costs.lock", "the costs of steps", timeout_s=timeout_s)
                with lock, Scratch(folder / "tmp").folder() as scratch:
                    merged = _read(self._path)
                    for step, cost in self._learned.items():
                        merged.pop(step, None)  # so that what was learned last is last
                        merged[step] = cost
                    kept = {step: asdict(cost) for step, cost in [*merged.items()][-_KEPT:]}
                    data = sealed_json.dump({MEMBER: {**kept}}, indent=0, sort_keys=False)
                    write_atomically(self._path, data, folder=scratch)
            except (OSError, TakenError):
                return
            self._learned.clear()

    def _exact(self, step: str) -> Cost | None:
        with self._lock:
            if self._known is None:
                self._known = _read(self._path)
                # Of what never ran, the dearest of the same stage and component knows most.
                for name, cost in sorted(self._known.items(), key=lambda item: item[1].peak_bytes):
                    self._alike[_component(name)] = cost
            return self._learned.get(step) or self._known.get(step)

    def _of(self, step: str) -> Cost | None:
        return self._exact(step) or self._alike.get(_component(step))


def _component(step: str) -> str:
    """The id of a step without its bucket and target."""
    return "/".join(step.split("/")[:2])


def _guess(step: str) -> _Guess:
    return _GUESSES.get(step.split(":")[0], _UNKNOWN)


def _read(path: Path) -> dict[str, Cost]:
    """What the file says; nothing if it is missing, damaged or not ours."""
    try:
        raw = sealed_json.load_member(path.read_bytes(), MEMBER)
        return {
            str(step): Cost(
                float(cost["seconds"]), float(cost["cpu_seconds"]), int(cost["peak_bytes"]), int(cost["input_bytes"])
            )
            for step, cost in raw.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}
