"""What an application of a model is to this harness, and the three ways to run the model under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pipeline.qnn_release import Release

Array = NDArray[Any]
Arrays = dict[str, Array]
Run = Callable[[str, Mapping[str, Array]], Arrays]  # a component's name and its inputs, to its outputs
Answer = TypeVar("Answer")
_TIE = 0.02  # a probability this near 0.5 hangs on rounding


class Share(Enum):
    """Which inputs: those that calibration may see, or the others. They have nothing in common."""

    CALIBRATION = 0
    UNSEEN = 1

    def rng(self, seed: int) -> np.random.Generator:
        """A generator that is the same in every run, and another one for the other share."""
        return np.random.default_rng([seed, self.value])


@dataclass(frozen=True)
class Verdict:
    """Whether two runs of an application agree within its limit, and by how much in words."""

    agrees: bool
    text: str


@dataclass(frozen=True)
class Application(Generic[Answer]):
    """What users do with a model: pre- and postprocessing around it, as its package does them."""

    use: Callable[[Run, Share], Sequence[Answer]]
    compare: Callable[[Sequence[Answer], Sequence[Answer]], Verdict]

    def judge(self, original: Run, tested: Run) -> Verdict:
        """The same unseen inputs through both."""
        return self.compare(self.use(original, Share.UNSEEN), self.use(tested, Share.UNSEEN))


class Original:
    """The models as they were published, on ONNX Runtime's CPU, shapes as they come."""

    def __init__(self, models: Mapping[str, bytes]) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # sums in one order, whatever the machine
        providers = ["CPUExecutionProvider"]
        self._sessions = {
            name: ort.InferenceSession(data, options, providers=providers) for name, data in models.items()
        }

    def __call__(self, component: str, feeds: Mapping[str, Array]) -> Arrays:
        session = self._sessions[component]
        names = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))


class Recorder:
    """Runs the original and keeps what went into each component: that is what calibration gets."""

    def __init__(self, original: Run) -> None:
        self._original = original
        self.feeds: dict[str, list[Arrays]] = {}

    def __call__(self, component: str, feeds: Mapping[str, Array]) -> Arrays:
        self.feeds.setdefault(component, []).append({name: np.array(array) for name, array in feeds.items()})
        return self._original(component, feeds)


class Deployed:
    """The contexts of a release on the emulator; components that it does not have stay the originals."""

    def __init__(self, release: Path, target: str, cache: Path, original: Run) -> None:
        self._release = Release.open(release, target=target, device="emulator", fallback="refuse", cache=cache)
        self._original = original

    def __call__(self, component: str, feeds: Mapping[str, Array]) -> Arrays:
        if component not in self._release.components:
            return self._original(component, feeds)
        taken = {value.name for value in self._release.components[component].inputs}
        return self._release.run(component, {name: array for name, array in feeds.items() if name in taken})


def first(outputs: Arrays) -> Array:
    """The only output, or the first that the model names."""
    return next(iter(outputs.values()))


def equal_share(expected: Sequence[object], actual: Sequence[object], what: str) -> Verdict:
    """All answers must be equal."""
    same = sum(one == other for one, other in zip(expected, actual, strict=True))
    return Verdict(same == len(expected), f"{what} {same}/{len(expected)}")


def equal_decisions(expected: Sequence[float], actual: Sequence[float], limit: float = 0.05) -> Verdict:
    """Probabilities: they may differ by `limit`, and must be on the original's side of 0.5 if it is not at it."""
    one, other = np.array(expected, np.float64), np.array(actual, np.float64)
    if not np.isfinite(other).all():
        return Verdict(False, f"{int((~np.isfinite(other)).sum())} of {len(other)} scores are not finite")
    clear = np.abs(one - 0.5) > _TIE
    same = int(((one >= 0.5) == (other >= 0.5))[clear].sum())
    worst = float(np.abs(one - other).max())
    yes = int((one >= 0.5).sum())
    ties = f", {int((~clear).sum())} more on a tie" if not clear.all() else ""
    text = f"decisions {same}/{int(clear.sum())} ({yes} yes{ties}), |dp| <= {worst:.4f}"
    return Verdict(same == int(clear.sum()) and worst <= limit, text)
