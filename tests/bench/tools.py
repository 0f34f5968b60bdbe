"""What every tool can be told to do, ours and the peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.bench.measure import Usage

ARTIFACTS = (".onnx", ".bin")
"""What is shipped: context models and their binaries."""


@dataclass(frozen=True)
class Outcome:
    """A measured run: what it used, the figures and texts of :class:`tests.bench.results.Run`, its parts if any."""

    usage: Usage
    numbers: Mapping[str, float]
    texts: Mapping[str, list[str]] = field(default_factory=dict)
    parts: tuple[Usage, ...] = ()


@dataclass(frozen=True)
class Target:
    """A SoC by the name that our catalogue has for it, and by its number in QNN."""

    name: str
    soc_model: int


TARGETS = (Target("snapdragon-x-elite", 60), Target("sm8650", 57), Target("sm8750", 69))

PROVIDER_OPTIONS = {"enable_htp_prepare_only": "1", "htp_graph_finalization_optimization_mode": "3"}
"""The options that bear on how long QNN compiles; the same for every tool, and for ours by its own choice."""


class Tool(Protocol):
    """A way to get from a float model to context binaries.

    Each call but the first finds what the calls before it left. All raise CommandFailedError.
    """

    name: str

    def cold(self) -> Outcome:
        """All buckets for the first SoC, with nothing left from earlier."""
        ...

    def again(self) -> Outcome | None:
        """The same once more; None for a tool that would do all of it again."""
        ...

    def changed_sample(self) -> Outcome | None:
        """The same after one calibration sample was replaced; None for a tool that would do all of it again."""
        ...

    def second_soc(self) -> Outcome:
        """The second SoC, for all buckets."""
        ...


def replaced(lines: list[str]) -> list[str]:
    """Calibration lines of which the last is another one, unlike what was there."""
    return [*lines[:-1], "99,418 kW?! zzz qqq xxx 0x1F vvv"]


def write_lines(path: Path, lines: list[str]) -> None:
    """Write calibration lines to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")
